"""Set-ups sized by the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from damc import DAMC, fit
from damc.errors import BadInput
from damc.learn import find_method
from damc.learn.sizing import preset_for


def test_sigma_and_batch_follow_the_size_and_time_the_number() -> None:
    small, large = preset_for((3, 32, 32), 5000), preset_for((3, 128, 128), 5000)
    assert small.recipe.sigma == 0.3 and large.recipe.sigma == 1.0
    assert (small.batch, large.batch) == (128, 32)
    assert preset_for((3, 512, 512), 5000).recipe.posterior_step_size < 0.05
    few = preset_for((3, 32, 32), 36)
    assert few.batch == 36 and few.iterations == 800 < small.iterations == 3000
    assert few.minutes is not None and small.minutes is not None and few.minutes < small.minutes


@pytest.mark.parametrize("method", ["damc", "vae"])
def test_a_learner_for_data_trains_on_them(method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 3, 8, 12, generator=generator) * 2 - 1
    learner = find_method(method).for_data(x, sigma=0.5)
    assert learner.networks is not None and learner.networks.shape == (3, 8, 12)
    before = {name: w.clone() for name, w in learner.state_dict().items()}
    learner.step(x, torch.arange(20), generator)
    assert any(not torch.equal(w, before[name]) for name, w in learner.state_dict().items())
    assert learner.settings.sigma == 0.5 and learner.reconstruct(x).shape == x.shape


def test_an_array_is_taken_as_it_is() -> None:
    x = torch.rand(12, 1, 9, 11)
    assert DAMC.for_data(x).sample(2).shape == (2, 1, 9, 11)


def test_a_folder_of_any_sizes_is_fitted_for_the_learners_own_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i, side in enumerate((9, 12, 14, 11)):
        Image.fromarray(rng.integers(0, 256, (side, side), np.uint8)).save(tmp_path / f"{i}.png")
    quick = {"posterior_steps": 1, "prior_steps": 1, "updates": 1, "start_steps": 1, "horizon": 2}
    learner = DAMC.for_data(tmp_path, **quick)
    assert learner.networks is not None and learner.networks.shape == (1, 8, 8)
    fit(learner, tmp_path, progress=False)
    assert learner.iteration == 2
    with pytest.raises(BadInput, match="iterations must be given"):
        fit(DAMC.for_data(tmp_path, **{**quick, "horizon": 1}), tmp_path)
