"""Inverting sets of images: what is computed in parts, written, read back and refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from damc.data import load_images
from damc.errors import BadInput
from damc.inversion.invert import decoder_images, figures, invert_images, write_found
from damc.inversion.methods import invert
from damc.inversion.networks import InversionNetworks
from damc.inversion.problem import Problem
from damc.inversion.source import open_source
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.training import SMALL, InversionTraining
from damc.metrics.features import pixel_pca
from damc.train.origin import Origin
from damc.train.run import Run


@pytest.fixture
def decoder() -> StyleDecoder:
    return StyleDecoder(8, 1, latent_dim=4, style=4, base=64, widest=8, mapping_layers=2)


@pytest.fixture
def problem(decoder: StyleDecoder, generator: torch.Generator) -> Problem:
    made = InversionNetworks.describe(decoder).problem(decoder)
    return made.calibrate(generator, codes=200, probes=0)


def test_parts_of_a_set_are_one_after_the_other(problem: Problem) -> None:
    x = torch.rand(7, 1, 8, 8) * 2 - 1
    found = invert_images(problem, x, "opt", batch=3, seed=4, iterations=2)
    generator = torch.Generator().manual_seed(4)
    parts = [invert(problem, part, "opt", iterations=2, generator=generator) for part in x.split(3)]
    assert torch.equal(found.inverted.codes, torch.cat([part.codes for part in parts]))
    assert found.table["images"] == 7 and found.table["perceptual_network"] == "none, pixels alone"
    assert found.table["mse"] == pytest.approx(
        float((x - found.inverted.images).square().mean()), rel=1e-5
    )
    few = invert_images(problem, load_images(x.numpy()), "opt", limit=4, iterations=0)
    assert torch.allclose(few.x, x[:4])
    for options in ({"limit": 0}, {"batch": 0}):
        with pytest.raises(BadInput, match="at least 1"):
            invert_images(problem, x, "opt", **options)


def test_the_decoders_own_images_can_be_inverted(problem: Problem) -> None:
    x = decoder_images(problem, 6, seed=1)
    found = invert_images(problem, x, "opt", rate=0.1)
    assert found.table["mse"] < 0.1 * found.table["start_mse"]
    numbers = figures(found, pixel_pca(torch.rand(40, 1, 8, 8) * 2 - 1, 4))
    assert numbers["mse"] == found.table["mse"] and numbers["frechet"] >= 0
    assert "frechet" not in figures(found) and "method" not in numbers


def test_what_is_written_is_what_was_found(problem: Problem, tmp_path: Path) -> None:
    found = invert_images(problem, torch.zeros(3, 1, 8, 8), "opt", iterations=1)
    written = write_found(found, tmp_path)
    assert np.array_equal(np.load(tmp_path / "codes.npy"), found.inverted.codes.numpy())
    with (tmp_path / "inversions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mse"]) for row in rows] == pytest.approx(found.inverted.mse.tolist())
    assert {path.name for path in written.values()} == {
        "codes.npy",
        "inversions.csv",
        "inversions.png",
    }


def test_a_decoder_is_found_in_a_file_or_refused(decoder: StyleDecoder, tmp_path: Path) -> None:
    save_file(decoder.state_dict(), tmp_path / "decoder.safetensors")
    source = open_source(tmp_path / "decoder.safetensors")
    assert source.shape == (1, 8, 8) and source.learner is None and source.decoder is not None
    codes = torch.randn(2, 16)
    assert torch.equal(source.decoder.synthesis(codes), decoder.synthesis(codes))
    encoder = StyleEncoder(8, 1, style=4, base=4, widest=8).state_dict()
    save_file(encoder, tmp_path / "encoder.safetensors")
    with pytest.raises(BadInput, match="must have the key mapping"):
        open_source(tmp_path / "encoder.safetensors")
    with pytest.raises(BadInput, match="got no file at"):
        open_source(tmp_path / "none.safetensors")
    Run.create(tmp_path / "run", {"learner": "vae"})
    with pytest.raises(BadInput, match=r"a run of damc train-gan or .*, got a run of vae"):
        open_source(tmp_path / "run")


def test_a_run_knows_its_decoder(decoder: StyleDecoder, tmp_path: Path) -> None:
    def training(of: StyleDecoder, iterations: int) -> InversionTraining:
        return InversionTraining(
            of,
            tmp_path / "run",
            iterations,
            Origin("digits", (1, 8, 8)),
            batch=4,
            changes={"encoder_iterations": 1, "warmup_iterations": 1, "posterior_steps": 2},
            networks={"amortizer": {"embedding": 8, "capacity": 0.1}},
            loop={"progress": False},
        )

    learner = training(decoder, 2).run()
    assert learner.iteration == 2 and learner.settings.sampler == SMALL.sampler
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["config"]["networks"]["shape"] == [1, 8, 8]
    found = open_source(tmp_path / "run").learner
    assert found is not None
    x = torch.zeros(2, 1, 8, 8)
    for method in ("enc", "damc"):
        one, two = (
            invert_images(parts, x, method, iterations=1).inverted.codes
            for parts in (learner, found)
        )
        assert torch.equal(one, two)
    another = StyleDecoder(8, 1, latent_dim=4, style=4, base=64, widest=8, mapping_layers=2)
    with pytest.raises(BadInput, match=r"other settings \(data.decoder differs\)"):
        training(another, 3).run()
    assert training(decoder, 3).run().iteration == 3
