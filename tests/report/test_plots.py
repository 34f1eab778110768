from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import damc.report.plots
from damc.errors import BadInput
from damc.report.plots import curves, histograms, image_grid, paired_grid, strips, traces


def read(path: Path) -> Any:
    """The picture's bytes, (H, W, 3)."""
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.array(picture.convert("RGB"))


def flat(*levels: float, channels: int = 1, size: int = 4) -> torch.Tensor:
    """One constant image for each level, (N, C, size, size)."""
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, channels, size, size)


def test_pixels_land_where_they_belong_with_their_values(tmp_path: Path) -> None:
    images = torch.rand(5, 3, 6, 4) * 2 - 1
    picture = read(image_grid(images, tmp_path / "grid.png", columns=3, scale=2))
    assert picture.shape == (2 * (12 + 2) + 2, 3 * (8 + 2) + 2, 3)
    for n in range(5):
        y, x = 2 + n // 3 * 14, 2 + n % 3 * 10
        tile = picture[y : y + 12, x : x + 8]
        wanted = ((images[n] + 1) * 127.5).round().permute(1, 2, 0).numpy()
        assert np.array_equal(tile, wanted.repeat(2, axis=0).repeat(2, axis=1))
    assert (picture[16:28, 22:30] == 255).all()  # the sixth place stays white


def test_values_outside_are_clipped_and_grey_becomes_three_channels(tmp_path: Path) -> None:
    picture = read(image_grid(flat(-7.0, -1.0, 0.0, 1.0, 7.0), tmp_path / "a.png", scale=1))
    assert [picture[3, 3 + 6 * n].tolist() for n in range(5)] == [
        [0] * 3,
        [0] * 3,
        [128] * 3,
        [255] * 3,
        [255] * 3,
    ]


@pytest.mark.parametrize(("size", "scale"), [(8, 10), (28, 3), (32, 3), (64, 2), (256, 1)])
def test_small_images_are_enlarged_by_whole_factors(tmp_path: Path, size: int, scale: int) -> None:
    picture = read(image_grid(flat(0.0, size=size), tmp_path / "a.png"))
    assert picture.shape[0] == size * scale + 4


def test_pairs_stand_above_each_other_with_a_gap_between_groups(tmp_path: Path) -> None:
    originals, reconstructions = flat(-1.0, -1.0, -1.0), flat(0.0, 0.0, 0.0)
    path = paired_grid(originals, reconstructions, tmp_path / "a.png", columns=2, scale=5)
    column = read(path)[:, -26 - 22 + 10, 0]  # through the left tile of each row
    runs = [(int(level), len(list(run))) for level, run in itertools.groupby(column)]
    pair = [(0, 20), (255, 2), (128, 20)]
    assert runs == [(255, 2), *pair, (255, 14), *pair, (255, 2)]


def test_chains_run_along_rows(tmp_path: Path) -> None:
    time, chain = torch.meshgrid(torch.arange(3.0), torch.arange(2.0), indexing="ij")
    images = (time / 4 - chain / 2).view(3, 2, 1, 1, 1).expand(3, 2, 1, 4, 4)
    picture = read(strips(images, tmp_path / "a.png", scale=1))
    for t in range(3):
        for n in range(2):
            assert picture[3 + 6 * n, 3 + 6 * t, 0] == round((t / 4 - n / 2 + 1) * 127.5)


