"""Presets: the paper's five, and small ones for a laptop."""

from __future__ import annotations

__all__ = ["DEMO", "FEW_IMAGES", "PRESETS", "Preset", "Recipe", "find_preset", "laptop_recipe"]

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from damc.errors import BadInput
from damc.learn.settings import AmortizerSettings, ChainSettings, PriorSettings, StartSettings
from damc.nets.networks import Networks


@dataclass(frozen=True)
class Recipe(ChainSettings, PriorSettings, AmortizerSettings, StartSettings):
    """How a preset trains: every group of settings; `Learner.settings_from` takes a method's.

    The groups hold the paper's choices, which every method shares and "damc-paper" has alone;
    `damc` holds those in which DAMC departs from them.
    """

    warm_posterior_steps: int | None = None  # of chains from an amortizer; None: posterior_steps
    damc: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """Networks and a recipe under one name, and how to feed and stop them."""

    name: str
    about: str
    data: str  # a name that `damc.data.load_images` knows
    networks: Networks
    recipe: Recipe
    batch: int = 128
    iterations: int = 200_000
    flip: bool = False
    shift: int = 0  # pixels by which images move at most, drawn anew for each batch
    minutes: int | None = None  # of training on 2 cores, roughly; None needs a GPU


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else f": it is one of {', '.join(PRESETS)}"
    raise BadInput(f"there is no preset {name!r}{hint}")


_ITERATIONS = 200_000  # of the paper's runs


def _paper(
    name: str,
    about: str,
    shape: tuple[int, int, int],
    latent_dim: int,
    width: int,
    *,
    encoder_width: int = 64,
    flip: bool = True,
    **recipe: Any,
) -> Preset:
    networks = Networks(
        shape,
        latent_dim,
        decoder={"kind": "conv", "rows": name, "width": width},
        encoder={"kind": "conv", "rows": name, "width": encoder_width},
    )
    # The horizon divides the iterations of methods with stages; with step decay DAMC ignores it.
    return Preset(
        name, about, name, networks, Recipe(**{"horizon": _ITERATIONS, **recipe}), flip=flip
    )


_PAPER = (
    _paper("svhn", "the paper's networks and settings for SVHN", (3, 32, 32), 100, 64),
    _paper("celeba64", "the paper's networks and settings for CelebA", (3, 64, 64), 100, 128),
    _paper("cifar10", "the paper's networks and settings for CIFAR-10", (3, 32, 32), 128, 128),
    _paper(
        "celebahq256",
        "the paper's networks and settings for CelebA-HQ",
        (3, 256, 256),
        128,
        128,
        sigma=1.0,
    ),
    _paper(
        "mnist",
        "the paper's networks and settings for anomalies in MNIST",
        (1, 28, 28),
        8,
        128,
        encoder_width=128,
        flip=False,
        sigma=1.0,
        noise_negatives=False,
        unconditional="both",
        decoder_rate=1e-4,
        energy_rate=5e-5,
        amortizer_rate=1e-4,
        amortizer_weight_decay=0.0,
    ),
)

_LAPTOP: dict[str, Any] = {
    # Few-step starts and faster rates, for thousands of iterations instead of 200,000.
    "start_solver": "multistep",
    "start_steps": 10,
    "decoder_rate": 1e-3,
    "amortizer_rate": 1e-3,
    "energy_rate": 5e-4,
    "ema_rate": 0.05,
    "ema_every": 1,
    "decay": "cosine",
}

_DAMC: dict[str, Any] = {
    # Where DAMC departs from the paper: an auto-encoder first, a fifth of the cost of chains an
    # iteration or less; then short chains, and a q(z) of its own, which learns stored samples at
    # no decoder's cost.
    "warm_up": 0.93,
    "centered": True,
    "p_uncond": 0.0,
    "beta1": 0.9,
    "decoder_rate": 3e-4,
    "amortizer_rate": 1e-4,
    "posterior_steps": 5,
    "posterior_step_size": 0.5,
    "test_steps": 40,
    "decoder_updates": 2,
    "updates": 3,
    "prior_starts": "noise",
    "store": 10_000,
    "store_updates": 4,
}

_DAMC_CONVOLUTIONS: dict[str, Any] = {**_DAMC, "linear_start": True, "energy_penalty": 0.5}
"""The same for images of many latent dimensions. Networks begin as principal components, which are
as good as what they learn in minutes. The difference of energies stays above -1 / 0.5, where with a
smaller penalty it grows until posterior chains follow the energy out of the data."""

_FEW_SMOOTH: dict[str, Any] = {
    **_DAMC_CONVOLUTIONS,
    "warm_up_variational": True,
    "store_scales": 9,
}
"""The same for a few thousand smooth images. Codes that are draws overlap, so that the decoder is
good between those of images, and q(z) is easy to learn. Scales are for contrast that varies: codes
are then near the mean or far from it in all directions at once, as no Gaussian is."""

_DAMC_MLP: dict[str, Any] = {
    **_DAMC,
    "encoder_updates": 2,
    "store_updates": 1,
    "store_energy_updates": 5,
}
"""The same for fully connected decoders, beside which an encoder is cheap; and for few latent
dimensions, where Gaussians describe q(z) and the energy gains by more updates."""

