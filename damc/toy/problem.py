"""The two-dimensional toy of the paper (appendix "Toy Examples"), with exact densities.

A latent point `z` comes from a pinwheel with two arms, an observation is `x = g(z) + sigma * noise`
with a fixed random network `g`. Everything here is small enough to know exactly: the pinwheel's
density, and the posterior `p(z | x)` by summing cells of a grid. Samplers are tested on these.
"""

from __future__ import annotations

__all__ = ["GridPosterior", "NeuralLikelihood", "ToyModel"]

import copy
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from damc.errors import BadInput, Diverged
from damc.toy.pinwheel import Pinwheel


class NeuralLikelihood(nn.Module):
    """`p(x | z) = N(x; g(z), sigma^2 I)` with `g` a frozen random MLP 2-128-128-128-2 with ReLU.

    Weights are N(0, 0.2^2) and biases N(0, 0.1^2), drawn from `seed`.
    """

    def __init__(self, seed: int = 0, sigma: float = 0.25) -> None:
        super().__init__()
        if sigma <= 0:
            raise BadInput(f"sigma must be positive, got {sigma}")
        self.sigma = sigma
        generator = torch.Generator().manual_seed(seed)
        widths = (2, 128, 128, 128, 2)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            # The layer's own initialization would draw from torch's global random state.
            linear = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
            nn.init.normal_(linear.weight, std=0.2, generator=generator)
            nn.init.normal_(linear.bias, std=0.1, generator=generator)
            layers += [linear, nn.ReLU()]
        self.decoder = nn.Sequential(*layers[:-1]).requires_grad_(False)

    def observe(self, z: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw `x ~ p(x | z)`, (B, 2) -> (B, 2)."""
        mean: Tensor = self.decoder(z)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + self.sigma * noise

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        """`-|x - g(z)|^2 / (2 sigma^2)`, (B,), for `z` (B, 2) and `x` (B, 2) or (2,)."""
        residual: Tensor = x - self.decoder(z)
        return residual.square().sum(-1) / (-2 * self.sigma**2)


class ToyModel(nn.Module):
    """The toy's joint density: a pinwheel or standard normal prior, and the neural likelihood.

    The paper names a pinwheel prior, its released code runs chains with a standard normal one;
    `prior` chooses. The latent points behind the data come from the pinwheel in both cases.
    """

    def __init__(self, prior: Literal["pinwheel", "gaussian"] = "pinwheel", seed: int = 0) -> None:
        super().__init__()
        if prior not in ("pinwheel", "gaussian"):
            raise BadInput(f"prior must be 'pinwheel' or 'gaussian', got {prior!r}")
        self.prior = prior
        self.pinwheel = Pinwheel()
        self.likelihood = NeuralLikelihood(seed)

    def draw(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw `n` pairs of a pinwheel point and its observation: `z` (n, 2), `x` (n, 2)."""
        parameter = next(self.likelihood.parameters())
        z = self.pinwheel.sample(n, generator, parameter.dtype).to(parameter.device)
        return z, self.likelihood.observe(z, generator)

    def log_prior(self, z: Tensor) -> Tensor:
        """The normalized log-density of the prior, (B, 2) -> (B,)."""
        if self.prior == "pinwheel":
            return self.pinwheel.log_prob(z)
        return -0.5 * z.square().sum(-1) - math.log(2 * math.pi)

    def log_prob(self, z: Tensor, x: Tensor) -> Tensor:
        """The unnormalized log-posterior of `z` (B, 2) given `x`, (B, 2) or (2,): (B,)."""
        return self.log_prior(z) + self.likelihood.log_prob(x, z)

    def grid_posterior(
        self, x: Tensor, n: int = 400, low: float = -6.0, high: float = 6.0
    ) -> GridPosterior:
        """The exact posterior of one observation `x`, (2,); see `grid_posteriors`."""
        if x.shape != (2,):
            raise BadInput(f"x must have shape (2,), got {tuple(x.shape)}")
        return self.grid_posteriors(x[None], n, low, high)[0]

    @torch.no_grad()
    def grid_posteriors(
        self, x: Tensor, n: int = 400, low: float = -6.0, high: float = 6.0
    ) -> list[GridPosterior]:
        """The exact posteriors of several observations `x`, (B, 2), on one shared first grid.

        `n * n` cells cover `[low, high]^2`. Cells that matter are split until splitting them all
        moves the log-mass by less than 1e-3. The box grows, at the same cell size, until the
        posterior mass outside is surely below 1e-6: it is at most the prior mass outside over the
        evidence, because the likelihood is at most 1.
        """
        if x.ndim != 2 or x.shape[1] != 2:
            raise BadInput(f"x must have shape (B, 2), got {tuple(x.shape)}")
        if n < 2:
            raise BadInput(f"n must be at least 2, got {n}")
        if not low < 0 < high:
            raise BadInput(f"the box must contain 0, got [{low}, {high}]")
        model = copy.deepcopy(self).double()
        x = x.double()
        done: dict[int, GridPosterior] = {}
        size = (high - low) / n
        while True:
            grid = _lattice(n, low, high, x.device)
            log_prior = torch.cat([model.log_prior(z) for z in torch.split(grid, _CHUNK)])
            mean = torch.cat([model.likelihood.decoder(z) for z in torch.split(grid, _CHUNK)])
            for i in [i for i in range(len(x)) if i not in done]:
                error = (x[i] - mean).square().sum(-1) / (2 * model.likelihood.sigma**2)
                log_mass = log_prior - error + 2 * math.log(size)
                evidence = float(log_mass.logsumexp(0))
                if model._log_tail(min(-low, high)) - evidence < math.log(1e-6):
                    done[i] = _split(model, x[i], grid, size, log_mass)
            if len(done) == len(x):
                return [done[i] for i in range(len(x))]
            if high - low > 40:
                raise BadInput(
                    "x must be near the observations of ToyModel.draw, got one whose posterior "
                    "reaches beyond the largest grid"
                )
            extra = math.ceil(n / 6)
            n, low, high = n + 2 * extra, low - extra * size, high + extra * size

    def _log_tail(self, radius: float) -> float:
        """Upper bound on the log of the prior mass with `|z| > radius`."""
        if self.prior == "gaussian":
            return -0.5 * radius**2
        # 0.95^2 + 0.31^2 < 1, so |r + i t| > rho needs |r| > 0.95 rho or |t| > 0.31 rho.
        rho = radius / self.pinwheel.scale
        r = (0.95 * rho - self.pinwheel.radial_mean) / self.pinwheel.radial_sd
        t = 0.31 * rho / self.pinwheel.tangential_sd
        return math.log(sum(math.erfc(max(u, 0.0) / math.sqrt(2)) for u in (r, t)) + 1e-300)


@dataclass(frozen=True)
class GridPosterior:
    """`p(z | x)` as cell masses.

    Attributes:
        x: the observation, (2,).
        centers: middles of the cells, (M, 2).
        mass: probability of each cell, summing to 1, (M,).
        size: side of a cell.
        log_evidence: log of the integral of `exp(ToyModel.log_prob)`, in nats.
        change: how far the last halving of the cells moved `log_evidence`.
    """

    model: ToyModel
    x: Tensor
    centers: Tensor
    mass: Tensor
    size: float
    log_evidence: float
    change: float

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw `n` points, (n, 2): a cell by its mass, then a uniform point in it."""
        # A search in the cumulated mass, as torch.multinomial limits the number of cells.
        edges = self.mass.cumsum(0)
        u = torch.rand(n, 3, generator=generator, dtype=edges.dtype, device=edges.device)
        cell = torch.searchsorted(edges, u[:, 0].contiguous() * edges[-1])
        jitter = (u[:, 1:] - 0.5) * self.size
        return self.centers[cell.clamp(max=len(edges) - 1)] + jitter

    def log_prob(self, z: Tensor) -> Tensor:
        """The normalized log-posterior, (B, 2) -> (B,): the model's own, less the log-evidence."""
        return self.model.log_prob(z.double(), self.x) - self.log_evidence

    @property
    def mean(self) -> Tensor:
        """The posterior mean, (2,)."""
        return self.mass @ self.centers

    @property
    def covariance(self) -> Tensor:
        """The posterior covariance, (2, 2)."""
        centered = self.centers - self.mean
        return centered.T @ (self.mass[:, None] * centered)


_CHUNK = 16_384


def _lattice(n: int, low: float, high: float, device: torch.device) -> Tensor:
    """Middles of `n * n` cells of the box, (n * n, 2)."""
    side = low + (torch.arange(n, dtype=torch.float64, device=device) + 0.5) * ((high - low) / n)
    return torch.cartesian_prod(side, side)


def _split(
    model: ToyModel, x: Tensor, centers: Tensor, size: float, log_mass: Tensor
) -> GridPosterior:
    """Quarter the cells that matter until the log-mass has converged."""
    quarters = centers.new_tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]]) / 4
    change = math.inf
    for _ in range(6):
        before = log_mass.logsumexp(0)
        # All 160,000 cells of the default grid together hold below 1e-6 if each is under e^-26.
        keep = log_mass > log_mass.max() - 26
        centers = (centers[keep, None] + size * quarters).reshape(-1, 2)
        size = size / 2
        log_mass = torch.cat([model.log_prob(z, x) for z in torch.split(centers, _CHUNK)])
        log_mass = log_mass + 2 * math.log(size)
        evidence = log_mass.logsumexp(0)
        change = float((evidence - before).abs())
        if change < 1e-3:
            mass = (log_mass - evidence).exp()
            return GridPosterior(model, x, centers, mass, size, float(evidence), change)
    raise Diverged(
        f"the log-mass of the grid posterior at x={x.tolist()} still changes by {change:.1e}"
    )
