"""The latent energy-based model p(z, x) = p(z) p(x | z): what is learned."""

from __future__ import annotations

__all__ = [
    "EnergyPrior",
    "ImagePosterior",
    "LatentModel",
    "Posterior",
    "check_encoder",
    "check_model",
    "energies",
]

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.density import Target, WithGradient, as_log_prob, value_and_grad
from damc.errors import BadInput
from damc.fast.frozen import freezes, frozen
from damc.fast.gradients import has_rule, pullback, without_shuffle
from damc.randomness import global_seed


class EnergyPrior(nn.Module):
    """The energy-tilted Gaussian prior, p(z) proportional to exp(-E(z)) N(z; 0, I).

    The paper writes f = -E (its equation 1). With ``energy = None`` this is N(0, I).

    Args:
        energy: any module from z ``(B, d)`` to ``(B,)`` or ``(B, 1)``; lower is likelier.
    """

    def __init__(self, energy: nn.Module | None = None) -> None:
        super().__init__()
        self.energy = energy

    def log_prob(self, z: Tensor) -> Tensor:
        """log p~(z) = -E(z) - |z|^2 / 2, ``(B, d)`` to ``(B,)``."""
        gaussian = -z.square().sum(1) / 2
        return gaussian if self.energy is None else gaussian - self.energy_of(z)

    forward = log_prob

    def energy_of(self, z: Tensor) -> Tensor:
        """E(z), ``(B, d)`` to ``(B,)``; zero without an energy."""
        return (
            z.new_zeros(len(z)) if self.energy is None else energies(self.energy, self.energy(z), z)
        )


def energies(energy: nn.Module, values: Tensor, z: Tensor) -> Tensor:
    """What a network gave for points z ``(B, d)`` as energies ``(B,)``; it may be a column."""
    shape = getattr(values, "shape", None)
    if shape == (len(z), 1):
        return values.squeeze(1)
    if shape != (len(z),):
        raise BadInput(
            f"the energy {type(energy).__name__} must give one number for each point, shape "
            f"({len(z)},) or ({len(z)}, 1), got {_given(values)}"
        )
    return values


@freezes(EnergyPrior)
def _frozen_prior(prior: EnergyPrior) -> WithGradient | None:
    """The gradient without a graph, -z - grad E(z)."""
    energy = prior.energy
    if energy is None:
        return WithGradient(prior.log_prob, lambda z: (prior.log_prob(z), -z))
    if not has_rule(energy):
        return None
    evaluate = pullback(energy)

    def value_and_grad(z: Tensor) -> tuple[Tensor, Tensor]:
        values, pull = evaluate(z)
        value = energies(energy, values, z)
        minus = torch.full_like(values, -1.0)
        return torch.add(-value, z.square().sum(1), alpha=-0.5), pull(minus).sub_(z)

    return WithGradient(prior.log_prob, value_and_grad)


class Posterior:
    """p(z | x), proportional to p(z) p(x | z), for a fixed batch of observations.

    Args:
        prior: log p~(z), ``(B, d)`` to ``(B,)``.
        likelihood: log p(x | z) up to a constant, from ``(x, z)`` to ``(B,)``.
        x: the observations, one for each chain, ``(B, ...)``.
    """

    def __init__(
        self, prior: Target, likelihood: Callable[[Tensor, Tensor], Tensor], x: Tensor
    ) -> None:
        self.prior, self.likelihood, self.x = prior, likelihood, x

    def __call__(self, z: Tensor) -> Tensor:
        return as_log_prob(self.prior)(z) + self.likelihood(self.x, z)


@freezes(Posterior)
def _frozen_posterior(posterior: Posterior) -> WithGradient | None:
    """Both gradients added, if the prior offers one or can be prepared."""
    prior = frozen(posterior.prior)
    if not hasattr(prior, "value_and_grad"):
        return None

    def likelihood(z: Tensor) -> Tensor:
        return posterior.likelihood(posterior.x, z)

    def gradient(z: Tensor) -> tuple[Tensor, Tensor]:
        of_prior, of_likelihood = value_and_grad(prior, z), value_and_grad(likelihood, z)
        return of_prior[0] + of_likelihood[0], of_prior[1] + of_likelihood[1]

    return WithGradient(posterior, gradient)


