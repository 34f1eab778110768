"""Mixtures of Gaussians whose noised score is known: what a denoiser begins with.

A density of v = (v_1, ..., v_G), G independent blocks of b coordinates, each of them a mixture of K
Gaussians. One block of all coordinates is an ordinary mixture, and blocks of one coordinate each
are a product of marginals. With z_u = alpha v + sigma eps a component N(m, S) becomes
N(alpha m, alpha^2 S + sigma^2 I), so the noise to predict is

    E[eps | z_u] = -sigma grad log p_u(z_u)
                 = sigma sum_k r_k(z_u) (alpha^2 S_k + sigma^2 I)^-1 (z_u - alpha m_k),

with the responsibilities r_k. A network on top of it has only the rest to learn. It is fitted here
and not by scikit-learn, because all blocks are fitted together and where the points are.
"""

from __future__ import annotations

__all__ = ["BlockMixture"]

import math

import torch
from torch import Tensor, nn

from damc.errors import BadInput

_FLOOR = 1e-4  # least variance of a component, of standardized points
_ROUNDS = 60  # of expectation-maximization


class BlockMixture(nn.Module):
    """The density; until it is fitted, N(0, I).

    Args:
        dim: G b.
        blocks: G.
        components: K.
    """

    log_weights: Tensor
    means: Tensor
    axes: Tensor
    variances: Tensor

    def __init__(self, dim: int, blocks: int = 1, components: int = 32) -> None:
        super().__init__()
        if blocks < 1 or dim % blocks or components < 1:
            raise BadInput(
                f"blocks must divide dim and components must be positive, got {blocks}, {dim} and "
                f"{components}"
            )
        b = dim // blocks
        self.blocks, self.size = blocks, b
        shape = (blocks, components)
        self.register_buffer("log_weights", torch.full(shape, -math.log(components)))
        self.register_buffer("means", torch.zeros(*shape, b))
        self.register_buffer("axes", torch.eye(b).repeat(*shape, 1, 1))  # eigenvectors in columns
        self.register_buffer("variances", torch.ones(*shape, b))  # and their eigenvalues

    @torch.no_grad()
    def fit(self, v: Tensor, generator: torch.Generator | None = None) -> None:
        """Expectation-maximization from scattered points of v ``(n, d)``."""
        x = v.double().view(len(v), self.blocks, self.size)
        components = self.log_weights.shape[1]
        means = _scattered(x, components, generator)
        eye = torch.eye(self.size, dtype=x.dtype, device=x.device)
        spread = x.var(0).mean(-1).clamp(min=_FLOOR) / components ** (2 / self.size)  # (G,)
        covariance = spread[:, None, None, None] * eye.expand(self.blocks, components, -1, -1)
        log_weights = torch.full_like(means[..., 0], -math.log(components))
        last = -math.inf
        points = x.transpose(0, 1).contiguous()  # (G, n, b)
        for _ in range(_ROUNDS):
            factor = torch.linalg.cholesky(covariance)
            inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
            w = _each(points, inverse.mT) - (inverse @ means[..., None])[..., 0]
            log_volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            joint = log_weights - w.square_().sum(-1) / 2 - log_volume  # (n, G, K)
            total = joint.logsumexp(-1)
            share = (joint - total[..., None]).exp_()
            mass = share.sum(0).clamp(min=1e-8)
            by_component = share.permute(1, 2, 0).contiguous()  # (G, K, n)
            means = by_component @ points / mass[..., None]
            moments = [(points * s[..., None]).mT @ points for s in by_component.unbind(1)]
            outer = means[..., :, None] * means[..., None, :]
            covariance = torch.stack(moments, 1) - mass[..., None, None] * outer
            # A prior worth a few points keeps components from collapsing.
            prior = 2.0 * spread[:, None, None, None] * eye
            covariance = (covariance + prior) / (mass + 2.0)[..., None, None] + _FLOOR * eye
            log_weights = ((mass + 1e-3) / (len(x) + 1e-3 * components)).log()
            level = float(total.sum(1).mean())
            if level - last < 1e-4:
                break
            last = level
        variances, axes = torch.linalg.eigh(covariance)
        axes = axes if self.size > 1 else torch.ones_like(axes)
        self.log_weights.copy_(log_weights)
        self.means.copy_(means)
        self.axes.copy_(axes)
        self.variances.copy_(variances)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws, ``(n, d)``."""
        shares = self.log_weights.softmax(-1)
        which = torch.multinomial(shares, n, True, generator=generator).T  # (n, G)
        block = torch.arange(self.blocks, device=which.device)
        w = self.means.new_empty(n, self.blocks, self.size).normal_(generator=generator)
        w = w * self.variances[block, which].sqrt()
        if self.size > 1:
            w = (self.axes[block, which] @ w[..., None])[..., 0]
        return (self.means[block, which] + w).flatten(1)

    def log_prob(self, v: Tensor) -> Tensor:
        """The normalized log-density, ``(n, d)`` to ``(n,)``."""
        axes = (self.axes / self.variances.sqrt()[..., None, :]).to(v)
        w = _each(v.view(-1, self.blocks, self.size).transpose(0, 1), axes)
        w = w - (self.means.to(v)[..., None, :] @ axes)[..., 0, :]
        log_volume = self.variances.to(v).log().sum(-1) / 2
        joint = self.log_weights.to(v) - w.square().sum(-1) / 2 - log_volume  # (n, G, K)
        return joint.logsumexp(-1).sum(-1) - v.shape[1] / 2 * math.log(2 * math.pi)

    def noise(self, z: Tensor, angle: Tensor) -> Tensor:
        """E[eps | z_u] at noisy points z ``(..., d)`` and angles ``()`` or those of the points."""
        flat = z.reshape(-1, z.shape[-1])
        level = angle.to(z).expand(z.shape[:-1]).reshape(-1)
        alpha, sigma = level.cos(), level.sin()
        joint, w, variances = self._joint(flat, alpha, sigma)
        share = torch.softmax(joint, -1)
        pulled = share[..., None] * w / variances
        if self.size > 1:
            pulled = torch.einsum("ngka,gkba->ngkb", pulled, self.axes.to(z))
        pulled = pulled.sum(2)
        return (sigma[:, None] * pulled.flatten(1)).view_as(z)

    def _joint(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log of each component's weighted density ``(n, G, K)`` but for its constant, the points
        in its axes, and its variances there, ``(n, G, K, b)``."""
        alpha, sigma = alpha[:, None, None, None], sigma[:, None, None, None]
        x, means = z.view(-1, self.blocks, self.size), self.means.to(z)
        if self.size > 1:
            axes = self.axes.to(z)
            w = _each(x.transpose(0, 1), axes) - alpha * (means[..., None, :] @ axes)[..., 0, :]
        else:  # a single coordinate is its own axis
            w = x[:, :, None] - alpha * means
        variances = alpha.square() * self.variances.to(z) + sigma.square()
        distance = (w.square() / variances).sum(-1) / 2
        return self.log_weights.to(z) - distance - variances.log().sum(-1) / 2, w, variances


def _each(x: Tensor, matrices: Tensor) -> Tensor:
    """Points ``(G, n, b)`` times the matrix of every component ``(G, K, b, a)``: ``(n, G, K, a)``.

    One product of matrices for each block, however many components there are.
    """
    blocks, components, b, a = matrices.shape
    together = matrices.transpose(1, 2).reshape(blocks, b, components * a)
    return (x @ together).view(blocks, -1, components, a).transpose(0, 1)


def _scattered(x: Tensor, components: int, generator: torch.Generator | None) -> Tensor:
    """Some of the points ``(n, G, b)`` of each block, ``(G, K, b)``, each far from those before
    (k-means++, Arthur and Vassilvitskii 2007)."""
    n, blocks, _ = x.shape
    block = torch.arange(blocks, device=x.device)
    first = torch.randint(n, (blocks,), generator=generator, device=x.device)
    means = [x[first, block]]
    nearest = (x - means[0]).square().sum(-1)  # (n, G)
    for _ in range(components - 1):
        chance = nearest.T + 1e-12
        which = torch.multinomial(chance, 1, generator=generator)[:, 0]
        means.append(x[which, block])
        nearest = torch.minimum(nearest, (x - means[-1]).square().sum(-1))
    return torch.stack(means, 1)
