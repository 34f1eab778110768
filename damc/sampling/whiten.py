"""Coordinates in which the posteriors of all observations look alike."""

from __future__ import annotations

__all__ = ["Features", "Whiten"]

import math

import torch
from torch import Tensor, nn

_FULL = 40  # dimensions up to which L(x) is a full triangle
_LEAN = 0.1  # scale of the network's outputs below the diagonal
_CLIP = 6.0  # standardized observations beyond it are as good as there


class Features(nn.Module):
    """Observations x ``(B, k)`` as networks see them: of unit scale, and far outliers nearer.

    Args:
        size: k.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, k) to (B, k), float32."""
        v = (x - self.mean.to(x)) / self.scale.to(x)
        return (_CLIP * torch.tanh(v / _CLIP)).to(self.mean)


class Whiten(nn.Module):
    """v = L(x)^-1 (u - m(x)): the best Gaussian N(m(x), L(x) L(x)^T) of a posterior made round.

    A posterior's place and width change with x, often by orders of magnitude. A diffusion model of
    v sees unit scale for every x, and a kernel that moves v is preconditioned for every x.

    Args:
        dim: size of u.
        context: size of x.
        width: of the network's three hidden layers.
    """

    u_mean: Tensor
    u_scale: Tensor

    def __init__(self, dim: int, context: int, width: int = 64) -> None:
        super().__init__()
        self.dim = dim
        self.lower = dim * (dim - 1) // 2 if dim <= _FULL else 0
        outputs = 2 * dim + self.lower
        self.linear = nn.Linear(context, outputs)
        self.net = nn.Sequential(
            nn.Linear(context, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs),
        )  # fmt: skip
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        nn.init.zeros_(self.net[-1].weight)  # type: ignore[arg-type]
        self.features = Features(context)
        self.register_buffer("u_mean", torch.zeros(dim))
        self.register_buffer("u_scale", torch.ones(dim))

    @torch.no_grad()
    def fit_linear(self, u: Tensor, x: Tensor) -> None:
        """Scales of pairs u ``(N, d)``, x ``(N, k)``; m(x) linear and L constant, by least squares,
        from which the network goes on."""
        for values, mean, scale in (
            (u, self.u_mean, self.u_scale),
            (x, self.features.mean, self.features.scale),
        ):
            m, s = _location_scale(values)
            mean.copy_(m)
            scale.copy_(s)
        v = ((u - self.u_mean) / self.u_scale).double()
        f = self.features(x).double()
        f = torch.cat([f, torch.ones_like(f[:, :1])], 1)
        eye = torch.eye(f.shape[1], dtype=f.dtype, device=f.device)
        slope = torch.linalg.solve(f.T @ f + 1e-6 * len(f) * eye, f.T @ v)  # (k + 1, d)
        rest = v - f @ slope
        covariance = rest.T @ rest / len(v) + 1e-8 * torch.eye(self.dim, dtype=f.dtype)
        factor = torch.linalg.cholesky(covariance)
        self.linear.weight[: self.dim] = slope[:-1].T.to(self.linear.weight)
        bias = [slope[-1], factor.diagonal().log()]
        if self.lower:
            i, j = torch.tril_indices(self.dim, self.dim, -1)
            bias.append(factor[i, j] / _LEAN)
        self.linear.bias.copy_(torch.cat(bias))

    def frame(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m(x), ``(B, d)``, and L(x), ``(B, d, d)``, lower triangular."""
        v = self.features(x)
        parts = self.linear(v) + self.net(v)
        mean, log_sd, rest = parts.split([self.dim, self.dim, self.lower], 1)
        factor = torch.diag_embed(log_sd.clamp(-12, 4).exp())
        if self.lower:
            i, j = torch.tril_indices(self.dim, self.dim, -1, device=x.device)
            factor = factor.index_put((torch.arange(len(x))[:, None], i, j), _LEAN * rest)
        return self.u_mean + self.u_scale * mean, self.u_scale[:, None] * factor

    def forward(self, u: Tensor, x: Tensor) -> Tensor:
        """v of points u ``(B, d)`` and their x ``(B, k)``."""
        mean, factor = self.frame(x)
        return _solve(factor, u.to(mean) - mean)

    def inverse(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """u of v ``(B, d)``, and log det L(x), ``(B,)``, in v's own precision."""
        mean, factor = self.frame(x)
        u = mean.to(v) + (factor.to(v) @ v[..., None])[..., 0]
        return u, self.log_scale(factor).to(v)

    def loss(self, u: Tensor, x: Tensor) -> Tensor:
        """-log N(u; m(x), L(x) L(x)^T), the mean over pairs."""
        mean, factor = self.frame(x)
        v = _solve(factor, u.to(mean) - mean)
        constant = self.dim / 2 * math.log(2 * math.pi)
        return (v.square().sum(1) / 2 + self.log_scale(factor)).mean() + constant

    @staticmethod
    def log_scale(factor: Tensor) -> Tensor:
        """log det L, ``(B,)``, by which log-densities of v exceed those of u."""
        return factor.diagonal(dim1=1, dim2=2).log().sum(1)


def _location_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of columns; 1 for one that is constant."""
    scale = values.std(0)
    return values.mean(0), torch.where(scale > 1e-12 * values.abs().amax(0), scale, 1.0)


def _solve(factor: Tensor, b: Tensor) -> Tensor:
    v: Tensor = torch.linalg.solve_triangular(factor, b[..., None], upper=False)[..., 0]
    return v
