"""Chains on the prior of every method with an energy, and the numbers that are printed."""

from __future__ import annotations

import pytest
import torch

from damc.data import load_images
from damc.errors import BadInput
from damc.learn import LEARNERS, find_method
from damc.randomness import global_seed
from damc.tasks.transitions import _mixing, transitions


@pytest.mark.parametrize("method", ["damc", "lebm", "vi-lebm", "ncp-vae"])
def test_every_learned_energy_has_chains(method: str) -> None:
    with global_seed(0):
        learner = find_method(method).from_preset("digits-small").eval()
    found = transitions(learner, steps=20, chains=3, data=load_images("digits", split="test"))
    assert list(found.rows()) == ["step 0", "step 20", "data"]
    assert torch.isfinite(found.energies).all() and found.energies.shape[1] == 3
    # They move on the learned prior: the same chains as those of the source "energy".
    assert found.step_size == learner.settings.prior_step_size


@pytest.mark.parametrize("method", ["abp", "vae", "meg", "rae", "damc-g"])
def test_without_an_energy_there_are_none(method: str) -> None:
    assert method in LEARNERS
    learner = find_method(method).from_preset("digits-small")
    with pytest.raises(BadInput, match=f"must have a prior with an energy, got {method}"):
        transitions(learner, steps=1, chains=2)


def test_no_ess_exceeds_the_number_of_points() -> None:
    pytest.importorskip("arviz")
    from damc.metrics.chains import ess

    # Antithetic: z' = -0.8 z + noise, whose mean is known better than from independent points.
    generator = torch.Generator().manual_seed(0)
    z, trace = torch.randn(8, 2, generator=generator), []
    for _ in range(200):
        z = -0.8 * z + 0.6 * torch.randn(8, 2, generator=generator)
        trace.append(z)
    points, energies = torch.stack(trace), torch.stack(trace)[..., 0]
    kept = 100 * 8
    assert float(ess(points[100:]).min()) == kept  # capped: arviz says more
    mixing, note = _mixing(points, energies)
    assert note == "" and mixing["kept points"] == kept
    for name, value in mixing.items():
        if name.startswith("ESS"):
            assert value == kept, name