_DETECT: dict[str, Any] = {**_DAMC, "warm_up": 0.99, "warm_up_batch": 32}
"""And for anomalies, where only reconstructions count: nearly all of the time for the two networks
that make them (with 0.93, chains take two fifths of it), and more updates of them."""

FEW_IMAGES: dict[str, Any] = {
    **_DAMC_MLP,
    "warm_up": 0.4,
    "decoder_rate": 1e-3,
    "decoder_updates": 4,
    "store_energy_updates": 2,
}
"""And for a few thousand images, which an auto-encoder soon knows by heart: more chains, which
learn from samples of the posterior instead of one code for each image."""


def laptop_recipe(*, mlp: bool = False, **changes: Any) -> Recipe:
    """How small networks train, a fully connected decoder or another, with settings changed."""
    # The penalty keeps the energy from drifting: without it, E at the data falls without end.
    own = _DAMC_MLP if mlp else _DAMC_CONVOLUTIONS
    return Recipe(**{**_LAPTOP, "energy_penalty": 0.05, "damc": own, **changes})


def _small(
    name: str,
    about: str,
    networks: Networks,
    iterations: int,
    minutes: int,
    *,
    data: str | None = None,
    flip: bool = False,
    shift: int = 0,
    **recipe: Any,
) -> Preset:
    chosen = laptop_recipe(**{"horizon": iterations, **recipe})
    data = name.removesuffix("-small") if data is None else data
    return Preset(
        name,
        about,
        data,
        networks,
        chosen,
        iterations=iterations,
        flip=flip,
        shift=shift,
        minutes=minutes,
    )


_SMALL = (
    _small(
        "digits-small",
        "8x8 digits, fully connected",
        Networks(
            (1, 8, 8),
            8,
            decoder={"kind": "mlp", "hidden": [128, 128]},
            encoder={"kind": "mlp", "hidden": [128]},
            energy={"hidden": [100, 100]},
            embedding=64,
            amortizer={"capacity": 0.5},
        ),
        iterations=1000,
        minutes=1,
        sigma=0.3,
        mlp=True,
        damc=FEW_IMAGES,
    ),
    _small(
        "mnist-small",
        "28x28 digits, fully connected",
        Networks(
            (1, 28, 28),
            24,
            decoder={"kind": "mlp", "hidden": [512, 512]},
            encoder={"kind": "mlp", "hidden": [512]},
            embedding=256,
            amortizer={"capacity": 0.5},
        ),
        iterations=12_000,
        minutes=6,
        sigma=0.3,
        mlp=True,
        energy_penalty=0.02,
    ),
    _small(
        "mnist-5k-small",
        "the 5,000 embedded digits of the demo",
        Networks(
            (1, 28, 28),
            16,
            decoder={"kind": "mlp", "hidden": [512, 512]},
            encoder={"kind": "mlp", "hidden": [512]},
            embedding=256,
            amortizer={"capacity": 0.5},
        ),
        iterations=1400,
        minutes=4,
        sigma=0.3,
        mlp=True,
        damc=FEW_IMAGES,
        energy_penalty=0.01,
    ),
    _small(
        "mnist-detect-small",
        "28x28 digits in few dimensions, to detect a held-out one",
        Networks(
            (1, 28, 28),
            8,
            decoder={"kind": "hybrid", "rows": "quarter", "hidden": [256], "width": 8},
            encoder={"kind": "mlp", "hidden": [512]},
            embedding=256,
            amortizer={"capacity": 0.5},
        ),
        iterations=20_000,
        minutes=10,
        data="mnist",
        sigma=0.15,
        posterior_step_size=0.05,
        warm_posterior_steps=10,
        energy_penalty=0.02,
        damc=_DETECT,
    ),
    _small(
        "svhn-small",
        "house numbers, convolutions at a quarter of the size",
        Networks(
            (3, 32, 32),
            64,
            decoder={"kind": "hybrid", "rows": "quarter", "hidden": [256], "width": 16},
            encoder={"kind": "mlp", "hidden": [512]},
            embedding=256,
            amortizer={"capacity": 0.5},
        ),
        iterations=3500,
        minutes=6,
        shift=2,  # of few images the decoder otherwise learns their own z alone, for every method
        sigma=0.3,
        posterior_steps=20,
        encoder_updates=1,
        warm_posterior_steps=10,
        damc=_FEW_SMOOTH,
    ),
    _small(
        "cifar10-small",
        "CIFAR-10, convolutions at a quarter of the size",
        Networks(
            (3, 32, 32),
            128,
            decoder={"kind": "hybrid", "rows": "quarter", "hidden": [256], "width": 16},
            encoder={"kind": "mlp", "hidden": [512]},
            embedding=256,
            amortizer={"capacity": 0.5},
        ),
        iterations=3000,
        minutes=5,
        flip=True,
        sigma=0.3,
        posterior_steps=20,
        encoder_updates=1,
        warm_posterior_steps=10,
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (*_PAPER, *_SMALL)}
"""Every preset by name."""

DEMO = ("mnist-5k", "mnist-5k-small", 1400)
"""What `damc demo` trains: data, preset, iterations."""
