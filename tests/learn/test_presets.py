"""Presets: the paper's sizes to the last parameter, and one iteration of each."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from damc import DAMC, BadInput
from damc.learn.presets import DEMO, PRESETS, find_preset
from damc.learn.sharing import count
from damc.train.loading import build

# Parameters of the decoder, the energy, the denoiser and the encoder in the authors' code.
PAPER = {
    "svhn": (3_447_683, 60_601, 3_066_424, 11_146_752),
    "celeba64": (12_656_515, 60_601, 3_066_424, 15_342_592),
    "cifar10": (18_883_075, 66_201, 3_143_424, 11_146_752),
    "celebahq256": (52_963_715, 66_201, 3_143_424, 20_587_776),
    "mnist": (10_891_265, 42_201, 2_841_024, 20_455_168),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_have_the_papers_sizes(name: str) -> None:
    with torch.device("meta"):
        learner = DAMC.from_preset(name)
    q, model = learner.amortizer, learner.model
    parts = (model.decoder, model.prior.energy, q.denoiser, q.encoder)
    assert tuple(count(part.parameters()) for part in parts if part is not None) == PAPER[name]


def test_the_noise_null_condition_has_the_papers_size() -> None:
    networks = replace(find_preset("svhn").networks, amortizer={"null": "noise"})
    with torch.device("meta"):
        learner = DAMC.from_preset(replace(find_preset("svhn"), networks=networks))
    assert count(learner.amortizer.null.parameters()) == 146_048 - 1024  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "celebahq256"])
def test_one_iteration_of_every_preset_runs(name: str) -> None:
    one = {"posterior_steps": 1, "prior_steps": 1, "updates": 1, "start_steps": 1}
    learner = DAMC.from_preset(name, **one)
    shape = find_preset(name).networks.shape
    metrics = learner.check(learner.step(torch.zeros(2, *shape), torch.arange(2)))
    assert metrics["mse"] >= 0
    assert learner.reconstruct(torch.zeros(1, *shape), steps=1).shape == (1, *shape)


@pytest.mark.slow
def test_one_whole_iteration_of_the_largest_preset_runs() -> None:
    learner = DAMC.from_preset("celebahq256")
    metrics = learner.check(learner.step(torch.zeros(2, 3, 256, 256), torch.arange(2)))
    assert metrics["mse"] >= 0


@pytest.mark.parametrize("name", ["digits-small", "mnist"])
def test_a_configuration_survives_json(name: str) -> None:
    with torch.device("meta"):
        learner = DAMC.from_preset(name, sigma=0.7)
        config = json.loads(json.dumps(learner.config))
        again = build({"learner": "damc", "config": config})
    assert json.loads(json.dumps(again.config)) == config
    shapes = {key: value.shape for key, value in learner.state_dict().items()}
    assert shapes == {key: value.shape for key, value in again.state_dict().items()}


def test_the_demo_is_a_preset() -> None:
    data, preset, iterations = DEMO
    assert preset in PRESETS and iterations > 0 and data in ("digits", "mnist-5k")


def test_unknown_names_are_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="did you mean 'mnist-small'"):
        find_preset("mnist-smal")
    with pytest.raises(BadInput, match="no preset 'zzz'"):
        find_preset("zzz")
    with pytest.raises(BadInput, match="no setting 'sigmma'; did you mean 'sigma'"):
        DAMC.from_preset("digits-small", sigmma=1)
