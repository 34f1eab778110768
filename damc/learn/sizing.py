"""A preset sized by the data, where none is named: networks, batch, sigma, time."""

from __future__ import annotations

__all__ = ["AUTO", "preset_for"]

import math
from collections.abc import Sequence

from damc.learn.presets import FEW_IMAGES, Preset, laptop_recipe
from damc.nets.sizing import networks_for

AUTO = "auto"
"""The name of presets that are sized by the data."""

_FEW = 20_000  # images below which fully connected networks have more iterations with chains

_NUMBERS = 3 * 32 * 32  # in an image, up to which sigma is the small presets' own


def preset_for(shape: Sequence[int], count: int, data: str = "") -> Preset:
    """A preset for `count` training images of a shape (C, H, W), meant for a CPU.

    Larger images have more pixels that each tell of z, so that the posterior narrows. sigma grows
    with the root of their number, up to 1, to keep its width and with it the chains' step size;
    beyond that, the step size shrinks.
    The batch shrinks where pixels are many, and the iterations where images are few: 400 for tens
    of images, 1,500 from five thousand on, and more of them where most only auto-encode.

    Args:
        shape: (C, H, W), with sides of 8 to 512 pixels.
        count: training images.
        data: where they come from, for the record.
    """
    networks = networks_for(shape, count)
    numbers = math.prod(networks.shape)
    grown = max(1.0, math.sqrt(numbers / _NUMBERS))
    sigma = min(1.0, 0.3 * grown)
    step_size = 0.1 * min(1.0, sigma / (0.3 * grown) * 2)
    large = math.sqrt(networks.shape[1] * networks.shape[2])
    batch = 128 if large <= 32 else 64 if large <= 64 else 32 if large <= 128 else 16
    convolutional = networks.decoder["kind"] != "mlp"
    few = not convolutional and count < _FEW
    iterations = 50 * round((400 + 1100 * min(1.0, count / 5000)) / 50)
    if not few:
        iterations *= 2 if convolutional else 4  # most of which only auto-encode
    recipe = laptop_recipe(
        mlp=not convolutional,
        **({"damc": FEW_IMAGES} if few else {}),
        sigma=round(sigma, 2),
        posterior_step_size=round(step_size, 3),
        horizon=iterations,
        # As in the small presets: fewer moves, and an encoder trained less often, where they cost.
        **({"posterior_steps": 20, "encoder_updates": 1} if convolutional else {}),
        **({"warm_posterior_steps": 10} if convolutional else {}),
    )
    # Fitted to CPU seconds of an iteration with chains for shapes from 8x8 to 256x256x3, on one
    # core. Few iterations have chains and the others cost a fifth: it is a quarter of that.
    seconds = 0.25 * (0.4 + 0.5e-6 * batch * numbers) if convolutional else 0.16 if few else 0.04
    channels, high, wide = networks.shape
    about = f"sized for {count:,} images of {wide}x{high} in {'color' if channels > 1 else 'gray'}"
    return Preset(
        AUTO,
        about,
        data,
        networks,
        recipe,
        batch=min(batch, count),
        iterations=iterations,
        minutes=max(1, round(seconds * iterations / 90)),  # two cores are 1.5 times as fast
    )
