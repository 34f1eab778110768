"""Distillation: M steps of q, and that the divergence to the target falls as the paper says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import MALA, Amortizer, BadInput, Diverged, Langevin, distill
from damc.amortize import amortizer_step

SMALL = {"widths": (32, 64, 64), "embedding": 16}


def make(context: int | nn.Module | None = None, **options: object) -> Amortizer:
    torch.manual_seed(0)
    return Amortizer(2, context, **{**SMALL, **options})  # type: ignore[arg-type]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def recorded(q: Amortizer, **options: object) -> tuple[list[float], Tensor, Tensor]:
    """The losses that `amortizer_step` descends, with a step that counts instead of learning."""
    losses: list[float] = []

    def step(loss: Tensor) -> Tensor:
        losses.append(loss.item())
        return torch.tensor(float(len(losses)))

    z, x = torch.linspace(-1, 1, 16).view(8, 2), torch.linspace(-1, 1, 24).view(8, 3)
    given = {"step": step, "p_uncond": 0.25, "generator": seeded(), "updates": 3, **options}
    return losses, *amortizer_step(q, z, None if q.encoder is None else x, **given)  # type: ignore[arg-type]


def gaussian_kl(z: Tensor, mean: Tensor, sd: float) -> float:
    """KL(q || N(mean, sd^2 I)) with q taken as the Gaussian of its sample's moments."""
    cov, shift = torch.cov(z.T.double()), (z.mean(0) - mean).double()
    d = len(mean)
    trace = cov.trace() / sd**2
    return float(
        (
            trace
            + shift.square().sum() / sd**2
            - d
            - torch.logdet(cov)
            + 2 * d * torch.tensor(sd).log()
        )
        / 2
    )


def test_the_steps_of_q_are_its_losses_in_turn() -> None:
    q, generator = make(3), seeded()
    z, x = torch.linspace(-1, 1, 16).view(8, 2), torch.linspace(-1, 1, 24).view(8, 3)
    expected = [q.loss(z, x, p_uncond=0.25, generator=generator).item() for _ in range(3)]
    losses, loss, norm = recorded(q)
    assert losses == expected and float(loss) == losses[-1] and float(norm) == 3
    assert not loss.requires_grad
    generator = seeded()
    expected = [
        sum(q.loss(z, x, p_uncond=p, generator=generator).item() for p in (0.0, 1.0))
        for _ in range(3)
    ]
    assert recorded(q, unconditional="both")[0] == pytest.approx(expected, rel=1e-6)
    alone, generator = make(), seeded()
    expected = [alone.loss(z, generator=generator).item() for _ in range(3)]
    for unconditional in ("share", "both"):  # without x there is q(z) alone to train
        assert recorded(alone, unconditional=unconditional)[0] == expected


@pytest.mark.parametrize(("encoder_updates", "learning"), [(None, 3), (9, 3), (1, 1), (0, 0)])
def test_the_encoder_learns_in_the_last_steps_of_q(
    encoder_updates: int | None, learning: int
) -> None:
    q = make(3)
    passes, learned = [], []
    assert q.encoder is not None
    q.encoder.register_forward_hook(lambda module, x, y: passes.append(len(x[0])))

    def step(loss: Tensor) -> Tensor:
        learned.append(torch.autograd.grad(loss, q.encoder[0].weight, allow_unused=True)[0])  # type: ignore[index, union-attr]
        return loss

    recorded(q, step=step, encoder_updates=encoder_updates)
    assert [grad is not None for grad in learned] == [False] * (3 - learning) + [True] * learning
    assert passes == [8] * (learning < 3) + [6] * learning  # one pass for all that share it


