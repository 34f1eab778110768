"""Decoder inversion as posterior sampling: a frozen decoder, its codes, and p(code | image).

Codes c are StyleGAN's extended ones, one vector for each layer, flattened to ``(B, d)``; or what
any other module takes. Inversion works in standardized codes z,

    c = mean + scale * z,    log p(x | z) = -(P / (2 sigma^2)) misfit(x, z),
    misfit = mean squared pixel error + perceptual_weight * perceptual distance,

with the mean and spread of the decoder's own codes and P numbers in an image, so that N(0, I) is a
sensible reference, and with pixels alone the likelihood is N(x; g(z), sigma^2 I).
"""

from __future__ import annotations

__all__ = ["Problem", "StyleCodes"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from damc.density import LogProb
from damc.errors import BadInput, Diverged
from damc.inversion.stylegan import StyleDecoder, style_sizes
from damc.randomness import normal

Draw = Callable[[int, torch.Generator | None], Tensor]


class StyleCodes(nn.Module):
    """The part of a `StyleDecoder` that is inverted: flattened w+ codes to images.

    Args:
        decoder: the whole decoder; its mapping gives random codes.
        shape: (C, H, W) of the images to give, cut from the middle where the decoder's squares are
            larger; the decoder's own by default.
    """

    def __init__(self, decoder: StyleDecoder, shape: tuple[int, int, int] | None = None) -> None:
        super().__init__()
        self.decoder = decoder
        self.dim = decoder.synthesis.layers * decoder.synthesis.style
        sizes = style_sizes(decoder.state_dict())
        side, channels = sizes["resolution"], sizes["channels"]
        self.shape = c, h, w = shape or (channels, side, side)
        if c != channels or max(h, w) > side:
            raise BadInput(
                f"images must be at most {channels}x{side}x{side} (channels x height x width), as "
                f"the decoder makes them, got {c}x{h}x{w}"
            )
        self.corner = ((side - h) // 2, (side - w) // 2)

    def forward(self, codes: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` of codes ``(B, layers * style)``; the noise is the decoder's."""
        images: Tensor = self.decoder.synthesis(codes)
        (_, h, w), (top, left) = self.shape, self.corner
        return images[..., top : top + h, left : left + w]

    @torch.no_grad()
    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Codes of random latent points, not truncated, ``(n, layers * style)``."""
        weight = self.decoder.truncation.w_avg
        place = weight.device if generator is None else generator.device
        z = normal(n, self.decoder.mapping.latent_dim, generator=generator, device=place)
        return self.decoder.codes(z.to(weight), truncate=False).flatten(1)


class Problem(nn.Module):
    """A frozen decoder with the coordinates in which its codes are searched.

    Args:
        decoder: any module from codes ``(B, d)`` to images ``(B, C, H, W)``.
        dim: d.
        shape: (C, H, W) of the images.
        draw: random codes of the decoder, from ``(n, generator)`` to ``(n, d)``; N(0, I) by
            default.
        sigma: standard deviation of the likelihood.
        perceptual: a module with `distance(x, y)`, ``(B,)``, such as `damc.inversion.vgg.VGG16`;
            None compares pixels alone.
        perceptual_weight: weight of that distance beside the pixel error of weight 1. The authors'
            code has 5e-5 beside 1.5.
        rank: how many stiff directions the preconditioner may have.

    `calibrate` must see the decoder once before the problem is used.
    """

    mean: Tensor
    scale: Tensor
    directions: Tensor
    stiffness: Tensor

    def __init__(
        self,
        decoder: nn.Module,
        dim: int,
        shape: tuple[int, int, int],
        *,
        draw: Draw | None = None,
        sigma: float = 0.1,
        perceptual: nn.Module | None = None,
        perceptual_weight: float = 5e-5 / 1.5,
        rank: int = 512,
    ) -> None:
        super().__init__()
        if dim < 1 or rank < 1 or not sigma > 0 or not perceptual_weight >= 0:
            raise BadInput(
                "dim, rank and sigma must be positive and perceptual_weight not negative, "
                f"got {dim}, {rank}, {sigma} and {perceptual_weight}"
            )
        self.decoder = decoder.requires_grad_(False).eval()
        self.perceptual = None
        if perceptual is not None:
            self.perceptual = perceptual.requires_grad_(False).eval()
        self.dim, self.shape, self.sigma = dim, shape, sigma
        self._draw = draw
        self.perceptual_weight = perceptual_weight
        rank = min(rank, dim)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("directions", torch.zeros(dim, rank))
        self.register_buffer("stiffness", torch.zeros(rank))

    def train(self, mode: bool = True) -> Problem:
        """Stays in evaluation mode: nothing here is trained."""
        return super().train(False)

    @torch.no_grad()
    def calibrate(
        self,
        generator: torch.Generator | None = None,
        *,
        codes: int = 10_000,
        probes: int = 1024,
        batch: int = 64,
    ) -> Problem:
        """Estimates the codes' mean and spread, and the decoder's stiff directions.

        Stiffness is the mean of J^T J over codes, J the Jacobian of g at z: for v ~ N(0, I) in
        image space, J^T v has that covariance, so `probes` backward passes estimate it.

        Args:
            generator: source of all randomness.
            codes: how many codes are drawn for the mean and spread.
            probes: how many random directions are pulled back, the rank it can find; 0 leaves out
                the stiffness, which only Langevin and the amortizer need.
            batch: codes decoded together.
        """
        drawn = self.draw_codes(codes, generator)
        self.check_codes(drawn)
        self.mean.copy_(drawn.mean(0))
        spread = drawn.std(0)
        # A coordinate that hardly varies would blow up any step taken in it.
        self.scale.copy_(spread.clamp(min=1e-2 * float(spread.mean()) + 1e-8))
        if probes < 1:
            return self
        pulled = []
        for start in range(0, probes, batch):
            z = self.standardize(self.draw_codes(min(batch, probes - start), generator))
            v = torch.empty(len(z), *self.shape, device=z.device, dtype=z.dtype)
            v.normal_(generator=generator)
            with torch.enable_grad():
                z.requires_grad_()
                image = self.decode(z)
                if image.shape[1:] != self.shape:
                    raise BadInput(
                        f"the decoder must make images of shape {self.shape}, "
                        f"got {tuple(image.shape[1:])}"
                    )
                pulled.append(torch.autograd.grad((image * v).sum(), z)[0])
        found = torch.cat(pulled) / probes**0.5
        _, singular, rows = torch.linalg.svd(found.double(), full_matrices=False)
        kept = min(len(singular), len(self.stiffness))
        self.directions.zero_()[:, :kept] = rows[:kept].T.to(self.directions)
        self.stiffness.zero_()[:kept] = singular[:kept].square().to(self.stiffness)
        return self

    def draw_codes(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Random codes of the decoder, ``(n, d)``."""
        if self._draw is not None:
            return self._draw(n, generator)
        return normal(n, self.dim, generator=generator, device=self.mean.device)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Standardized codes of the decoder, ``(n, d)``."""
        return self.standardize(self.draw_codes(n, generator))

    def standardize(self, codes: Tensor) -> Tensor:
        """z of codes, ``(B, d)``."""
        return (codes - self.mean) / self.scale

    def codes(self, z: Tensor) -> Tensor:
        """Codes of z, ``(B, d)``."""
        return self.mean + self.scale * z

    def decode(self, z: Tensor) -> Tensor:
        """Images g(z), ``(B, C, H, W)``."""
        images: Tensor = self.decoder(self.codes(z))
        return images

    def misfit(self, x: Tensor, z: Tensor) -> Tensor:
        """How far g(z) is from x: pixel error, with the perceptual distance if any, ``(B,)``."""
        image = self.decode(z)
        misfit = (x - image).square().flatten(1).mean(1)
        if self.perceptual is not None:
            misfit = misfit + self.perceptual_weight * self.perceptual_distance(x, image)
        return misfit

    def perceptual_distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Distance of images by the perceptual network, ``(B,)``."""
        if self.perceptual is None:
            raise BadInput("perceptual must be a network to measure distances by, got None")
        measure: Any = self.perceptual.distance
        distance: Tensor = measure(x, y)
        return distance

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x | z) up to a constant, ``(B,)``."""
        return self.misfit(x, z) * (-x[0].numel() / (2 * self.sigma**2))

    def stretch(self, u: Tensor) -> Tensor:
        """z = M^(-1/2) u, ``(B, d)``, with M = I + mean(J^T J) / sigma^2.

        M is the average precision of posteriors under N(0, I): in u they are about as wide in
        every direction, so that one Langevin step size suits all.
        """
        return self._power(u, -0.5)

    def squeeze(self, z: Tensor) -> Tensor:
        """u = M^(1/2) z, ``(B, d)``; the inverse of `stretch`."""
        return self._power(z, 0.5)

    def stretched(self, log_prob: LogProb) -> LogProb:
        """A log-density of z as one of u."""
        return lambda u: log_prob(self.stretch(u))

    def check_images(self, x: Tensor) -> Tensor:
        """The images, if they are of the decoder's size and finite."""
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape or not len(x):
            c, h, w = self.shape
            raise BadInput(f"images must have shape (B, {c}, {h}, {w}), got {tuple(x.shape)}")
        if not bool(torch.isfinite(x).all()):
            raise BadInput("images must be finite numbers, got NaN or infinity")
        return x

    def check_codes(self, codes: Tensor) -> Tensor:
        """The codes, if they are of the decoder's size and finite."""
        if codes.ndim != 2 or codes.shape[1] != self.dim:
            raise BadInput(f"codes must have shape (B, {self.dim}), got {tuple(codes.shape)}")
        if not bool(torch.isfinite(codes).all()):
            raise Diverged("codes are not finite numbers")
        return codes

    def _power(self, z: Tensor, power: float) -> Tensor:
        change = (1 + self.stiffness / self.sigma**2) ** power - 1
        return z + (z @ self.directions * change) @ self.directions.T
