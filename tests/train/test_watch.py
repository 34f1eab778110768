"""Garbage is loud: what trains to nonsense is named, what trains well is left in peace."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from damc.data import load_images
from damc.errors import BadInput, Diverged
from damc.learn import METHODS, find_method
from damc.learn.presets import PRESETS
from damc.randomness import global_seed
from damc.train.loop import fit
from damc.train.run import Run
from damc.train.watch import Watch

GARBAGE: list[tuple[dict[str, float], str]] = [
    ({"decoder_rate": 10.0}, "saturated|black or white|gradient of the decoder is exactly zero"),
    ({"decoder_rate": 1e3}, "black or white|gradient of the decoder is exactly zero"),
    ({"decoder_rate": 1e6}, "black or white|gradient of the decoder is exactly zero"),
    ({"sigma": 1e-6}, "sigma must not be far below 0.0078, the grid of pixels: 1e-06"),
    ({"posterior_step_size": 1e20}, "step_size must be at most 1e18, got 1e"),
    ({"prior_step_size": 1e20}, "step_size must be at most 1e18, got 1e"),
    (
        {"warm_up_rate": 1e3, "warm_up": 0.9},
        "black or white|gradient of the decoder is exactly zero|decoder_gradient is inf",
    ),
    ({"energy_rate": 1e3}, "log-density is not finite|energy gap grows|improper"),
]
SHORT = {"posterior_steps": 3, "prior_steps": 5, "updates": 1, "start_steps": 3, "test_steps": 1}
SHORT["warm_up"] = 0


def named(changes: dict[str, float], iterations: int = 20, **options: Any) -> str:
    """What training with these settings said, warnings and errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = ""
        try:
            with global_seed(0):
                learner = find_method("damc").from_preset("digits-small", **{**SHORT, **changes})
            images = load_images("digits")
            fit(learner, images, iterations=iterations, batch=16, progress=False, **options)
        except (BadInput, Diverged) as error:
            said = str(error)
    return "; ".join([said, *(str(one.message) for one in caught)])


@pytest.mark.parametrize(("changes", "words"), GARBAGE, ids=[str(g[0]) for g in GARBAGE])
def test_garbage_is_named_within_a_hundred_iterations(
    changes: dict[str, float], words: str
) -> None:
    said = named(changes)
    assert re.search(words, said), said


def test_what_does_not_recover_ends_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    said = named({"decoder_rate": 10.0}, 100, run=tmp_path / "run", checkpoint_every=4)
    assert "training blew up in iteration 60" in said
    assert "since iteration 10; no checkpoint is good" in said
    records = Run.open(tmp_path / "run").metrics()
    assert [r["iteration"] for r in records if "warning" in r][:1] == [10]


def test_a_fault_that_passes_is_a_warning_only() -> None:
    learner = find_method("damc").from_preset("digits-small")
    watch = Watch(learner, patience=30)
    x = torch.rand(8, 1, 8, 8) - 0.5
    for k, norm in ((10, 1.0), (20, 1e5), (30, 1e5), (40, 1.0), (60, 1e5), (80, 1.0), (100, 1.0)):
        learner.iteration = k
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.look(x, {"z_norm": norm})
        assert [k for one in caught if "latent points explode" in str(one.message)] == (
            [k] if k in (20, 60) else []
        )
    learner.iteration = 200
    with pytest.warns(UserWarning, match="latent points explode"):
        watch.look(x, {"z_norm": 1e5})
    learner.iteration = 300
    with pytest.raises(Diverged, match="latent points explode.*, since iteration 200"):
        watch.look(x, {"z_norm": 1e5})


def test_the_last_good_checkpoint_is_from_before_the_fault(tmp_path: Path) -> None:
    """The decoder is spoiled in iteration 15 of a run with checkpoints every 5."""
    learner = find_method("vae").from_preset("digits-small")

    def spoil(learner: Any, run: Any, k: int) -> None:
        if k == 15:
            for weight in learner.model.decoder.parameters():
                torch.nn.init.constant_(weight.data, 100.0)

    images = load_images("digits")
    with (
        pytest.warns(UserWarning, match="iteration 20: .*black or white"),
        pytest.raises(Diverged, match="the last good state is iteration 10 in"),
    ):
        fit(
            learner,
            images,
            iterations=100,
            batch=16,
            run=tmp_path / "run",
            checkpoint_every=5,
            keep=30,
            hook=spoil,
            hook_every=5,
            progress=False,
        )


def test_a_gap_that_grows_and_an_error_above_the_mean_image_are_named() -> None:
    learner = find_method("damc").from_preset("digits-small")
    watch = Watch(learner)
    x: Tensor = torch.rand(8, 1, 8, 8) - 0.5
    said = []
    for k in range(10, 90, 10):
        learner.iteration = k
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch.look(x, {"energy_difference": -(2.0 ** (k / 10)), "mse": 0.5})
        said += [f"{k} {one.message}" for one in caught]
    assert any("the energy gap grows without end: 128" in s and s.startswith("70") for s in said)
    assert any("worse than the mean image" in s and s.startswith("50") for s in said)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in PRESETS if name.endswith("-small")])
def test_no_preset_is_warned_of(preset: str) -> None:
    """100 iterations of those that a laptop can do."""
    _quiet(preset, "damc", 100)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in PRESETS if not name.endswith("-small")])
def test_no_preset_of_the_papers_size_is_warned_of(preset: str) -> None:
    """Each of them, but for a few iterations of two images, every one of which is looked at."""
    _quiet(preset, "damc", 1 if preset == "celebahq256" else 4, batch=2, log_every=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].takes_presets])
def test_no_method_is_warned_of(method: str) -> None:
    _quiet("digits-small", method, 100)


def test_the_demo_is_not_warned_of() -> None:
    _quiet("digits-small", "vae", 100)


def _quiet(preset: str, method: str, iterations: int, batch: int = 8, log_every: int = 10) -> None:
    kind = find_method(method)
    with global_seed(0), warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = kind.from_preset(preset)
        shape = PRESETS[preset].networks.shape
        if shape == (1, 8, 8):
            fit(learner, load_images("digits"), iterations=iterations, batch=32, progress=False)
        else:
            pictures = _pictures(shape)
            options = {"batch": batch, "log_every": log_every, "progress": False}
            fit(learner, pictures, iterations=iterations, **options)


def _pictures(shape: tuple[int, ...]) -> Tensor:
    """Smooth pictures of random colored blobs, where no data set is at hand."""
    generator = torch.Generator().manual_seed(0)
    c, h, w = shape
    coarse = torch.rand(128, c, 4, 4, generator=generator) * 2 - 1
    smooth = torch.nn.functional.interpolate(coarse, (h, w), mode="bilinear")
    return ((smooth + 1) * 127.5).to(torch.uint8)
