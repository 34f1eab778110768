"""q(z) as a network of its own: a mixture of Gaussians, refined by a diffusion model."""

from __future__ import annotations

__all__ = ["RefinedMixture"]

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.amortize.mixture import GaussianMixture
from damc.amortize.scales import fit_scales, scale_grid
from damc.learn.starts import Store

_EM = 10, 5  # iterations of expectation-maximization: at first, and when fitted again
_POINTS = 7  # stored samples for each Gaussian, at least, times d


class RefinedMixture(nn.Module):
    """z = m_k + s_j L_k v with a component k ~ w, a scale j ~ p_k and v ~ q(v | k), a diffusion
    model.

    The diffusion model predicts velocities and begins at v ~ N(0, I), so that q(z) begins as the
    mixture, and learns what that misses. Until it is fitted it is N(0, I).

    Args:
        latent_dim: d.
        components: K.
        scales: J, odd; with one, s = 1.
    """

    @classmethod
    def of(cls, store: Store, most: int, scales: int = 1) -> RefinedMixture:
        """With as many components as the size of a store allows, and at most `most`."""
        size, latent_dim = store.points.shape
        return cls(latent_dim, max(1, min(most, size // (_POINTS * latent_dim))), scales)

    weights: Tensor
    means: Tensor
    factors: Tensor
    inverses: Tensor
    fitted: Tensor
    scales: Tensor
    shares: Tensor

    def __init__(self, latent_dim: int, components: int, scales: int = 1) -> None:
        super().__init__()
        self.latent_dim, self.components = latent_dim, components
        self.register_buffer("weights", torch.full((components,), 1 / components))
        self.register_buffer("means", torch.zeros(components, latent_dim))
        self.register_buffer("factors", torch.eye(latent_dim).repeat(components, 1, 1))
        self.register_buffer("inverses", self.factors.clone(), persistent=False)
        self.register_buffer("scales", scale_grid(scales), persistent=False)
        shares = torch.zeros(components, scales)
        shares[:, scales // 2] = 1.0  # of the scale 1
        self.register_buffer("shares", shares, persistent=scales > 1)
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]
        self.register_buffer("fitted", torch.zeros((), dtype=torch.long))
        self.amortizer = Amortizer(
            latent_dim,
            nn.Linear(components, 32),
            embedding=32,
            widths=(128, 128, 128),
            velocity=True,
            frequency=0.05,
        )

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture as it was last fitted, at the scale 1."""
        return GaussianMixture(self.weights, self.means, self.factors)

    def fit(self, store: Store, *, anew: bool = False) -> None:
        """Fits the mixture to stored points, from where it was: components keep their meaning.

        Args:
            store: the points.
            anew: from scratch, while the diffusion model has learned nothing about the components.
        """
        points = store.known
        if len(points) < 2:
            return
        start = self.mixture if int(self.fitted) and not anew else None
        iterations = _EM[start is not None]
        enough = int(self.fitted) == self.components <= len(points) // (self.latent_dim + 1)
        if start is not None and enough and len(self.scales) > 1:
            found, shares = start, self.shares
        else:
            found = GaussianMixture.fit(points, self.components, start=start, iterations=iterations)
            shares = torch.full_like(self.shares[: len(found.weights)], 1 / len(self.scales))
        if len(self.scales) > 1:
            found, shares = fit_scales(points, found, self.scales, shares, iterations=iterations)
        k = len(found.weights)  # few points have fewer components
        self.shares[:k] = shares
        self.weights.zero_()
        self.weights[:k], self.means[:k], self.factors[:k] = (
            found.weights,
            found.means,
            found.factors,
        )
        self.invert()
        self.fitted.fill_(k)

    def invert(self) -> None:
        """Inverts the factors, once for all the points that are then whitened."""
        one = torch.eye(self.latent_dim).to(self.factors).expand_as(self.factors)
        self.inverses.copy_(torch.linalg.solve_triangular(self.factors, one, upper=False))

    def loss(self, z: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The denoising loss of v at points z ``(B, d)``, each in a component that it may be of."""
        white, share = self.whitened(z)
        k, j = self._split(torch.multinomial(share, 1, generator=generator)[:, 0])
        v = white[k, torch.arange(len(z), device=z.device)] / self.scales[j, None]
        return self.amortizer.loss(v, self._labels(k), p_uncond=0.0, generator=generator)

    @torch.no_grad()
    def whitened(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """L_k^-1 (z - m_k) for every component, ``(K, B, d)``, and p(k, j | z), ``(B, K J)``."""
        white = (z - self.means[:, None]) @ self.inverses.mT
        s, log_volume = self.scales, self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        log_scale = log_volume[:, None] + self.latent_dim * s.log()
        log_prior = self.weights[:, None].log() + self.shares.log() - log_scale
        squares = white.square().sum(2)[:, None] / s[:, None] ** 2
        log_each = log_prior[..., None] - squares / 2
        return white, log_each.flatten(0, 1).mT.softmax(1)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, ``(n, d)``."""
        joint = (self.weights[:, None] * self.shares).flatten()
        k, j = self._split(torch.multinomial(joint, n, replacement=True, generator=generator))
        v = self.amortizer.sample(x=self._labels(k), generator=generator)
        spread = (v @ self.factors.mT)[k, torch.arange(n, device=v.device)]
        return self.means[k] + self.scales[j, None] * spread

    def _split(self, joint: Tensor) -> tuple[Tensor, Tensor]:
        """Component and scale of their number."""
        return joint // len(self.scales), joint % len(self.scales)

    def _labels(self, k: Tensor) -> Tensor:
        return nn.functional.one_hot(k, self.components).to(self.means)


def _loaded(module: RefinedMixture, _: object) -> None:
    module.invert()
