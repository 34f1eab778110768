"""Preconditioning: a kernel with a scale is the kernel in whitened coordinates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from damc import HMC, MALA, BadInput, Gaussian, Independence, Kernel, Langevin, Underdamped

FACTOR = torch.tensor([[3.0, 0.0], [0.29, 0.01]], dtype=torch.float64)  # correlation 0.9994
PRECISION = torch.linalg.inv(FACTOR @ FACTOR.T)
KERNELS = [
    Langevin(0.4, 6),
    MALA(0.9, 6),
    HMC(0.7, 6, leapfrogs=3),
    Underdamped(0.5, 6),
]


def narrow(z: Tensor) -> Tensor:
    """Not quite Gaussian, so that every term of a move counts."""
    v = torch.linalg.solve_triangular(FACTOR, z.T, upper=False).T
    return -v.square().sum(1) / 2 - v[:, 0].pow(4) / 8


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_a_dense_scale_is_the_kernel_in_whitened_coordinates(kernel: Kernel) -> None:
    v = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain, info = kernel.run(v, lambda v: narrow(v @ FACTOR.T), torch.Generator().manual_seed(2))
    scaled, same = replace(kernel, scale=FACTOR).run(
        v @ FACTOR.T, narrow, torch.Generator().manual_seed(2)
    )
    torch.testing.assert_close(scaled.z, plain.z @ FACTOR.T, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(same.acceptance, info.acceptance)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
def test_scales_and_step_sizes_by_dimension_are_one_thing(kernel: Kernel) -> None:
    """z = diag(s) v: a diagonal scale, the same as a matrix, and as step sizes if it is fixed."""
    sds = torch.tensor([2.0, 0.3], dtype=torch.float64)
    z = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(kernel: Kernel) -> Tensor:
        def target(z: Tensor) -> Tensor:
            return -(z / sds).square().sum(1) / 2

        return kernel.run(z, target, torch.Generator().manual_seed(2))[0].z

    diagonal = run(replace(kernel, scale=sds))
    torch.testing.assert_close(diagonal, run(replace(kernel, scale=torch.diag(sds))))
    if not isinstance(kernel, Underdamped):  # whose friction counts time in steps
        sizes = float(kernel.step_size) * sds[None]
        torch.testing.assert_close(diagonal, run(replace(kernel, step_size=sizes)))


def test_a_scale_makes_a_narrow_target_easy(generator: torch.Generator) -> None:
    """From far away to sds of 3 and 0.01 at correlation 0.9994; without the scale nothing moves."""

    def target(z: Tensor) -> Tensor:
        return -((z @ PRECISION) * z).sum(1) / 2

    def worst(kernel: Kernel) -> float:
        z = (
            torch.randn(4000, 2, dtype=torch.float64, generator=generator) @ FACTOR.T
            + 5 * FACTOR[:, 0]
        )
        state, _ = kernel.run(z, target, generator)
        v = torch.linalg.solve_triangular(FACTOR, state.z.T, upper=False).T
        error = v.mean(0).abs() * math.sqrt(len(v))
        spread = (v.var(0) - 1).abs() * math.sqrt(len(v) / 2)
        return float(torch.maximum(error, spread).max())

    for kernel in (MALA(0.1, 80), HMC(0.1, 40)):
        assert worst(replace(kernel, scale=FACTOR)) < 4.5
        assert worst(kernel) > 20


def test_jumps_with_a_scaled_local_kernel_keep_momentum(generator: torch.Generator) -> None:
    def target(z: Tensor) -> Tensor:
        return -((z @ PRECISION) * z).sum(1) / 2

    z = torch.randn(40_000, 2, dtype=torch.float64, generator=generator) @ FACTOR.T
    proposal = Gaussian(2, covariance=1.5 * FACTOR @ FACTOR.T)
    local = Underdamped(1.0, 1, scale=FACTOR)
    state, _ = Independence(steps=20, proposal=proposal, local=local).run(z, target, generator)
    v = torch.linalg.solve_triangular(FACTOR, state.z.T, upper=False).T
    assert (v.var(0) - 1).abs().max() < 4 * math.sqrt(2 / len(v))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MALA(scale=torch.ones(2, 3)), r"scale must be .* got shape \(2, 3\)"),
        (lambda: MALA(scale=torch.zeros(2)), "not 0"),
        (
            lambda: HMC(scale=torch.ones(3)).run(torch.zeros(4, 2), narrow),
            r"scale has 3 dimensions for points \(4, 2\)",
        ),
        (
            lambda: MALA(torch.ones(3, 2)).run(torch.zeros(4, 2), narrow),
            "3 step sizes for 4 chains",
        ),
    ],
)
def test_bad_input_is_one_clear_sentence(make: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()  # type: ignore[operator]
