"""Warm-up: encoder and decoder learn as an auto-encoder, before any chain runs.

One of its updates costs a pass through both networks and back; an iteration with chains costs many.
"""

from __future__ import annotations

__all__ = ["autoencoder_steps", "spread_of"]

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.amortize.center import Center
from damc.latent import LatentModel
from damc.learn.parts import Metrics, Update, squared_weights
from damc.learn.processes import mean_with_gradient
from damc.learn.vae import divergence
from damc.randomness import normal

_LOG_VARIANCE = -2.0  # of the draws at first


def spread_of(center: Center) -> nn.Linear:
    """A layer to log v(x) beside the one to m(x); it begins with one v for every x."""
    layer = nn.Linear(center.mean.in_features, center.mean.out_features)
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, _LOG_VARIANCE)
    return layer


def autoencoder_steps(
    model: LatentModel,
    q: Amortizer,
    x: Tensor,
    update: Update,
    *,
    updates: int,
    penalty: float = 0.0,
    spread: nn.Module | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Metrics]:
    """Steps of the decoder, q's encoder and its center m, each on its part of the batch x.

    The code of x is z = m(x), and the loss

        |x - g(z)|^2 + sigma^2 sum_j (mean_j^2 + variance_j - log variance_j)

    with the moments of each coordinate of the codes: 2 sigma^2 times the divergence of a Gaussian
    with those moments from the prior N(0, I) is what is added. A decoder can undo any scale of its
    codes; chains, whose prior is N(0, I), cannot. `penalty` is that of `decoder_step`.

    With `spread` the auto-encoder is variational (Kingma and Welling, 2014): codes are draws of
    N(m(x), diag v(x)), and the divergence is that of each of these Gaussians. The decoder learns at
    points around m(x), and codes of similar images overlap, so that q(z) is easier to learn.

    Args:
        model: the decoder and sigma.
        q: its encoder and its center learn.
        x: images, ``(B, ...)``.
        update: makes a step of the optimizer of that name.
        updates: parts of the batch.
        penalty: weight of the decoder's squared dense weights.
        spread: from the embeddings that m sees to log v(x), ``(B, d)``.
        generator: source of the draws.

    Returns:
        The codes z ``(B, d)``, each before the step that it was used in, and how it went.
    """
    assert q.center is not None
    d, noise = model.latent_dim, None
    if spread is not None:
        noise = normal(len(x), d, generator=generator, dtype=x.dtype, device=x.device)
    codes, errors = [], []
    for k, part in enumerate(x.chunk(updates)):
        embedded = q.embed(part)
        z = q.center(embedded)
        if spread is None or noise is None:
            added = _divergence(z)
        else:
            log_v = spread(q.center.features(embedded))
            added = 2 * divergence(z, log_v).mean()
            z = z + (log_v / 2).exp() * noise.chunk(updates)[k]
        error = model.squared_error(part, z).mean()
        loss = error + model.sigma**2 * added
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
