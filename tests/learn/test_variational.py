"""What every method of the variational and two-stage family owes: it learns, resumes, draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from damc import BadInput, fit, load
from damc.data import load_images
from damc.learn import LEARNERS, Learner, find_method

METHODS = ("vae", "vae-2stage", "rae", "ncp-vae", "adaptive-ce", "damc-vae", "damc-abp")
SHORT: dict[str, Any] = {
    "posterior_steps": 5,
    "prior_steps": 3,
    "updates": 1,
    "prior_sample_steps": 5,
    "inference_steps": 20,
    "proposals": 20,
    "ring": 300,
    "score_draws": 2,
    "hidden": 32,
}
RUNS = [
    *((method, {}) for method in METHODS),
    ("rae", {"regularizer": "gradient"}),
    ("rae", {"regularizer": "spectral"}),
]


def make(method: str, horizon: int, **changes: Any) -> Learner:
    torch.manual_seed(0)
    known = LEARNERS[method].settings_type.__dataclass_fields__
    settings = {k: v for k, v in {**SHORT, **changes}.items() if k in known}
    return find_method(method).from_preset("digits-small", horizon=horizon, **settings)


def images(n: int = 40) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize("method", METHODS)
def test_it_beats_the_mean_image_within_200_iterations(method: str) -> None:
    digits = load_images("digits")
    chains = {"posterior_steps": 20, "inference_steps": 60}
    within = 120 if method in ("adaptive-ce", "damc-abp") else 200  # chains take the time
    horizon = 2 * within if method == "vae-2stage" else within  # of which images get half
    learner = make(method, horizon, **chains)
    fit(learner, digits, iterations=horizon, batch=64, progress=False)
    x = digits.batch(torch.arange(300))
    y = learner.reconstruct(x, generator=torch.Generator().manual_seed(0))
    error, spread = (x - y).square().mean(), (x - x.mean(0)).square().mean()
    assert float(error) < 0.85 * float(spread)
    with pytest.raises(AssertionError):  # the fresh learner does not
        fresh = make(method, 200, **chains).reconstruct(
            x, generator=torch.Generator().manual_seed(0)
        )
        assert float((x - fresh).square().mean()) < float(spread)


@pytest.mark.parametrize(("method", "changes"), RUNS)
def test_stopping_in_either_stage_changes_nothing(
    method: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    def go(iterations: int, folder: str) -> Learner:
        learner = make(method, 10, **changes)
        torch.manual_seed(iterations)  # torch's own random state must not matter
        run = tmp_path / folder
        return fit(learner, images(), iterations=iterations, batch=16, run=run, progress=False)

    ten = go(10, "ten")
    for iterations in (5, 8, 10):
        resumed = go(iterations, "parts")
    for name, tensor in ten.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name
    for name in ("weights.safetensors", "resume.safetensors", "resume.json"):
        files = [tmp_path / run / "checkpoints/00000010" / name for run in ("ten", "parts")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    # What is loaded for use draws what the trained learner draws.
    loaded = load(tmp_path / "ten")
    drawn = [x.sample(3, generator=torch.Generator().manual_seed(0)) for x in (ten, loaded)]
    assert drawn[0].equal(drawn[1])


@pytest.mark.parametrize("method", METHODS)
def test_what_it_gives_has_the_right_shape_in_every_stage(method: str) -> None:
    learner, x = make(method, 4), images(6)
    for k in range(5):  # one past the horizon
        metrics = learner.check(learner.step(x, torch.arange(6), torch.Generator().manual_seed(k)))
        assert metrics and learner.iteration == k + 1
        generator = torch.Generator().manual_seed(0)
        for source in learner.sources:
            options: dict[str, Any] = {} if source == learner.sources[0] else {"source": source}
            drawn = learner.sample(3, generator=generator, **options)
            assert drawn.shape == (3, 1, 8, 8) and bool(torch.isfinite(drawn).all())
        assert learner.infer(x, generator=generator).shape == (6, 8)
        assert learner.reconstruct(x, generator=generator).shape == x.shape
        if method != "rae":
            score = learner.anomaly_score(x, generator=generator)
            assert score.shape == (6,) and not score.requires_grad


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_draws_the_same_whatever_torch_s_own_state(method: str) -> None:
    learner, x = make(method, 2), images(6)
    for k in range(2):
        learner.step(x, torch.arange(6), torch.Generator().manual_seed(k))
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(0)
        drawn.append(
            torch.cat(
                [
                    learner.sample(2, generator=generator),
                    learner.reconstruct(x, generator=generator),
                ]
            )
        )
    assert drawn[0].equal(drawn[1])


def test_an_unknown_source_is_one_clear_sentence() -> None:
    learner = make("ncp-vae", 4)
    learner.iteration = 4
    with pytest.raises(BadInput, match="must be resampling or energy or gaussian"):
        learner.sample(1, source="amortizer")  # type: ignore[call-arg]


@pytest.mark.parametrize("method", ["vae-2stage", "ncp-vae"])
def test_the_second_stage_decodes_nothing(method: str) -> None:
    learner, x = make(method, 4, first=0.5), images(6)
    passes: list[int] = []
    learner.model.decoder.register_forward_hook(lambda *_: passes.append(1))  # type: ignore[operator, union-attr]
    for k in range(4):
        learner.step(x, torch.arange(6), torch.Generator().manual_seed(k))
    assert len(passes) == 2