class LatentModel(nn.Module):
    """An energy-tilted Gaussian prior and a Gaussian likelihood around a decoder (equation 1),

        p(z) proportional to exp(-E(z)) N(z; 0, I),    p(x | z) = N(x; g(z), sigma^2 I).

    Args:
        decoder: g, any module from z ``(B, d)`` to x ``(B, ...)``.
        energy: E, any module from z ``(B, d)`` to ``(B,)`` or ``(B, 1)``; None leaves the
            Gaussian prior.
        latent_dim: d.
        sigma: standard deviation of the likelihood, the same for every pixel.
    """

    def __init__(
        self, decoder: nn.Module, energy: nn.Module | None, latent_dim: int, sigma: float
    ) -> None:
        super().__init__()
        if latent_dim < 1 or not sigma > 0:
            raise BadInput(f"latent_dim and sigma must be positive, got {latent_dim} and {sigma}")
        self.decoder = decoder
        self.prior = EnergyPrior(energy)
        self.latent_dim = latent_dim
        self.sigma = sigma

    def squared_error(self, x: Tensor, z: Tensor) -> Tensor:
        """|x - g(z)|^2 summed over all pixels and channels, ``(B,)``."""
        image: Tensor = self.decoder(z)
        _check_image(self.decoder, image, x)
        return (x - image).square().flatten(1).sum(1)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) up to a constant, ``(B,)``."""
        return self.squared_error(x, z) / (-2 * self.sigma**2)

    def log_joint(self, z: Tensor, x: Tensor) -> Tensor:
        """log p~(z, x) = log p~(z) + log p(x | z), up to a constant, ``(B,)``."""
        return self.prior.log_prob(z) + self.log_likelihood(x, z)

    def prior_of(self, x: Tensor) -> EnergyPrior:
        """The prior, which does not depend on x: the target of chains that belong to no image."""
        return self.prior

    def posterior(self, x: Tensor) -> Posterior:
        """p(z | x) up to a constant, as a target for chains, one for each row of x."""
        return ImagePosterior(self, x)


class ImagePosterior(Posterior):
    """p(z | x) of a `LatentModel`, which can be prepared for the runs of a chain.

    Args:
        model: the model.
        x: the images, one for each chain, ``(B, C, H, W)``.
    """

    def __init__(self, model: LatentModel, x: Tensor) -> None:
        super().__init__(model.prior, model.log_likelihood, x)
        self.model = model


@freezes(ImagePosterior)
def _frozen_image_posterior(posterior: ImagePosterior) -> WithGradient | None:
    """One pass through the decoder and back, if any layer of it can be written out.

    With error x - g(z), the gradient of log p(x | z) at g(z) is error / sigma^2.
    """
    model, x = posterior.model, posterior.x
    if type(model) is not LatentModel or not has_rule(model.decoder):
        return _frozen_posterior(posterior)
    decoder, factor = without_shuffle(model.decoder)
    prior, decode = frozen(model.prior), pullback(decoder)
    variance = model.sigma**2
    x = x if factor == 1 else F.pixel_unshuffle(x, factor)

    def gradient(z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal x
        value, grad = value_and_grad(prior, z)
        image, pull = decode(z)
        _check_image(decoder, image, x)
        if x.stride() != image.stride():
            x = torch.empty_like(image).copy_(x)  # once, to lie in memory as the images do
        error = x - image
        # The norm reads the error once; its square would first be written out.
        norm = torch.linalg.vector_norm(error, dim=tuple(range(1, error.ndim)))
        # Pulling back is linear: the latent gradient is divided, not the image.
        grad = torch.add(grad, pull(error), alpha=1 / variance)
        return value - norm.square() / (2 * variance), grad

    return WithGradient(posterior, gradient)


def check_model(model: LatentModel, x: Tensor) -> None:
    """Raises `BadInput` if decoder or energy do not fit images x ``(B, ...)``, and names which.

    Both run once, in evaluation mode, on two points.
    """
    x = x[:2]
    z = x.new_zeros(len(x), model.latent_dim)
    _check_image(model.decoder, _try("decoder", model.decoder, z), x)
    energy = model.prior.energy
    if energy is not None:
        energies(energy, _try("energy", energy, z), z)


def check_encoder(q: Amortizer, x: Tensor) -> None:
    """Raises `BadInput` if the encoder of an amortizer does not fit images x ``(B, ...)``."""
    if q.encoder is None:
        raise BadInput(
            "the amortizer must have an encoder of images to learn p(z | x), got context=None"
        )
    embedded = _try("encoder", q.encoder, x[:2])
    expected = (len(x[:2]), q.denoiser.embedding)
    if getattr(embedded, "shape", None) != expected:
        raise BadInput(
            f"the encoder {type(q.encoder).__name__} must give embeddings of shape {expected}, the "
            f"amortizer's `embedding`, got {_given(embedded)}"
        )


def _try(role: str, module: nn.Module, inputs: Tensor) -> Any:
    """What a module gives in evaluation mode; its modes and torch's random state stay."""
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad(), global_seed(0, inputs.device):
            return module.eval()(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(
            f"the {role} {type(module).__name__} must take inputs of shape {tuple(inputs.shape)}, "
            f"got an error: {reason}"
        ) from error
    finally:
        for part, training in modes.items():
            part.training = training


def _check_image(decoder: nn.Module, image: Any, x: Tensor) -> None:
    if getattr(image, "shape", None) != x.shape:
        raise BadInput(
            f"the decoder {type(decoder).__name__} must give images of shape {tuple(x.shape)}, "
            f"as the data are, got {_given(image)}"
        )


def _given(value: Any) -> str:
    """What a module returned, in words."""
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
