"""Critics: networks that score images, or images together with latent points.

A critic sees images through the same layers as the encoder, without their normalization: a layer
that rescales each image would hide its brightness and contrast from the critic.
"""

from __future__ import annotations

__all__ = ["BiNetworks", "Joint", "image_energy", "without_norm"]

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.nets.energy import Energy
from damc.nets.mlp import check_positive, mlp
from damc.randomness import uniform_like

SLOPE = 0.2


class Joint(nn.Module):
    """The critic of pairs: from an image and a latent point to one logit.

    Args:
        trunk: images `(B, C, H, W)` to `(B, embedding)`.
        embedding: size of the trunk's output.
        latent_dim: dimension d of z.
        hidden: sizes of the layers that see image and point together; by default two as wide as
            the embedding, 256 at least. Whether the two belong together shows only here.

    >>> critic = Joint(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), embedding=8, latent_dim=2)
    >>> critic(torch.zeros(3, 1, 4, 4), torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        trunk: nn.Module,
        embedding: int,
        latent_dim: int,
        hidden: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        hidden = hidden or 2 * (max(256, embedding),)
        check_positive(embedding=embedding, latent_dim=latent_dim, hidden=hidden)
        self.trunk = nn.Sequential(trunk, nn.LeakyReLU(SLOPE))
        self.pair = mlp((embedding + latent_dim, *hidden), last="lrelu", slope=SLOPE)
        self.logit = nn.Linear(hidden[-1], 1)
        # torch's default initial weights shrink activations: features of the image, which passes
        # through more layers than the point, would be too small beside it.
        self.apply(keep_variance)

    def forward(
        self,
        x: Tensor,
        z: Tensor,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Logits `(B,)` of images `x: (B, C, H, W)` with points `z: (B, d)`.

        Args:
            x: images.
            z: latent points, one for each image.
            dropout: the share of hidden units left out, other ones in every row; for training.
            generator: source of what is left out.
        """
        return self.read(self.features(x, z, dropout=dropout, generator=generator))

    def features(
        self,
        x: Tensor,
        z: Tensor,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """What the last layer sees of the pairs, `(B, hidden[-1])`."""
        h = torch.cat([drop(self.trunk(x), dropout, generator), z], 1)
        return drop(self.pair(h), dropout, generator)

    def read(self, features: Tensor) -> Tensor:
        """Logits `(B,)` of `features`."""
        logits: Tensor = self.logit(features)
        return logits.squeeze(1)


class BiNetworks(nn.Module):
    """The three networks of a BiGAN.

    Args:
        decoder: g, from z `(B, d)` to images.
        encoder: e, from images to z `(B, d)`.
        critic: D, from images and latent points to logits; positive means (x, e(x)).
    """

    def __init__(self, decoder: nn.Module, encoder: nn.Module, critic: Joint) -> None:
        super().__init__()
        self.decoder, self.encoder, self.critic = decoder, encoder, critic


def image_energy(trunk: nn.Module, embedding: int) -> Energy:
    """An energy of images: `trunk`, from images to `(B, embedding)`, and one number out of it."""
    return Energy(nn.Sequential(trunk, nn.LeakyReLU(SLOPE), nn.Linear(embedding, 1)))


def without_norm(encoder: nn.Module) -> nn.Sequential:
    """The layers of an encoder but those that normalize each image."""
    return nn.Sequential(
        *(layer for layer in encoder.children() if not isinstance(layer, nn.InstanceNorm2d))
    )


def keep_variance(layer: nn.Module) -> None:
    """Initializes a layer so that the variance of its input is kept (He et al. 2015)."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, SLOPE)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def drop(h: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose randomness is the generator's (torch's own layer has no such choice)."""
    if not 0 <= share < 1:
        raise BadInput(f"dropout must lie in [0, 1), got {share}")
    if share == 0:
        return h
    return h * (uniform_like(h, generator) < 1 - share) / (1 - share)
