"""`damc transitions`: chains on priors that are known, and what the command writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.data import load_images
from damc.errors import BadInput, Diverged
from damc.latent import LatentModel
from damc.learn import ABP, DAMC, LEBM
from damc.learn.damc import DAMCSettings
from damc.tasks.generate import generate
from damc.tasks.transitions import transitions
from damc.train.loading import load


class Bowl(nn.Module):
    """E(z) = (l - 1) |z|^2 / 2, so that the prior is N(0, I / l); l < 0 is no density at all."""

    def __init__(self, precision: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor((precision - 1) / 2))

    def forward(self, z: Tensor) -> Tensor:
        return self.weight * z.square().sum(1)


class Screen(nn.Module):
    """Every latent coordinate is a pixel, at most 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, z: Tensor) -> Tensor:
        return (self.scale * z).tanh().view(-1, 1, 2, 2)


def learner(precision: float | None, step_size: float = 0.4) -> DAMC:
    model = LatentModel(Screen(), None if precision is None else Bowl(precision), 4, 1.0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(4, 8))
    settings = DAMCSettings(sigma=1.0, prior_step_size=step_size)
    return DAMC(model, Amortizer(4, encoder, embedding=8), settings)


def test_chains_reach_the_law_they_should_and_stay() -> None:
    s, precision, chains = 0.4, 4.0, 500
    found = transitions(learner(precision, s), steps=400, chains=chains)
    # The stationary variance of unadjusted Langevin, see `damc.Langevin`.
    variance = 1 / (precision * (1 - precision * s**2 / 4))
    assert list(found.snapshots) == [0, 100, 200, 400]
    for step in (100, 200, 400):
        snapshot = found.snapshots[step]
        # E = 1.5 |z|^2 with |z|^2 / variance a chi-squared of 4 degrees.
        mean, spread = 1.5 * 4 * variance, 1.5 * math.sqrt(8) * variance
        assert abs(snapshot.energy_mean - mean) < 4 * spread / chains**0.5
        assert snapshot.energy_spread == pytest.approx(spread, rel=0.2)
        assert abs(snapshot.pixel_mean) < 4 * snapshot.pixel_mean_error
        # tanh(z / 10) is z / 10 but for one part in a thousand here.
        error = 0.1 * variance**0.5 / math.sqrt(2 * 4 * chains)
        assert abs(snapshot.pixel_spread - 0.1 * variance**0.5) < 4 * error
    # Where they start is another law, which the same numbers tell apart.
    assert abs(found.snapshots[0].energy_mean - mean) > 10 * spread / chains**0.5
    assert all(abs(value) < 0.25 for value in found.change.values())
    assert found.mixing["R-hat of z, largest"] < 1.01 and found.note == ""
    assert 0.7 < found.mixing["ESS of z, smallest"] / found.mixing["kept points"] < 1.3


def test_saturation_is_seen() -> None:
    s, precision, steps, chains = 0.4, -0.1, 600, 100
    found = transitions(learner(precision, s), steps=steps, chains=chains)
    assert found.change["variance"] > 0.25
    # z' = a z + s w, so that the variance after t moves is a geometric sum.
    a = 1 - precision * s**2 / 2
    variance = a ** (2 * steps) + s**2 * (a ** (2 * steps) - 1) / (a**2 - 1)
    wanted = math.erfc(math.atanh(0.99) / 0.1 / math.sqrt(2 * variance))
    error = math.sqrt(wanted * (1 - wanted) / (4 * chains))
    assert abs(found.snapshots[steps].saturated - wanted) < 4 * error and wanted > 0.9
    assert found.snapshots[0].saturated == 0
    assert found.mixing["R-hat of z, largest"] > 1.1


def test_an_explosion_is_loud() -> None:
    with pytest.raises(Diverged, match=r"blew up between steps \d+ and \d+"):
        transitions(learner(100.0), steps=300, chains=4)


def test_looking_does_not_disturb_the_chains() -> None:
    taught = learner(2.0)
    found = transitions(taught, steps=37, chains=5, seed=4, show=5)
    assert found.times[0] == 0 and found.times[-1] == 37
    z = generate(taught, 5, source="energy", steps=37, seed=4)
    assert torch.equal(found.images[-1], z)
    assert torch.equal(found.images[0], generate(taught, 5, source="gaussian", seed=4))


@pytest.mark.parametrize("steps", [1, 3, 9, 10, 99, 2500, 5000])
def test_the_trace_stays_small(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # arviz is not installed
    found = transitions(learner(1.0), steps=steps, chains=2)
    assert len(found.kept) <= 252 and found.energies.shape == (len(found.kept), 2)
    assert set(found.snapshots) == {0, steps} | {m for m in (100, 200, 1000, 2500) if m <= steps}
    assert found.mixing == {} and "damc[diagnostics]" in found.note


def test_what_has_no_chains() -> None:
    with pytest.raises(BadInput, match="no energy"):
        transitions(learner(None))
    with pytest.raises(BadInput, match="steps must be at least 1"):
        transitions(learner(1.0), steps=0)
    with pytest.raises(BadInput, match="chains must be at least 2, got 1"):
        transitions(learner(1.0), chains=1)


def test_the_command_writes_numbers_and_pictures(damc: Any, copied: Path) -> None:
    done = damc("transitions", copied, "--steps", 210, "--chains", 6)
    assert done.code == 0, done.err
    folder = copied / "transitions" / "210"
    found = json.loads((folder / "results.json").read_text())
    assert list(found["snapshots"]) == [
        "step 0",
        "step 100",
        "step 200",
        "step 210",
        "data, test images",
    ]
    drawn = generate(load(copied), 6, source="gaussian").double()
    assert found["snapshots"]["step 0"]["pixel_mean"] == pytest.approx(
        float(drawn.mean()), rel=1e-5
    )
    data = load_images("digits", split="test").batch(torch.arange(359)).double()
    seen = found["snapshots"]["data, test images"]
    assert seen["pixel_spread"] == pytest.approx(float(data.std()), rel=1e-5)
    assert seen["images"] == 359 and found["mixing"]["R-hat of z, largest"] > 0.9
    for name in ("strips.png", "energies.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG") and name in done.out
    report = (copied / "report.html").read_text()
    assert "Chains of 210 steps" in report and report.count("data:image/png;base64,") == 7
    assert f"{seen['energy_mean']:.4g}" in done.out


def test_bad_input_is_one_sentence(damc: Any, copied: Path) -> None:
    for words in (["--steps", 0], ["--chains", 1], ["--data-root"]):
        done = damc("transitions", copied, *words)
        assert done.code == 2 and "Traceback" not in done.err, done
    done = damc("transitions", copied / "none")
    assert done.code == 2 and "no folder" in done.err
    assert not (copied / "transitions").exists()


def test_any_learner_of_the_family_with_an_energy_will_do() -> None:
    torch.manual_seed(0)
    lebm = LEBM.from_preset("digits-small").eval()
    found = transitions(lebm, steps=10, chains=4, data=load_images("digits"))
    assert list(found.snapshots) == [0, 10]
    with pytest.raises(BadInput, match="no energy"):
        transitions(ABP.from_preset("digits-small"), steps=10, chains=4)
