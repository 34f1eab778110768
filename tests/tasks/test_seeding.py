"""Initial weights by a seed: the same again, and torch's global random state as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from damc.data import load_images
from damc.inversion.gan_training import plan_gan
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.training import InversionTraining
from damc.learn.presets import find_preset
from damc.paper.training import Budget, train
from damc.seeds import global_seed
from damc.tasks.training import Training
from damc.train.origin import Origin

TINY = {
    "posterior_steps": 1,
    "prior_steps": 1,
    "updates": 1,
    "start_steps": 1,
    "test_steps": 1,
    "prior_sample_steps": 1,
}


def a_preset(folder: Path) -> None:
    origin = Origin("digits", (1, 8, 8))
    loop = {"progress": False}
    Training(find_preset("digits-small"), folder, 1, origin, batch=2, changes=TINY, loop=loop).run()


def a_gan(folder: Path) -> None:
    sizes = {"size": 8, "width": 4, "widest": 4, "style": 4}
    plan_gan("digits", folder, 1, **sizes, batch=4, samples=4, loop={"progress": False}).run()


def an_inversion(folder: Path) -> None:
    with global_seed(0):
        decoder = StyleDecoder(8, 1, latent_dim=4, style=4, base=32, widest=4, mapping_layers=1)
    InversionTraining(
        decoder,
        folder,
        1,
        Origin("digits", (1, 8, 8)),
        batch=4,
        networks={"amortizer": {"embedding": 8, "capacity": 0.1}},
        loop={"progress": False},
    ).run()


def a_cell(folder: Path) -> None:
    images = load_images("digits")
    train(find_preset("digits-small"), "damc", images, folder, Budget(1), batch=2, changes=TINY)


@pytest.mark.parametrize("training", [a_preset, a_gan, an_inversion, a_cell])
def test_training_leaves_torchs_global_random_state_alone(
    training: Callable[[Path], None], tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    training(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_decides_the_weights() -> None:
    with global_seed(3):
        one = nn.Linear(4, 4)
    torch.rand(5)
    with global_seed(3):
        two = nn.Linear(4, 4)
    with global_seed(4):
        three = nn.Linear(4, 4)
    assert torch.equal(one.weight, two.weight) and not torch.equal(one.weight, three.weight)


def test_the_state_comes_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), global_seed(0):
        torch.rand(1)
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), before)