def test_texts_take_room_and_never_overlap_the_images(tmp_path: Path) -> None:
    images = flat(1.0, 1.0)
    plain = read(image_grid(images, tmp_path / "a.png", scale=20))
    assert (plain == 255).all()
    labeled = read(image_grid(images, tmp_path / "b.png", scale=20, labels=["one", "x" * 99]))
    assert labeled.shape[0] > plain.shape[0]
    assert (labeled[:82] == 255).all()
    assert (labeled[82:] < 128).any()
    named = read(image_grid(images, tmp_path / "d.png", 1, scale=20, names=["first", "second"]))
    room = named.shape[1] - read(image_grid(images, tmp_path / "e.png", 1, scale=20)).shape[1]
    assert room > 20 and (named[:, :room] < 128).any() and (named[:, room:] == 255).all()
    with pytest.raises(BadInput, match="as many as the 2 rows, got 1"):
        image_grid(images, tmp_path / "f.png", 1, names=["first"])
    timed = read(strips(images[:, None], tmp_path / "c.png", scale=20, times=[0, 10]))
    assert (timed[:18] < 128).any()
    assert (timed[20:] == 255).all()


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(4, 4),
        torch.zeros(2, 2, 4, 4),
        torch.zeros(0, 1, 4, 4),
        torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        flat(math.nan),
    ],
)
def test_what_is_not_images_is_refused_and_nothing_is_written(
    tmp_path: Path, images: torch.Tensor
) -> None:
    with pytest.raises(BadInput, match="must"):
        image_grid(images, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_numbers_that_do_not_match_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    calls: list[Callable[[], Path]] = [
        lambda: image_grid(flat(0.0, 0.0), path, labels=["one"]),
        lambda: image_grid(flat(0.0), path, columns=0),
        lambda: image_grid(flat(0.0), path, scale=0),
        lambda: paired_grid(flat(0.0), flat(0.0, 0.0), path),
        lambda: strips(flat(0.0), path),
        lambda: strips(flat(0.0)[None], path, times=[1, 2]),
    ]
    for call in calls:
        with pytest.raises(BadInput):
            call()
    assert not path.exists()


METRICS = [
    {"iteration": i, "loss": 1.0 / (1 + i), "gap": None if i == 3 else -0.5, "note": "text"}
    for i in range(200)
]


def test_curves_draw_the_numbers_of_a_run(tmp_path: Path) -> None:
    both = read(curves(METRICS, tmp_path / "a.png"))
    one = read(curves(METRICS, tmp_path / "b.png", keys=["loss"]))
    assert both.shape[1] == 2 * one.shape[1]
    assert (one < 100).any()
    with pytest.raises(
        BadInput, match="must be among the numbers of the metrics, loss, gap, got lost"
    ):
        curves(METRICS, tmp_path / "c.png", keys=["lost"])
    with pytest.raises(BadInput, match="numbers of the metrics, none, got none"):
        curves([], tmp_path / "c.png")


def test_histograms_take_tensors_and_lists(tmp_path: Path) -> None:
    values: dict[str, torch.Tensor | Sequence[float]] = {
        "data": torch.randn(100),
        "samples": [0.0, 1.0, 2.0],
        "constant": torch.ones(5),
    }
    assert (read(histograms(values, tmp_path / "a.png", "energy")) < 255).any()
    for bad in ({}, {"data": torch.tensor([])}, {"data": torch.tensor([1.0, math.inf])}):
        with pytest.raises(BadInput, match="values .*must"):
            histograms(bad, tmp_path / "b.png", "energy")
    assert not (tmp_path / "b.png").exists()


def test_matplotlib_and_pillow_are_imported_only_by_the_functions_that_use_them() -> None:
    tree = ast.parse(Path(damc.report.plots.__file__).read_text(encoding="utf-8"))
    names = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    for node in tree.body:
        names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    assert "torch" in names
    assert not any(str(name).startswith(("matplotlib", "PIL")) for name in names)


def test_traces_draw_chains_and_data(tmp_path: Path) -> None:
    values = torch.linspace(0, 1, 5)[:, None].expand(5, 3)
    plain = read(traces(range(0, 50, 10), values, tmp_path / "a.png", "energy"))
    data = read(traces(range(0, 50, 10), values, tmp_path / "b.png", "energy", (0.5, 0.1)))
    assert plain.shape == data.shape and (plain != data).any()
    with pytest.raises(BadInput, match=r"shape \(4, B\)"):
        traces(range(4), values, tmp_path / "c.png", "energy")
    with pytest.raises(BadInput, match="finite"):
        traces(range(5), values * math.inf, tmp_path / "c.png", "energy")
    assert not (tmp_path / "c.png").exists()
