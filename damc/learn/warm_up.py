"""Warm-up: encoder and decoder learn as an auto-encoder, before any chain runs.

One of its updates costs a pass through both networks and back; an iteration with chains costs many.
"""

from __future__ import annotations

__all__ = ["autoencoder_steps"]

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.latent import LatentModel
from damc.learn.parts import Metrics, Update, squared_weights
from damc.learn.processes import mean_with_gradient


def autoencoder_steps(
    model: LatentModel,
    q: Amortizer,
    x: Tensor,
    update: Update,
    *,
    updates: int,
    penalty: float = 0.0,
) -> tuple[Tensor, Metrics]:
    """Steps of the decoder, q's encoder and its center m, each on its part of the batch x.

    The code of x is z = m(x), and the loss

        |x - g(z)|^2 + sigma^2 sum_j (mean_j^2 + variance_j - log variance_j)

    with the moments of each coordinate of the codes: 2 sigma^2 times the divergence of a Gaussian
    with those moments from the prior N(0, I) is what is added. A decoder can undo any scale of its
    codes; chains, whose prior is N(0, I), cannot. `penalty` is that of `decoder_step`.

    Returns:
        The codes z ``(B, d)``, each before the step that it was used in, and how it went.
    """
    assert q.center is not None
    codes, errors = [], []
    for part in x.chunk(updates):
        z = q.center(q.embed(part))
        error = model.squared_error(part, z).mean()
        loss = error + model.sigma**2 * _divergence(z)
        if penalty:
            loss = loss + penalty * squared_weights(model.decoder, dense=True)
        norm = update("autoencoder", loss)
        codes.append(z.detach())
        errors.append(error.detach())
    z = torch.cat(codes)
    return z, {
        "mse": torch.stack(errors).mean() / x[0].numel(),
        "z_norm": z.square().mean(),
        "decoder_gradient": norm,
    }


def _divergence(z: Tensor) -> Tensor:
    """Twice KL(N(mean, variance) || N(0, I)) + d of codes z ``(B, d)``, over all processes."""
    mean, square = mean_with_gradient(z.mean(0)), mean_with_gradient(z.square().mean(0))
    variance = square - mean.square() + 1e-6
    return (square - variance.log()).sum()
