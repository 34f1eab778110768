"""What every preset is: its data, the sizes of its networks, what training it takes."""

from __future__ import annotations

__all__ = ["describe_preset", "network_sizes"]

from typing import Any

import torch

from damc.learn.presets import Preset
from damc.learn.sharing import count


def describe_preset(preset: Preset) -> dict[str, Any]:
    """One preset as a row of a table; networks are given by their numbers of parameters."""
    return {
        "preset": preset.name,
        "about": preset.about,
        "data": preset.data,
        "image": "x".join(map(str, preset.networks.shape)),
        "latent_dim": preset.networks.latent_dim,
        **network_sizes(preset),
        "iterations": preset.iterations,
        "cost": _cost(preset),
    }


def network_sizes(preset: Preset) -> dict[str, int | None]:
    """Parameters of each network of a preset; None for one that it does not have."""
    networks = preset.networks
    with torch.device("meta"):  # without memory
        amortizer = networks.build_amortizer()
        parts = {
            "decoder": networks.build_decoder(),
            "energy": networks.build_energy(),
            "denoiser": amortizer.denoiser,
            "encoder": amortizer.encoder,
        }
    return {
        name: None if part is None else count(part.parameters()) for name, part in parts.items()
    }


def _cost(preset: Preset) -> str:
    if preset.minutes is not None:
        time = f"{preset.minutes} minute{'s' if preset.minutes > 1 else ''}"
        return f"{preset.iterations:,} iterations, about {time} on 2 cores"
    if preset.name.endswith("-small"):
        return f"{preset.iterations:,} iterations, on a laptop"
    return f"{preset.iterations:,} iterations, the paper's size: for a GPU"
