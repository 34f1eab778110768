"""The moving pictures: the command makes them, and those that are stored are small."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.test_tutorials import opened

FOLDER = Path(__file__).parents[1] / "docs" / "images"


@pytest.fixture(scope="module")
def animate() -> ModuleType:
    return opened(FOLDER / "animate.py")


def test_the_chain_moves(animate: ModuleType, tmp_path: Path) -> None:
    frames = animate.animate_chain(steps=20, every=10, chains=2)
    assert len(frames) == 3
    assert len({frame.tobytes() for frame in frames}) == 3
    animate.write_gif(tmp_path / "new" / "chain.gif", frames, 100, 16)
    with Image.open(tmp_path / "new" / "chain.gif") as stored:
        assert stored.n_frames == 3 and stored.size == frames[0].size


@pytest.mark.slow
def test_the_toy_shows_every_stage_of_learning(animate: ModuleType) -> None:
    frames = animate.animate_toy(iterations=3, shown=2, points=50)
    assert len(frames) == 3
    assert len({frame.tobytes() for frame in frames}) == 3


@pytest.mark.parametrize("name", ["toy", "chain"])
def test_the_stored_pictures_move_and_are_below_two_megabytes(name: str) -> None:
    path = FOLDER / f"{name}.gif"
    assert path.stat().st_size < 2e6
    with Image.open(path) as stored:
        assert stored.n_frames >= 20 and stored.info["loop"] == 0
