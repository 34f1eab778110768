"""Likelihoods of latent models: the evidence of an energy prior, and log p(x) of images.

For p(z) = exp(-E(z)) N(z; 0, I) / Z and p(x | z) = N(x; g(z), sigma^2 I), both

    Z = integral of exp(-E(z)) N(z; 0, I) dz    and    p(x) = integral of p(z) p(x | z) dz

are estimated by annealed sequential Monte Carlo on z (`damc.anneal`), with errors from islands of
particles that never exchange any. The first anneals from N(0, I). The second anneals, for every
image, from a Gaussian at a mode of its posterior whose precision is I + J^T J / sigma^2, J being
the decoder's derivative: with a linear decoder and no energy that is the posterior itself, and
nothing is left to estimate. Both estimates are without bias for Z and p(x), so their logs tend to
be too low, never too high: a mode that no particle finds is missing from log p(x).
"""

from __future__ import annotations

__all__ = ["Likelihood", "has_density", "likelihood", "log_normalizer", "log_prob_of_images"]

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.errors import BadInput
from damc.fast.frozen import frozen
from damc.kernels.independence import Gaussian
from damc.kernels.smc import anneal
from damc.latent import EnergyPrior, LatentModel
from damc.learn.learner import Learner

_ISLANDS = 4  # of each image
_ROWS = 1024  # images that are differentiated at once


@dataclass(frozen=True)
class Likelihood:
    """What `likelihood` found.

    Attributes:
        log_normalizer: log Z of the energy prior relative to N(0, I), in nats; 0 without an energy.
        log_normalizer_error: its standard error.
        log_prob: mean of log p(x) over the images, in nats for each image.
        log_prob_error: its standard error, from the images' differences and from the estimates'.
        estimate_error: the share of the latter, which more particles reduce.
        bits: -log2 p(x) for each dimension and 8-bit value: of the density at the values, with 256
            levels between -1 and 1, not dequantized.
        images: how many.
        pixels: dimensions of an image.
        sigma: of the observation model.
    """

    log_normalizer: float
    log_normalizer_error: float
    log_prob: float
    log_prob_error: float
    estimate_error: float
    bits: float
    images: int
    pixels: int
    sigma: float

    @property
    def table(self) -> dict[str, Any]:
        """For ``results.json``."""
        return asdict(self)

    @property
    def rows(self) -> list[tuple[str, str, float, float | None, int]]:
        """Of what, measure, value, error, images: the lines of `damc evaluate`."""
        bits_error = self.log_prob_error / (self.pixels * math.log(2))
        return [
            ("energy prior", "log Z, nats", self.log_normalizer, self.log_normalizer_error, 0),
            ("likelihood", "log p(x), nats", self.log_prob, self.log_prob_error, self.images),
            ("likelihood", "bits per dimension", self.bits, bits_error, self.images),
        ]

    @property
    def note(self) -> str:
        """What the figures are figures of."""
        return (
            f"log Z is relative to N(0, I); log p(x) is a density of pixels in [-1, 1] under a "
            f"Gaussian observation model with sigma {self.sigma:g}, its estimate good to "
            f"{self.estimate_error:.2g} nats; bits per dimension are of that density at 8-bit "
            "values, not dequantized"
        )


def has_density(learner: Learner) -> bool:
    """Whether the method has a decoder with a Gaussian likelihood and a prior with a density."""
    model = learner.model
    known = learner.prior is not None or "gaussian" in learner.sources
    return isinstance(model, LatentModel) and known


