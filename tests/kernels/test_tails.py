"""Heavy tails: the radial map, the tilt and its weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.kernels.base import State
from damc.kernels.tails import Radial, Tilted, tail_index

D = torch.float64


def student(n: int, d: int, nu: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(n, d, dtype=D, generator=g)
    return w / torch.randn(n, nu, dtype=D, generator=g).square().mean(1, keepdim=True).sqrt()


def log_student(z: Tensor) -> Tensor:
    return -(3 + z.shape[1]) / 2 * torch.log1p(z.square().sum(1) / 3)


@pytest.fixture
def radial() -> Radial:
    factor = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.3, 0.2, 4.0]], dtype=D)
    return Radial(torch.tensor([1.0, -2.0, 3.0], dtype=D), factor)


def test_the_map_has_its_inverse_and_its_determinant(radial: Radial) -> None:
    v = 4 * torch.randn(5, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    v[0] = 1e-9
    assert torch.allclose(radial.inverse(radial(v)), v)
    for row in v[1:]:
        jacobian = torch.autograd.functional.jacobian(lambda r: radial(r[None])[0], row)
        expected = torch.linalg.slogdet(jacobian)[1]
        assert radial.log_det(row[None])[0] == pytest.approx(float(expected))


def test_gradients_are_those_of_autograd_and_go_back(radial: Radial) -> None:
    v = 3 * torch.randn(6, 3, dtype=D, generator=torch.Generator().manual_seed(1))
    own = radial.target(log_student).value_and_grad(v)
    plain = value_and_grad(lambda v: log_student(radial(v)) + radial.log_det(v), v)
    assert torch.allclose(own[0], plain[0]) and torch.allclose(own[1], plain[1])
    z = radial(v)
    state = State(z, *value_and_grad(log_student, z))
    back = radial.to_z(radial.to_v(state))
    assert all(torch.allclose(a, b) for a, b in zip(back[:3], state[:3], strict=True))


def test_a_power_law_becomes_an_exponential_one(radial: Radial) -> None:
    z = student(50_000, 4, 2)
    fitted = Radial.fit(z)
    assert fitted is not None
    assert tail_index(z) > 0.4 > 0.25 > tail_index(fitted.inverse(z))
    assert Radial.fit(torch.zeros(100, 2, dtype=D)) is None


def test_a_tilt_changes_value_gradient_and_weights_alike(radial: Radial) -> None:
    z = student(7, 3, 3)
    tilted = Tilted(log_student, radial, 1.5)
    value, grad = tilted.value_and_grad(z)
    expected = value_and_grad(lambda z: log_student(z) - tilted.log_weights(z), z)
    assert torch.allclose(value, expected[0]) and torch.allclose(grad, expected[1])
    assert float(tilted.log_weights(radial.center[None])) == 0
    far = tilted.log_weights((radial.center + 1e6 * radial.factor[:, 0])[None])
    assert float(far) == pytest.approx(-1.5 * math.log(1e6 / math.sqrt(3)), rel=1e-6)