def test_the_divergence_falls_round_by_round_and_not_without_moves() -> None:
    """The paper's appendix A: KL(q_k || pi) never rises; q here is fitted well in each round."""
    mean, sd = torch.tensor([1.5, -1.0]), 0.6
    few = {"solver": "multistep", "steps": 12}

    def target(z: Tensor) -> Tensor:
        return -(z - mean).square().sum(1) / (2 * sd**2)

    def rounds(steps: int) -> list[float]:
        q = make(widths=(64, 64, 64))
        generator = torch.Generator().manual_seed(0)
        values = []
        for k in range(4):  # the first round teaches q its start, N(0, I)
            distill(
                q, target, Langevin(0.2), steps=steps if k else 0, warm=k > 0, iterations=1,
                batch=1000, updates=80 if k == 0 else 50, ema=1.0, learning_rate=2e-3,
                sampling=few, generator=generator, progress=False,
            )  # fmt: skip
            values.append(gaussian_kl(q.sample(4000, **few, generator=seeded()), mean, sd))
        return values

    moving, still = rounds(6), rounds(0)
    assert all(after < before - 0.3 for before, after in itertools.pairwise(moving))
    assert min(still) > moving[1]


def test_distill_learns_a_conditional_gaussian(generator: torch.Generator) -> None:
    """q(z | x) for z | x ~ N(x, 0.5^2): the mean follows x, the spread is the target's."""

    def target(z: Tensor, x: Tensor) -> Tensor:
        return -(z - x).square().sum(1) / (2 * 0.5**2)

    q = make(2, widths=(64, 64, 64), embedding=32)
    history = distill(
        q, target, Langevin(0.25, 10), iterations=60, batch=256, updates=6, ema=0.5,
        contexts=torch.randn(2000, 2, generator=generator), learning_rate=3e-3,
        sampling={"solver": "multistep", "steps": 8}, generator=generator, progress=False,
    )  # fmt: skip
    x = torch.tensor([[1.0, -1.0], [-0.5, 0.5]])
    z = q.sample(2000, x=x, steps=50, generator=generator)
    assert (z.mean(0) - x).abs().max() < 0.2
    assert (z.std(0) - 0.5).abs().max() < 0.15
    assert len(history.loss) == 60 and history.gradient_calls == 60 * 256 * 10
    assert history.displacement[-1] > 0 and history.acceptance[-1] == 1


def test_distill_takes_any_iterable_of_contexts_and_adapts_mala(generator: torch.Generator) -> None:
    q = make(2)
    seen = []
    kernel = MALA(0.01, 5, target_acceptance=0.574)
    history = distill(
        q,
        lambda z, x: -(z - x).square().sum(1),
        kernel,
        contexts=[torch.zeros(20, 2), torch.ones(30, 2)],
        iterations=5,
        updates=1,
        sampling={"steps": 2},
        generator=generator,
        progress=False,
        callback=lambda k, copy: seen.append((k, copy is q)),
    )
    assert history.gradient_calls == 6 * (20 + 30 + 20 + 30 + 20)
    assert seen == [(k, False) for k in range(5)]
    assert history.acceptance[-1] < history.acceptance[0]  # the step size went on growing


def test_distill_repeats_bit_for_bit() -> None:
    ends = []
    for _ in range(2):
        q = make()
        distill(
            q, lambda z: -z.square().sum(1), Langevin(0.1, 2), iterations=2, batch=8,
            sampling={"steps": 2}, generator=seeded(), progress=False,
        )  # fmt: skip
        ends.append(q.sample(4, steps=3, generator=seeded()))
    assert ends[0].equal(ends[1])


def test_a_log_density_that_blows_up_is_named() -> None:
    with pytest.raises(Diverged, match="log-density"):
        distill(
            make(), lambda z: (z[:, 0] - 99).log(), Langevin(0.1, 3), iterations=1, progress=False
        )


Q = make(3)


@pytest.mark.parametrize(
    ("make_error", "words"),
    [
        (lambda: recorded(Q, updates=0), "updates must be at least 1"),
        (lambda: recorded(Q, encoder_updates=-1), "encoder_updates not negative"),
        (lambda: recorded(Q, unconditional="none"), "unconditional must be"),
        (lambda: distill(Q, lambda z: z, Langevin(), iterations=0), "at least 1"),
        (lambda: distill(Q, lambda z: z, Langevin(), iterations=1), "has a context"),
    ],
)
def test_bad_input_is_one_clear_sentence(make_error: Callable[[], Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_error()