def likelihood(
    learner: Learner,
    x: Tensor,
    *,
    particles: int = 64,
    prior_particles: int = 4096,
    seed: int = 0,
    progress: bool = False,
) -> Likelihood:
    """log Z of a learner's prior and log p(x) of images.

    Args:
        learner: a trained learner with a decoder and a prior density; see `has_density`.
        x: images, ``(B, C, H, W)`` in [-1, 1].
        particles: for each image.
        prior_particles: for log Z.
        seed: of everything random.
        progress: show a progress bar.
    """
    if not has_density(learner):
        raise BadInput(
            f"a likelihood needs a decoder and a prior with a density, and {learner.name} has not "
            "both"
        )
    if not len(x):
        raise BadInput("images must be at least one, got none")
    from tqdm import tqdm

    model, generator = learner.model, torch.Generator(learner.device).manual_seed(seed)
    prior = learner.prior or EnergyPrior()
    log_z, error = log_normalizer(
        prior, model.latent_dim, particles=prior_particles, generator=generator
    )
    values, errors = [], []
    parts = torch.split(x.to(learner.device), max(1, 2048 // particles))
    for part in tqdm(parts, desc="log p(x)", disable=not progress, dynamic_ncols=True):
        start = part.new_zeros(len(part), model.latent_dim)
        if learner.inference is not None:
            start = learner.infer(part, generator=generator)
        found = log_prob_of_images(
            model, part, start, prior=prior, particles=particles, generator=generator
        )
        values.append(found[0])
        errors.append(found[1])
    value = torch.cat(values) - log_z
    own = float(torch.cat(errors).square().mean().sqrt()) / math.sqrt(len(value))
    spread = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    pixels = x[0].numel()
    mean = float(value.mean())
    return Likelihood(
        log_z,
        error,
        mean,
        math.hypot(spread, error),
        math.hypot(own, error),
        (-mean / pixels - math.log(2 / 256)) / math.log(2),
        len(value),
        pixels,
        model.sigma,
    )


def log_normalizer(
    prior: EnergyPrior,
    latent_dim: int,
    *,
    particles: int = 4096,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """log Z of exp(-E(z)) N(z; 0, I), and its standard error; 0 and 0 without an energy.

    Args:
        prior: the energy prior.
        latent_dim: d.
        particles: of the annealing.
        generator: source of all randomness.
    """
    if prior.energy is None:
        return 0.0, 0.0
    weight = next(prior.parameters(), torch.zeros(()))
    reference = Gaussian(latent_dim, scale=weight.new_ones(latent_dim).detach())
    found = anneal(frozen(prior), reference, particles=particles, ess=0.9, generator=generator)
    constant = latent_dim / 2 * math.log(2 * math.pi)
    return found.log_evidence - constant, found.log_evidence_error


@torch.no_grad()
def log_prob_of_images(
    model: LatentModel,
    x: Tensor,
    start: Tensor,
    *,
    prior: EnergyPrior | None = None,
    particles: int = 64,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """log of the integral of exp(-E(z)) N(z; 0, I) p(x | z), each image's, and standard errors.

    It is log p(x) + log Z, so that without an energy it is log p(x).

    Args:
        model: decoder and sigma.
        x: images, ``(B, ...)``.
        start: latent points near the posteriors' modes, ``(B, d)``.
        prior: the energy prior, by default the model's own.
        particles: for each image, a multiple of 8.
        generator: source of all randomness.

    Returns:
        Values and errors, ``(B,)`` each, float64.
    """
    if particles < 8 or particles % (2 * _ISLANDS):
        raise BadInput(f"particles must be a multiple of {2 * _ISLANDS}, got {particles}")
    prior = model.prior if prior is None else prior
    d, pixels, variance = model.latent_dim, x[0].numel(), model.sigma**2
    mode, factor, value = _mode(model, prior, x, start)
    log_scale = factor.diagonal(dim1=1, dim2=2).log().sum(1)
    # Laplace's value: with it taken off, the images' targets have about the same evidence, so that
    # one sequence of temperatures is right for all of them.
    level = value + d / 2 * math.log(2 * math.pi) + log_scale
    rows = torch.arange(len(x), device=x.device).repeat_interleave(particles)
    posterior = frozen(_Joint(model, prior).posterior(x[rows]))
    mode, factor, shift = mode[rows], factor[rows], (log_scale - level)[rows]

    def target(w: Tensor) -> Tensor:
        z = mode + (factor @ w[..., None])[..., 0]
        return posterior(z) + shift

    reference = Gaussian(d, scale=x.new_ones(d))
    found = anneal(
        target,
        reference,
        particles=len(rows),
        islands=len(x) * _ISLANDS,
        ess=0.9,
        moves=(1, 4),
        generator=generator,
    )
    islands = found.island_evidence.double().view(len(x), _ISLANDS)
    most = islands.amax(1, keepdim=True)
    weights = (islands - most).exp()
    mean = weights.mean(1)
    error = weights.std(1) / mean / math.sqrt(_ISLANDS)
    constants = d / 2 * math.log(2 * math.pi) + pixels / 2 * math.log(2 * math.pi * variance)
    return most[:, 0] + mean.log() + level.double() - constants, error


class _Joint(LatentModel):
    """A model with another prior; it shares the decoder."""

    def __init__(self, model: LatentModel, prior: EnergyPrior) -> None:
        super().__init__(model.decoder, None, model.latent_dim, model.sigma)
        self.prior = prior


def _mode(
    model: LatentModel, prior: EnergyPrior, x: Tensor, start: Tensor, rounds: int = 20
) -> tuple[Tensor, Tensor, Tensor]:
    """A mode of every posterior by damped Gauss-Newton steps, a factor of the inverse precision
    there, and the value of the log-joint."""
    d, variance = model.latent_dim, model.sigma**2

    def log_joint(z: Tensor) -> Tensor:
        return prior.log_prob(z) + model.log_likelihood(x, z)

    z, value = start, log_joint(start)
    damping = torch.full_like(value, 1e-2)
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    idle = 0  # rounds in which no image gained anything
    for k in range(rounds + 1):
        error, jacobian = _linearized(model, x, z)
        precision = eye + jacobian @ jacobian.mT / variance  # (B, d, d)
        if k == rounds or idle == 2:
            break
        slope = (jacobian @ error[..., None])[..., 0] / variance + _gradient(prior, z)
        damped = (
            precision + damping[:, None, None] * precision.diagonal(dim1=1, dim2=2).diag_embed()
        )
        new = z + torch.linalg.solve(damped, slope)
        new_value = log_joint(new)
        better = new_value > value
        gained = (new_value - value).clamp(min=0) > 1e-3
        z = torch.where(better[:, None], new, z)
        value = torch.where(better, new_value, value)
        damping = torch.where(gained, damping / 10, damping * 10)
        idle = 0 if bool(gained.any()) else idle + 1
    lower = torch.linalg.cholesky(precision)
    inverse = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
    # precision^-1 = inverse^T inverse; its lower factor is wanted.
    return z, torch.linalg.cholesky(inverse.mT @ inverse), value


def _linearized(model: LatentModel, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """x - g(z), ``(B, D)``, and the derivative of g along each latent dimension, ``(B, d, D)``."""
    d = z.shape[1]
    tangent = torch.eye(d, dtype=z.dtype, device=z.device)
    images, derivatives = [], []
    for part in torch.split(z, max(1, _ROWS // d)):
        points, tangents = part.repeat_interleave(d, 0), tangent.repeat(len(part), 1)
        image, derivative = torch.func.jvp(model.decoder, (points,), (tangents,))[:2]
        images.append(image[::d])
        derivatives.append(derivative.flatten(1).view(len(part), d, -1))
    return (x - torch.cat(images)).flatten(1), torch.cat(derivatives)


def _gradient(prior: EnergyPrior, z: Tensor) -> Tensor:
    return value_and_grad(prior, z)[1]
