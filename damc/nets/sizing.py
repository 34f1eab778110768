"""Networks for images of any shape: which kind, how wide, how many latent dimensions."""

from __future__ import annotations

__all__ = ["latent_size", "networks_for"]

import math
from collections.abc import Sequence

from damc.errors import BadInput
from damc.nets.encoder import image_shape
from damc.nets.networks import Description, Networks

_REDUCTIONS = {64: "quarter", 128: "eighth", 256: "sixteenth", 512: "thirty-second"}
_ENCODED = 64  # pixels a side that an encoder sees, at most


def networks_for(shape: Sequence[int], count: int) -> Networks:
    """Networks that a CPU can train, for `count` images of a shape (C, H, W).

    Up to 16 pixels a side they are fully connected. Above, the decoder is linear up to a map of at
    most 16 x 16, and shuffled convolutions from there; the encoder sees 64 pixels a side at most,
    which is enough for the starts of chains that see all of them.

    Args:
        shape: (C, H, W), with sides of 8 to 512 pixels.
        count: training images.
    """
    channels, high, wide = image_shape(shape)
    if min(high, wide) < 8 or max(high, wide) > 512:
        raise BadInput(f"images must have sides of 8 to 512 pixels, got {high} x {wide}")
    latent_dim = latent_size(shape, count)
    decoder: Description
    if max(high, wide) <= 16:
        decoder = {"kind": "mlp", "hidden": [256, 256] if channels > 1 else [128, 128]}
        encoder: Description = {"kind": "mlp", "hidden": [256 if channels > 1 else 128]}
        embedding, energy = 64, [100, 100]
    else:
        rows = next(name for side, name in _REDUCTIONS.items() if max(high, wide) <= side)
        decoder = {"kind": "hybrid", "rows": rows, "hidden": [256], "width": 16}
        encoder = {"kind": "mlp", "hidden": [512]}
        if max(high, wide) > _ENCODED:
            encoder["side"] = _ENCODED
        embedding, energy = 256, [200, 200]
    return Networks(
        (channels, high, wide),
        latent_dim,
        decoder=decoder,
        encoder=encoder,
        energy={"hidden": energy},
        embedding=embedding,
        amortizer={"capacity": 0.5},
    )


def latent_size(shape: Sequence[int], count: int) -> int:
    """d for `count` images of a shape: the root of their numbers, 8 to 128, in steps of 8.

    It gives 8 for 8 x 8 digits, 24 for MNIST and 56 for 32 x 32 in color. Fewer than 8 images for
    each dimension make it smaller, since a latent space with a place for every image of the
    training set reconstructs no other.

    Example:
        >>> latent_size((1, 28, 28), 60_000), latent_size((3, 64, 64), 40)
        (24, 8)
    """
    root = math.sqrt(math.prod(shape))
    return 8 * max(1, min(16, int(root // 8), count // 64))
