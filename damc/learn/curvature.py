"""How far posteriors spread on average, from the decoder's derivatives: a preconditioner."""

from __future__ import annotations

__all__ = ["posterior_factor"]

import torch
from torch import Tensor

from damc.errors import Diverged
from damc.latent import LatentModel
from damc.learn.processes import mean_of_all
from damc.randomness import normal_like


def posterior_factor(
    model: LatentModel, z: Tensor, generator: torch.Generator | None, *, probes: int = 8
) -> Tensor:
    """L with L L^T = (I + E[J^T J] / sigma^2)^-1, lower triangular, ``(d, d)``.

    J is the decoder's Jacobian, and I + J^T J / sigma^2 the Gauss-Newton approximation to the
    curvature of -log p(z | x) under the prior N(0, I). E is a mean over points. As E[e e^T] = I for
    e ~ N(0, I), J^T J is the mean of (J^T e) (J^T e)^T: one pass back through the decoder for each
    of a few e is enough.

    Args:
        model: the decoder and sigma.
        z: points, ``(B, d)``, such as samples of posteriors.
        generator: source of all randomness.
        probes: how many e for each point.

    Raises:
        Diverged: if the decoder's derivatives are not finite.
    """
    z = z.detach().requires_grad_()
    image = model.decoder(z)
    outer = z.new_zeros(z.shape[1], z.shape[1])
    for k in range(probes):
        e = normal_like(image, generator, dim=0)
        (row,) = torch.autograd.grad(image, z, e, retain_graph=k < probes - 1)
        outer += row.mT @ row / (probes * len(z))
    one = torch.eye(len(outer), dtype=z.dtype, device=z.device)
    precision = one + mean_of_all(outer) / model.sigma**2
    if not bool(precision.isfinite().all()):
        raise Diverged("the decoder's derivatives are not finite")
    # With U U^T = precision, U upper triangular, U^-T is the factor: no inverse is formed.
    upper = torch.linalg.cholesky(precision.flip(0, 1)).flip(0, 1)
    factor: Tensor = torch.linalg.solve_triangular(upper, one, upper=True).mT
    return factor
