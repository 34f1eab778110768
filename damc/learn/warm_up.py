"""Warm-up: encoder and decoder learn as an auto-encoder, before any chain runs.

One of its updates costs a pass through both networks and back; an iteration with chains costs many.
"""

from __future__ import annotations

__all__ = ["CodeHead", "autoencoder_steps"]

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.latent import LatentModel
from damc.learn.parts import Metrics, Update
from damc.learn.processes import mean_with_gradient


class CodeHead(nn.Module):
    """Codes z = W a(e) + c of the embeddings e of images.

    With `standardize`, each coordinate then gets the mean 0 and the variance 1 of N(0, I) over the
    batch. An auto-encoder leaves the scale of its codes nearly open, since its decoder can undo
    any; standardized ones have that of the prior from the start, and as the moments of a batch are
    not known exactly, the decoder becomes smooth (Ioffe and Szegedy 2015), at the cost of detail.

    Args:
        embedding: size of e.
        latent_dim: d, size of z.
        standardize: whether codes are standardized.
    """

    def __init__(self, embedding: int, latent_dim: int, *, standardize: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(embedding, latent_dim)
        self.standardize = standardize

    def forward(self, embedded: Tensor) -> Tensor:
        """z ``(B, d)`` of embeddings ``(B, embedding)``; the batch is that of all processes."""
        z: Tensor = self.linear(nn.functional.leaky_relu(embedded, 0.2))
        if self.standardize:
            z = z - mean_with_gradient(z.mean(0))
            z = z * (mean_with_gradient(z.square().mean(0)) + 1e-6).rsqrt()
        return z


def autoencoder_steps(
    model: LatentModel, q: Amortizer, head: CodeHead, x: Tensor, update: Update, *, updates: int
) -> tuple[Tensor, Metrics]:
    """Steps of decoder, q's encoder and head, each on its part of the batch x.

    The loss is -2 sigma^2 log p(x, z) at the code z of x, under the prior N(0, I) and up to a
    constant.

    Returns:
        The codes z ``(B, d)``, each before the step that it was used in, and how it went.
    """
    codes, errors = [], []
    for part in x.chunk(updates):
        z = head(q.embed(part))
        error, size = model.squared_error(part, z).mean(), z.square().sum(1).mean()
        norm = update("autoencoder", error + model.sigma**2 * size)
        codes.append(z.detach())
        errors.append(error.detach())
    z = torch.cat(codes)
    return z, {
        "mse": torch.stack(errors).mean() / x[0].numel(),
        "z_norm": z.square().mean(),
        "decoder_gradient": norm,
    }
