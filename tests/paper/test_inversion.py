"""The table of GAN inversion: a StyleGAN trained for it, or the published one from a folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from damc.errors import BadInput
from damc.inversion.invert import Found, invert_images
from damc.inversion.learner import Inversion
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.vgg import VGG16
from damc.paper.inversion import InversionTable
from damc.paper.table import Options
from damc.paper.work import run_cells


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The published files in small, and a folder of pictures."""
    torch.manual_seed(0)
    folder = tmp_path / "weights"
    folder.mkdir()
    decoder = StyleDecoder(16, latent_dim=6, style=8, base=120, widest=12, mapping_layers=2)
    encoder = StyleEncoder(16, style=8, base=4, widest=8).eval()
    for name, net in (
        ("styleganinv_tower256_generator", decoder),
        ("styleganinv_tower256_encoder", encoder),
        ("vgg16", VGG16(width=2)),
    ):
        torch.save(net.state_dict(), folder / f"{name}.pth")
    for split in ("train", "val"):
        place = tmp_path / "data" / "lsun-tower" / split
        place.mkdir(parents=True)
        for i in range(6):
            pixels = torch.randint(0, 256, (20, 24, 3), dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(place / f"{i}.png")
    return folder


def test_the_small_table_trains_its_own_decoder_once(tmp_path: Path) -> None:
    options = Options(
        methods=("enc", "damc, one draw"),
        data=("digits",),
        iterations=8,
        images=4,
        threads=1,
    )
    results = run_cells(InversionTable(), options, tmp_path)
    assert [result.cell.row for result in results] == list(options.methods or ())
    for result in results:
        assert 0 < result.figures["mse"] < 4 and math.isfinite(result.figures["frechet"])
        assert result.figures["mse"] <= result.figures["start_mse"]
    assert len(list((tmp_path / "trained").iterdir())) == 1


@pytest.mark.slow
def test_random_starts_on_own_images_are_not_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inverted = []

    def watch(parts: Inversion, images: Any, *words: Any, seed: int, **options: Any) -> Found:
        if isinstance(images, Tensor):
            # Where `opt` starts: a draw by the inversion's own generator, truncated.
            problem = parts.problem
            start = problem.draw(len(images), torch.Generator().manual_seed(seed))
            with torch.no_grad():
                inverted.append((images, problem.decode(start)))
        return invert_images(parts, images, *words, seed=seed, **options)

    monkeypatch.setattr("damc.paper.inversion.invert_images", watch)
    options = Options(methods=("opt",), data=("digits",), iterations=8, images=4, threads=1)
    run_cells(InversionTable(), options, tmp_path)
    ((own, start),) = inverted
    assert not torch.allclose(own, start, atol=1e-3)


def test_the_papers_table_takes_the_published_networks(published: Path, tmp_path: Path) -> None:
    options = Options(
        "paper",
        methods=("damc",),
        data=("lsun-tower",),
        iterations=2,
        images=3,
        features="pixel-pca",
        data_root=str(published.parent / "data"),
        threads=1,
        weights=str(published),
    )
    results = run_cells(InversionTable(), options, tmp_path / "out")
    assert all(math.isfinite(result.figures["mse"]) for result in results)
    trained = tmp_path / "out" / "trained" / "lsun-tower-seed-0"
    assert not (trained / "decoder").exists() and (trained / "inversion" / "config.json").is_file()
    (published / "vgg16.pth").unlink()
    with pytest.raises(BadInput, match=r"must hold vgg16\.pth or vgg16\.safetensors"):
        InversionTable().prepare(options, tmp_path / "other")


def test_the_papers_table_names_what_is_missing() -> None:
    table = InversionTable()
    with pytest.raises(
        BadInput, match="--weights must be given .*the folder of styleganinv_ffhq256"
    ):
        table.cells(Options("paper"))
    with pytest.raises(BadInput, match="ffhq or lsun-tower at the paper's scale, got mnist"):
        table.cells(Options("paper", data=("mnist",), weights="there"))
    with pytest.raises(BadInput, match="scale must be paper"):
        table.cells(Options(weights="there"))
    cells = table.cells(Options("paper", weights="there"))
    images = {cell.column: cell.plan["images"] for cell in cells}
    assert images == {"ffhq": 500, "lsun-tower": 300}
