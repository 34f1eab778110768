"""Seeds are independent of each other, and nobody keeps torch's own random state."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import DAMC, Amortizer
from damc.data import load_images
from damc.inversion.gan import GANSettings, GANSizes
from damc.inversion.gan_training import GANTraining
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.training import InversionTraining
from damc.learn import VAE
from damc.learn.presets import find_preset
from damc.paper.training import Budget, train
from damc.randomness import SharedNoise, derive_seed, global_seed, normal, normal_like
from damc.tasks.training import Training
from damc.train.origin import Origin


def test_no_two_uses_of_a_seed_share_a_stream() -> None:
    uses = [
        derive_seed(seed, purpose, *numbers)
        for seed in (0, 1, 2, -1, 2**40)
        for purpose in ("step", "order")
        for numbers in ((), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert len(set(uses)) == len(uses)
    assert uses[0] == derive_seed(0, "step")  # it is a function
    assert all(0 <= seed < 2**64 for seed in uses)


def test_neighboring_seeds_are_uncorrelated() -> None:
    """Every bit of 4,000 consecutive seeds is a fair coin, within 4.5 standard errors."""
    n = 4000
    seeds = torch.tensor([derive_seed(0, "step", k) - 2**63 for k in range(n)])
    bits = (seeds[:, None] >> torch.arange(64)) & 1
    assert bool(((bits.double().mean(0) - 0.5).abs() < 4.5 * 0.5 / n**0.5).all())
    # The comparison has power: the numbers themselves fail it.
    plain = (torch.arange(n)[:, None] >> torch.arange(64)) & 1
    assert not bool(((plain.double().mean(0) - 0.5).abs() < 4.5 * 0.5 / n**0.5).all())


def test_the_global_state_is_seeded_and_given_back() -> None:
    before = torch.get_rng_state()
    with global_seed(3):
        drawn = torch.rand(4)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(KeyError), global_seed(3):
        assert torch.equal(drawn, torch.rand(4))
        raise KeyError
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(4))


class Stop(Exception):
    """Raised in place of training."""


DIGITS = Origin("digits", (1, 8, 8))


def _decoder() -> StyleDecoder:
    with global_seed(0):
        return StyleDecoder(8, 1, latent_dim=4, style=4, base=64, widest=4, mapping_layers=2)


CALLERS: dict[str, Callable[[Path], Any]] = {
    "damc.tasks.training": lambda folder: Training(
        find_preset("digits-small"), folder, 1, DIGITS
    ).run(),
    "damc.paper.training": lambda folder: train(
        find_preset("digits-small"), "damc", load_images("digits"), folder, Budget(iterations=1)
    ),
    "damc.inversion.gan_training": lambda folder: GANTraining(
        GANSizes((1, 8, 8)), GANSettings(), folder, 1, DIGITS
    ).run(),
    "damc.inversion.training": lambda folder: InversionTraining(
        _decoder(), folder, 1, DIGITS
    ).run(),
}


@pytest.mark.parametrize("module", CALLERS)
def test_whoever_trains_leaves_the_random_state_alone(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[dict[str, Tensor]] = []

    def fit(learner: nn.Module, *args: Any, **options: Any) -> None:
        built.append({k: v.clone() for k, v in learner.state_dict().items()})
        raise Stop

    monkeypatch.setattr(importlib.import_module(module), "fit", fit)
    before = torch.get_rng_state()
    with pytest.raises(Stop):
        CALLERS[module](tmp_path)
    assert len(built) == 1
    assert torch.equal(before, torch.get_rng_state())


def shared(seed: int = 0) -> SharedNoise:
    generator = SharedNoise()
    generator.manual_seed(seed)
    return generator


def test_shared_noise_is_one_row_and_leaves_its_law_alone() -> None:
    noise = normal(4, 3, 20_000, generator=shared())
    assert bool((noise == noise[:, :1]).all()) and not bool((noise[0] == noise[1]).all())
    assert abs(float(noise.mean())) < 4 / 80_000**0.5
    assert abs(float(noise[:, 0].square().mean()) - 1) < 4 * (2 / 80_000) ** 0.5
    g = shared()
    assert not torch.equal(normal(2, 3, generator=g), normal(2, 3, generator=g))


def test_a_plain_generator_draws_as_torch_does() -> None:
    def g() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    assert torch.equal(normal(5, 7, generator=g()), torch.randn(5, 7, generator=g()))
    z = torch.zeros(4, 6, dtype=torch.float64)
    assert torch.equal(normal_like(z, g()), torch.empty_like(z).normal_(generator=g()))


def test_inference_under_shared_noise_sees_a_row_alone() -> None:
    """By an amortizer of either kind of solver, by chains and by an encoder; a plain generator
    gives rows noise of their own."""
    torch.manual_seed(0)
    x = torch.rand(3, 1, 8, 8) * 2 - 1
    learner, vae = DAMC.from_preset("digits-small").eval(), VAE.from_preset("digits-small").eval()
    q = Amortizer(2, context=3, solver="ancestral", steps=4, null="noise", guidance=0.5)
    draws = {
        "first sight": lambda x, g: learner.reconstruct(x, refine=False, generator=g).flatten(1),
        "refined": lambda x, g: learner.infer(x, source="gaussian", generator=g),
        "bound": lambda x, g: vae.anomaly_score(x, generator=g),
        "ancestral": lambda x, g: q.sample(x=x[:, 0, 0, :3], generator=g),
    }
    for name, draw in draws.items():
        together = draw(x, shared())
        torch.testing.assert_close(draw(x.flip(0), shared()).flip(0), together, msg=name)
        torch.testing.assert_close(draw(x[1:2], shared()), together[1:2], msg=name)
        plain = [draw(part, torch.Generator().manual_seed(0)) for part in (x, x.flip(0))]
        assert not torch.allclose(plain[0], plain[1].flip(0), rtol=1e-3), name
