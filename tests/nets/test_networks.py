"""Networks as plain values: kinds by name, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn

from damc.errors import BadInput
from damc.learn.presets import PRESETS
from damc.nets.networks import DECODER_KINDS, Networks

SMALL = PRESETS["digits-small"].networks


def linear_decoder(latent_dim: int, shape: tuple[int, int, int], *, bias: bool) -> nn.Module:
    c, h, w = shape
    return nn.Sequential(nn.Linear(latent_dim, c * h * w, bias=bias), nn.Unflatten(1, shape))


def test_a_new_kind_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODER_KINDS, "linear", linear_decoder)
    networks = replace(SMALL, decoder={"kind": "linear", "bias": False})
    decoder = Networks(**asdict(networks)).build_decoder()  # as a run folder gives it back
    assert decoder(torch.zeros(3, SMALL.latent_dim)).shape == (3, *SMALL.shape)
    assert [tuple(p.shape) for p in decoder.parameters()] == [(64, SMALL.latent_dim)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decoder": {"kind": "tree"}}, "kind of the decoder must be conv or hybrid or mlp, got"),
        ({"encoder": {"kind": "tree"}}, "kind of the encoder must be conv or mlp, got 'tree'"),
        ({"decoder": {"kind": "conv", "rows": "oak"}}, "rows must be one of svhn, .*, got 'oak'"),
        ({"encoder": {"kind": "conv", "rows": "oak"}}, "rows must be one of svhn, .*, got 'oak'"),
    ],
)
def test_unknown_names_are_refused(change: dict[str, Any], words: str) -> None:
    networks = replace(SMALL, **change)
    with pytest.raises(BadInput, match=words):
        networks.build_decoder()
        networks.build_encoder()
