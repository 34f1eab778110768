"""Eight schools, two Gaussian processes, and the log-Gaussian Cox process of the Finnish pines."""

from __future__ import annotations

__all__ = ["MODELS"]

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.posteriors import tensor
from damc.density import WithGradient


def _eight_schools(d: dict[str, Any]) -> Any:
    """Non-centered: (e, mu, log tau), theta = mu + tau e."""
    y, sigma = tensor(d["y"]), tensor(d["sigma"])

    def log_prob(u: Tensor) -> Tensor:
        e, mu, tau = u[:, :8], u[:, 8], u[:, 9].exp()
        theta = mu[:, None] + tau[:, None] * e
        prior = -e.square().sum(1) / 2 - mu.square() / 50 - torch.log1p((tau / 5).square())
        return prior - ((y - theta) / sigma).square().sum(1) / 2 + u[:, 9]

    def parameters(u: Tensor) -> Tensor:
        mu, tau = u[:, 8:9], u[:, 9:].exp()
        return torch.cat([mu + tau * u[:, :8], mu, tau], 1)

    return 10, log_prob, parameters


def _kernel(x: Tensor, log_rho: Tensor, log_alpha: Tensor) -> Tensor:
    square = (x[:, None] - x).square()
    rho, alpha = log_rho.exp()[:, None, None], log_alpha.exp()[:, None, None]
    return alpha.square() * torch.exp(-square / (2 * rho.square()))


def _cholesky(k: Tensor) -> tuple[Tensor, Tensor]:
    """The factor, and where there is one."""
    eye = torch.eye(k.shape[-1], dtype=k.dtype)
    good = k.isfinite().flatten(1).all(1)
    factor, failed = torch.linalg.cholesky_ex(torch.where(good[:, None, None], k, eye))
    good = good & (failed == 0)
    if not bool(good.all()):  # a failed factorization has no gradient: factor the identity there
        factor = torch.linalg.cholesky(torch.where(good[:, None, None], k, eye))
    return factor, good


def _prior_of_kernel(log_rho: Tensor, log_alpha: Tensor) -> Tensor:
    """Gamma(25, 4) of rho and N(0, 2) of alpha > 0, with the Jacobians of the logs."""
    return 25 * log_rho - 4 * log_rho.exp() - log_alpha.exp().square() / 8 + log_alpha


def _gp_regr(d: dict[str, Any]) -> Any:
    x, y = tensor(d["x"]), tensor(d["y"])
    eye = torch.eye(len(x), dtype=x.dtype)

    def log_prob(u: Tensor) -> Tensor:
        sigma = u[:, 2].exp()
        factor, good = _cholesky(_kernel(x, u[:, 0], u[:, 1]) + sigma[:, None, None] * eye)
        w = torch.linalg.solve_triangular(factor, y.expand(len(u), -1)[..., None], upper=False)
        volume = factor.diagonal(dim1=1, dim2=2).log().sum(1)
        likelihood = -w.square().sum((1, 2)) / 2 - volume
        prior = _prior_of_kernel(u[:, 0], u[:, 1]) - sigma.square() / 2 + u[:, 2]
        return torch.where(good, likelihood + prior, -math.inf)

    return 3, log_prob, torch.exp


def _gp_pois(d: dict[str, Any]) -> Any:
    """(log rho, log alpha, e), f = L e."""
    x, k = tensor(d["x"]), tensor(d["k"])
    jitter = 1e-10 * torch.eye(len(x), dtype=x.dtype)

    def field(u: Tensor) -> tuple[Tensor, Tensor]:
        factor, good = _cholesky(_kernel(x, u[:, 0], u[:, 1]) + jitter)
        return (factor @ u[:, 2:, None])[..., 0], good

    def log_prob(u: Tensor) -> Tensor:
        f, good = field(u)
        likelihood = (k * f - f.exp()).sum(1)
        prior = _prior_of_kernel(u[:, 0], u[:, 1]) - u[:, 2:].square().sum(1) / 2
        return torch.where(good, likelihood + prior, -math.inf)

    def parameters(u: Tensor) -> Tensor:
        return torch.cat([u[:, :2].exp(), field(u)[0]], 1)

    return 13, log_prob, parameters


def _lgcp(d: dict[str, Any]) -> Any:
    counts = tensor(d["counts"]).flatten()
    side = len(d["counts"])
    cell = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    covariance = 1.91 * torch.exp(-torch.cdist(cell, cell) / (side / 33))
    factor = torch.linalg.cholesky(covariance)
    precision = torch.cholesky_inverse(factor)
    mean, area = math.log(126) - 1.91 / 2, 1 / side**2
    volume = float(factor.diagonal().log().sum()) + side**2 / 2 * math.log(2 * math.pi)

    def value_and_grad(f: Tensor) -> tuple[Tensor, Tensor]:
        """With its gradient, which costs a second product of this size by autograd."""
        away, rate = f - mean, area * f.exp()
        pull = away @ precision
        value = (counts * f - rate - away * pull / 2).sum(1) - volume
        return value, counts - rate - pull

    def log_prob(f: Tensor) -> Tensor:
        away = f - mean
        return (counts * f - area * f.exp() - away * (away @ precision) / 2).sum(1) - volume

    return side**2, WithGradient(log_prob, value_and_grad), lambda f: f


MODELS = {
    "eight_schools-eight_schools_noncentered": _eight_schools,
    "gp_pois_regr-gp_regr": _gp_regr,
    "gp_pois_regr-gp_pois_regr": _gp_pois,
    "lgcp_pines": _lgcp,
}
