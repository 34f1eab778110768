"""Published models: what is written is read back, fewer bits lose little, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from damc import BadInput
from damc.hub.published import is_published, packed, read_config, read_model, unpacked, write_model

WEIGHTS = {
    "matrix": torch.randn(20, 30, generator=torch.Generator().manual_seed(0)),
    "filter": torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(1)),
    "bias": torch.randn(20, generator=torch.Generator().manual_seed(2)),
    "count": torch.tensor(3),
    "zero": torch.zeros(2, 5),
}
ABOUT = {"learner": "damc", "config": {}, "iteration": 7, "parameters": {"decoder": 1234}}


def test_a_model_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    assert not is_published(tmp_path)
    write_model(tmp_path, WEIGHTS, ABOUT)
    assert is_published(tmp_path)
    config, weights = read_model(tmp_path)
    assert config["iteration"] == 7 and config["bits"] == 32
    assert weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(("bits", "error"), [(16, 2**-11), (8, 1 / 254)])
def test_fewer_bits_are_off_by_their_rounding_and_no_more(bits: int, error: float) -> None:
    """Half precision rounds each number relatively; 8 bits, each row by its largest number."""
    weights = unpacked(packed(WEIGHTS, bits))
    assert weights.keys() == WEIGHTS.keys()
    for name, exact in WEIGHTS.items():
        assert weights[name].dtype == exact.dtype and weights[name].shape == exact.shape
        largest = exact.abs() if bits == 16 or exact.ndim < 2 else (
            exact.abs().flatten(1).amax(1).view(-1, *[1] * (exact.ndim - 1))
        )  # fmt: skip
        assert bool(((weights[name] - exact).abs() <= 1.01 * error * largest + 1e-7).all()), name
    assert torch.equal(weights["count"], WEIGHTS["count"])


def test_fewer_bits_make_smaller_files(tmp_path: Path) -> None:
    sizes = []
    for bits in (32, 16, 8):
        write_model(tmp_path / str(bits), {"w": torch.randn(300, 300)}, ABOUT, bits=bits)
        sizes.append((tmp_path / str(bits) / "model.safetensors").stat().st_size)
    assert sizes[0] / sizes[1] == pytest.approx(2, rel=0.02)
    assert sizes[0] / sizes[2] == pytest.approx(4, rel=0.05)


def test_one_changed_bit_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, WEIGHTS, ABOUT)
    blob = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(BadInput, match=r"must have the sha256 \w{64}, got \w{64}: the file was"):
        read_model(tmp_path)


def test_settings_without_a_hash_or_of_another_format_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, WEIGHTS, ABOUT)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"sha256": None}, "must give the sha256 of model.safetensors, got none"),
        ({"format": 9}, "must have format 1, got 9"),
        ({"format": None}, "must describe a model of damc"),
    ):
        changed = {k: v for k, v in (config | change).items() if v is not None}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(BadInput, match=words):
            read_model(tmp_path)
    (tmp_path / "config.json").write_text("not JSON")
    with pytest.raises(BadInput, match="must describe a model of damc"):
        read_config(tmp_path)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="bits must be 32, 16 or 8, got 4"):
        packed(WEIGHTS, 4)
    with pytest.raises(BadInput, match="bits must be 32 for weights beyond 65,504, got such in b"):
        packed({"b": torch.tensor([1e6])}, 16)
    with pytest.raises(BadInput, match="config must hold plain JSON values"):
        write_model(tmp_path, WEIGHTS, {**ABOUT, "what": object()})
