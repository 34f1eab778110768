"""Networks, described as data and built by one builder each: decoders, encoders, energies."""

from __future__ import annotations

from damc.nets.decoder import (
    DECODERS,
    HYBRIDS,
    UpLayer,
    conv_decoder,
    conv_decoder_for,
    decoder_rows,
    mlp_conv_decoder,
    mlp_decoder,
)
from damc.nets.encoder import (
    ENCODERS,
    DownLayer,
    conv_encoder,
    encoder_for,
    encoder_rows,
    mlp_encoder,
)
from damc.nets.energy import Energy, mlp_energy
from damc.nets.mlp import ACTIVATIONS, activation_layer, mlp

__all__ = [
    "ACTIVATIONS",
    "DECODERS",
    "ENCODERS",
    "HYBRIDS",
    "DownLayer",
    "Energy",
    "UpLayer",
    "activation_layer",
    "conv_decoder",
    "conv_decoder_for",
    "conv_encoder",
    "decoder_rows",
    "encoder_for",
    "encoder_rows",
    "mlp",
    "mlp_conv_decoder",
    "mlp_decoder",
    "mlp_encoder",
    "mlp_energy",
]
