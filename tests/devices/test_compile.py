"""What runs on every step traces as one graph, and computes in 16 bits where the machine can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from damc import HMC, MALA, Amortizer, Langevin
from damc.diffusion.denoiser import VectorDenoiser
from damc.fast.gradients import is_plain
from damc.kernels.base import State
from damc.learn import find_method

pytestmark = pytest.mark.slow  # the tracer alone takes seconds to import


def graphs(function: Any, *arguments: Any) -> int:
    """Traces a function as one graph, which raises where it breaks; gives the number of graphs."""
    seen: list[Any] = []

    def count(module: Any, example: Any) -> Any:
        seen.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=count, fullgraph=True)(*arguments)
    return len(seen)


def test_the_denoiser_is_one_graph() -> None:
    q = Amortizer(4, 3, capacity=0.25)
    assert isinstance(q.denoiser, VectorDenoiser) and all(map(is_plain, q.denoiser.modules()))
    z, angle, x = torch.randn(5, 4), torch.rand(5), torch.randn(5, 3)
    condition = q.embed(x).detach()
    plain = q.denoiser(z, angle, condition)
    compiled = torch.compile(q.denoiser, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(z, angle, condition), plain)
    assert graphs(q.denoiser, z, angle, condition) == 1


def gaussian(z: Tensor) -> Tensor:
    return -z.square().sum(1) / 2


def energy_of(z: Tensor) -> tuple[Tensor, Tensor]:
    return gaussian(z), -z


@pytest.mark.parametrize("kind", [Langevin, MALA, HMC])
def test_a_move_of_a_chain_is_one_graph(kind: Any) -> None:
    """The move with the gradient given: in closed form, as `value_and_grad` of a target."""
    kernel = kind(0.1, 1)

    class Target:
        def __call__(self, z: Tensor) -> Tensor:
            return gaussian(z)

        value_and_grad = staticmethod(energy_of)

    target = Target()

    def move(z: Tensor) -> Tensor:
        state, _ = kernel.step(State(z, step_size=0.1), target, None)
        moved: Tensor = state.z
        return moved

    assert graphs(move, torch.randn(6, 3)) == 1


def test_a_break_is_caught() -> None:
    def broken(z: Tensor) -> Tensor:
        return z * 2 if float(z.sum().item()) > 0 else z

    with pytest.raises(Exception, match="(?i)graph break|data.dependent|unsupported|item"):
        graphs(broken, torch.ones(3))


@pytest.fixture
def place() -> Any:
    from damc.errors import BadInput
    from damc.train.devices import open_place

    try:
        return open_place("cpu", 1, "bf16-mixed")
    except BadInput as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("method", ["damc", "lebm", "abp", "meg"])
def test_the_whole_loop_computes_in_16_bits_where_the_machine_can(place: Any, method: str) -> None:
    """Chains, updates and watch under autocast; weights and samples stay in 32 bits."""
    from damc import fit

    learner = find_method(method).from_preset("digits-small", horizon=6)
    fit(learner, "digits", iterations=6, batch=12, precision="bf16-mixed", progress=False)
    assert {p.dtype for p in learner.parameters()} == {torch.float32}
    assert all(bool(p.isfinite().all()) for p in learner.parameters())
    assert bool(learner.sample(4).isfinite().all())
    assert learner.history[-1]["iteration"] == 6


def test_an_iteration_computes_in_16_bits_where_the_machine_can(place: Any) -> None:
    learner = find_method("vae").from_preset("digits-small").train()
    x = torch.rand(8, 1, 8, 8) * 2 - 1
    with place.autocast():
        metrics = learner.step(x, torch.arange(8), torch.Generator().manual_seed(0))
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert {p.dtype for p in learner.parameters()} == {torch.float32}
