"""The fast path gives the plain transcription's numbers, and never waits for a device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.check import below
from benchmarks.growth import straight_line
from benchmarks.timing import compared, count_flops
from damc import DAMC, Amortizer, EnergyPrior, Langevin, LatentModel
from damc.amortize import amortizer_step
from damc.learn.damc import DAMCSettings
from damc.nets import DownLayer, UpLayer, conv_decoder, conv_encoder, mlp_energy
from tests.reference.learning import PlainDAMC, langevin

QUICK = DAMCSettings(
    sigma=0.5, posterior_steps=3, prior_steps=4, updates=2, start_steps=5, ema_every=2, ema_rate=0.5
)
X = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
INDEX = torch.arange(8)


def make(settings: DAMCSettings = QUICK) -> DAMC:
    torch.manual_seed(0)
    decoder = conv_decoder(4, (UpLayer(2, 4), UpLayer(None, 4, 2)), 1, width=2)
    model = LatentModel(decoder, mlp_energy(4, (6, 6)), 4, settings.sigma)
    encoder = conv_encoder((1, 8, 8), (DownLayer(1, 3), DownLayer(2, 4, 2)), 8, width=2)
    return DAMC(model, Amortizer(4, encoder, embedding=8, widths=(8, 8, 8)), settings)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize(
    "change",
    [{}, {"unconditional": "both"}, {"noise_negatives": False}, {"energy_penalty": 0.1}],
)
def test_an_iteration_is_the_plain_transcription(change: dict[str, Any]) -> None:
    learner = make(replace(QUICK, **change)).double()
    plainly = PlainDAMC(learner)
    x, mine, theirs = X.double(), seeded(), seeded()
    for _ in range(3):
        learner.step(x, INDEX, mine)
        plainly.step(x, theirs)
    assert mine.get_state().equal(theirs.get_state())  # the same draws
    pairs = (
        (learner.model.decoder, plainly.decoder),
        (learner.model.prior.energy, plainly.energy),
        (learner.amortizer, plainly.q),
        (learner.target, plainly.target),
    )
    for ours, plain in pairs:
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):  # type: ignore[union-attr]
            torch.testing.assert_close(a, b.view_as(a), rtol=1e-6, atol=1e-6)


def test_a_wrong_transcription_is_caught() -> None:
    learner = make().double()
    plainly = PlainDAMC(learner)
    plainly.settings = replace(QUICK, prior_step_size=0.39)
    mine, theirs = seeded(), seeded()
    for _ in range(3):  # a first step of Adam knows little but signs
        learner.step(X.double(), INDEX, mine)
        plainly.step(X.double(), theirs)
    energies = zip(
        learner.model.prior.energy.parameters(),  # type: ignore[union-attr]
        plainly.energy.parameters(),  # type: ignore[union-attr]
        strict=True,
    )
    assert any(not a.allclose(b, rtol=1e-6, atol=1e-6) for a, b in energies)


def test_the_prior_chain_is_the_plain_loop() -> None:
    energy = mlp_energy(5, (7, 6)).double()
    z = torch.randn(9, 5, dtype=torch.float64)
    state, _ = Langevin(0.4, 6).run(z, EnergyPrior(energy), seeded())
    slow = langevin(z, lambda z: energy(z) + z.square().sum(1) / 2, 0.4, 6, seeded())
    torch.testing.assert_close(state.z, slow)


class Waits(TorchDispatchMode):
    """Counts the numbers read back from tensors, each of which would stall a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


def waits(thing: Any) -> int:
    with Waits() as mode:
        thing()
    return mode.count


def test_reading_a_number_is_counted() -> None:
    assert waits(lambda: float(torch.ones(())) + torch.ones(()).item()) == 2
    assert waits(lambda: bool(torch.ones(()) > 0)) == 1


def test_a_run_waits_once_however_long_it_is() -> None:
    prior = EnergyPrior(mlp_energy(3, (4,)))
    z = torch.zeros(2, 3)
    assert [waits(lambda n=n: Langevin(0.1, n).run(z, prior)) for n in (1, 50)] == [1, 1]


@pytest.mark.parametrize("solver", ["ancestral", "ddim", "multistep"])
def test_sampling_never_waits(solver: str) -> None:
    q = Amortizer(2, nn.Identity(), embedding=4, widths=(8, 8, 8))
    assert waits(lambda: q.sample(x=torch.ones(3, 4), solver=solver, steps=6)) == 0


@pytest.mark.parametrize("decay", ["step", "cosine"])
def test_an_iteration_waits_only_for_the_verdict_on_its_two_chains(decay: str) -> None:
    learner = make(replace(QUICK, decay=decay, horizon=9))
    learner.step(X, INDEX, seeded())
    # The EMA copy's counter is read too, on the CPU wherever the weights are: no wait.
    assert waits(lambda: learner.step(X, INDEX, seeded())) - waits(learner.ema.update) == 2


def test_updates_without_the_encoder_share_one_pass_and_leave_it_alone() -> None:
    learner = make(replace(QUICK, updates=5, encoder_updates=2, p_uncond=0.25))
    encoder, rows = learner.amortizer.encoder, []
    assert encoder is not None
    hook = encoder.register_forward_hook(lambda module, x, y: rows.append(len(x[0])))
    z = torch.randn(8, 4)
    amortizer_step(
        learner.amortizer,
        z,
        X,
        step=partial(learner.update, "amortizer"),
        updates=5,
        p_uncond=0.25,
        encoder_updates=2,
        generator=seeded(),
    )
    hook.remove()
    assert rows == [8, 6, 6]
    before = [p.detach().clone() for p in encoder.parameters()]
    loss = learner.amortizer.loss(z, X, embedded=learner.amortizer.embed(X).detach())
    learner.update("amortizer", loss)
    assert all(p.equal(old) for p, old in zip(encoder.parameters(), before, strict=True))


def test_all_encoder_updates_is_none_left_out() -> None:
    ends = []
    for count in (None, 2, 9):
        learner = make(replace(QUICK, encoder_updates=count))
        learner.step(X, INDEX, seeded())
        ends.append([p.detach().clone() for p in learner.amortizer.parameters()])
    assert all(a.equal(b) and a.equal(c) for a, b, c in zip(*ends, strict=True))


def test_flops_are_counted_with_and_without_a_graph() -> None:
    a, layer = torch.randn(3, 4), nn.Linear(4, 5)
    assert count_flops(lambda: layer(a)) == 2 * 3 * 4 * 5

    def inference() -> None:
        with torch.inference_mode():
            layer(a)

    assert count_flops(inference) == 2 * 3 * 4 * 5


def test_a_line_is_fitted() -> None:
    a, b, residual = straight_line((1, 2, 4), [3.0, 5.0, 9.0])
    assert a == pytest.approx(1) and b == pytest.approx(2) and residual < 1e-9


def test_floors_fail_only_beyond_the_noise() -> None:
    rows = [
        {"what": "a", "times faster": 1.9, "quartiles": [1.8, 2.1]},
        {"what": "b", "times faster": 1.9, "quartiles": [1.8, 1.95]},
    ]
    assert below(rows, {"a": 2.0, "b": 1.5}) == []
    (sentence,) = below(rows, {"a": 2.0, "b": 2.0})
    assert sentence.startswith("b: 1.9 times faster")
    assert "not measured" in below(rows, {"c": 1.0})[0]


def test_a_comparison_names_the_first_as_its_measure() -> None:
    table = compared("sum", {"slow": lambda: None, "fast": lambda: None}, 3, {"slow": 10})
    assert table[0]["times faster"] == 1.0 and table[1]["what"] == "sum: fast"
