"""Noise for the rows of a batch: their own, or shared by all."""

from __future__ import annotations

import torch

from damc import DAMC, Amortizer
from damc.learn import VAE
from damc.noise import SharedNoise, normal, normal_like


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
