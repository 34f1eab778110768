"""Networks and settings from the shape of the data alone, where no preset is named."""

from __future__ import annotations

__all__ = ["network_shape", "preset_for_images", "preset_for_vectors"]

from dataclasses import replace

from damc.learn.presets import PRESETS, Preset, Recipe, laptop_recipe
from damc.nets.networks import Networks

_SIDE = 32  # pixels

_COLOR = {"linear_start": False, "decoder_penalty": 0.3}
"""What DAMC has on color images, as its tables were measured, instead of `svhn-small`'s own, which
is for samples."""


def preset_for_vectors(width: int) -> Preset:
    """Fully connected networks for standardized vectors of `width` columns, d of them.

    The latent size is the square root of the number of columns, from 2 to 24: large enough for the
    factors that columns share, too small to copy a row, which would reconstruct anomalies as well.
    sigma is half a standard deviation of a column. It is meant for hundreds to thousands of
    rows and takes seconds on one core.

    Args:
        width: d, columns of the data.
    """
    hidden = min(256, max(32, 4 * width))
    iterations = 200
    networks = Networks(
        (1, 1, width),
        min(24, max(2, round(width**0.5))),
        decoder={"kind": "mlp", "hidden": [hidden, hidden], "last": None},
        encoder={"kind": "mlp", "hidden": [hidden]},
        energy={"hidden": [64, 64]},
        embedding=64,
        amortizer={"capacity": 0.25, "solver": "multistep", "steps": 10},
    )
    recipe = Recipe(
        sigma=0.5,
        posterior_steps=15,
        prior_steps=20,
        updates=2,
        energy_penalty=0.05,
        start_solver="multistep",
        start_steps=5,
        decoder_rate=2e-3,
        amortizer_rate=2e-3,
        energy_rate=5e-4,
        ema_rate=0.05,
        ema_every=1,
        decay="cosine",
        horizon=iterations,
    )
    about = f"vectors of {width}, fully connected"
    return Preset("vectors", about, "", networks, recipe, iterations=iterations)


def network_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """What a network sees of images (C, H, W): at most 32 pixels of the longer side, by which it
    stays below 6 million parameters; sides are then multiples of 4."""
    channels, *sides = shape
    if max(sides) <= _SIDE:
        return shape
    h, w = (max(4, 4 * round(side * _SIDE / max(sides) / 4)) for side in sides)
    return channels, h, w


def preset_for_images(shape: tuple[int, int, int]) -> Preset:
    """The small preset nearest to images of that shape, its networks made for them.

    Up to 16 pixels a side `digits-small`; with sides that four divides, `svhn-small` in color and
    `mnist-detect-small` in gray, whose last layers are convolutions; else `mnist-small`, fully
    connected. Images stay where they are: what has moved may be an anomaly.

    Args:
        shape: (C, H, W).
    """
    channels, *sides = shape
    if max(sides) <= 16:
        near = PRESETS["digits-small"]
    elif min(sides) >= 16 and not any(side % 4 for side in sides):
        near = PRESETS["svhn-small" if channels > 1 else "mnist-detect-small"]
    else:
        near = PRESETS["mnist-small"]
    about = f"images of {'x'.join(map(str, shape))}, like {near.name}"
    color = {**laptop_recipe().damc, **_COLOR}
    own = color if near.name == "svhn-small" else near.recipe.damc
    recipe = replace(near.recipe, damc=own)
    networks = replace(near.networks, shape=shape)
    near = replace(near, networks=networks, recipe=recipe, shift=0)
    return replace(near, name="images", about=about, data="")
