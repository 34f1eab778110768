from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from damc.disk import write_atomically
from damc.disk.tensors import load_weights, pack, to_safetensors, unpack
from damc.errors import BadInput


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and bits: NaN equals NaN, 0.0 differs from -0.0, 1 differs from True."""
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and to_safetensors({"": a}) == to_safetensors({"": b})
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    raw = torch.tensor(list(draw(st.binary(min_size=27 * 8, max_size=27 * 8))), dtype=torch.uint8)
    dtype = draw(st.sampled_from(DTYPES))
    if dtype == torch.bool:
        return raw[: math.prod(shape)].view(shape) > 127
    # Any bit pattern, so NaN payloads, infinities and subnormals come along.
    return raw.view(dtype)[: math.prod(shape)].view(shape)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.sampled_from(["$dict", "$tensor", "$tuple", "$float"]) | st.integers()
nested = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(nested)
def test_what_is_packed_comes_back_equal_through_the_file_formats(value: Any) -> None:
    packed, state = pack(value)
    text = json.dumps(state, allow_nan=False)
    assert same(unpack(safetensors.torch.load(to_safetensors(packed)), json.loads(text)), value)


def test_the_comparison_above_notices_small_losses() -> None:
    """The round trip proves something only because `same` tells these apart."""
    assert not same({0: 1}, {"0": 1})
    assert not same((1,), [1])
    assert not same(True, 1)
    assert not same(0.0, -0.0)
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_an_optimizer_and_its_random_states_come_back() -> None:
    layer = torch.nn.Linear(3, 2)
    adam = torch.optim.AdamW(layer.parameters(), lr=1e-3, betas=(0.5, 0.999))
    layer(torch.ones(1, 3)).sum().backward()
    adam.step()
    generator = torch.Generator().manual_seed(5)
    state = {
        "adam": adam.state_dict(),
        "rng": [torch.get_rng_state(), generator.get_state()],
        "best": math.inf,
        "ema": OrderedDict(layer.state_dict()),
    }
    back = unpack(*pack(state))
    assert set(back["adam"]["state"]) == {0, 1}
    assert back["adam"]["param_groups"] == adam.state_dict()["param_groups"]
    other = torch.optim.AdamW(layer.parameters(), lr=1.0)
    other.load_state_dict(back["adam"])
    assert torch.equal(
        other.state_dict()["state"][0]["exp_avg"], adam.state_dict()["state"][0]["exp_avg"]
    )
    draw = torch.randn(4, generator=generator)
    again = torch.Generator()
    again.set_state(back["rng"][1])
    assert torch.equal(torch.randn(4, generator=again), draw)


def test_views_and_shared_memory_become_copies() -> None:
    base = torch.arange(6.0).view(2, 3)
    packed, state = pack([base, base.T, base[0].expand(2, 3)])
    back = unpack(packed, state)
    assert torch.equal(back[1], base.T)
    assert torch.equal(back[2], base[0].expand(2, 3))
    base.zero_()
    assert back[0][1, 2] == 5.0  # what was packed does not follow the model on


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2), b"bytes"])
def test_what_cannot_be_stored_is_named_with_its_place(value: Any) -> None:
    with pytest.raises(BadInput, match=r"state\['optimizer'\]\[1\] is a"):
        pack({"optimizer": [0, value]})


@pytest.mark.parametrize(
    "value", [{"$tensor": "7"}, {"$float": "__import__('os')"}, {"$set": [1]}, {"$dict": 3}]
)
def test_a_made_up_packed_state_is_refused(value: Any) -> None:
    with pytest.raises(BadInput):
        unpack({}, value)


class RunsCode:
    """Unpickling one of these makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_is_refused_and_never_opened(tmp_path: Path, new_format: bool) -> None:
    trap = tmp_path / "ran"
    path = tmp_path / "model.pt"
    torch.save(RunsCode(trap), path, _use_new_zipfile_serialization=new_format)
    with pytest.raises(BadInput, match=r"must be a safetensors file, got a pickle"):
        load_weights(path)
    assert not trap.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"not weights at all " * 9, b"\xff" * 64])
def test_a_foreign_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="must be a safetensors file, got") as caught:
        load_weights(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(BadInput, match="got no file at"):
            load_weights(path)


def test_every_truncation_of_a_weights_file_is_refused(tmp_path: Path) -> None:
    data = to_safetensors({"a": torch.arange(5.0), "b": torch.ones(2, 2)})
    path = tmp_path / "weights.safetensors"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(BadInput):
            load_weights(path)
    path.write_bytes(data)
    assert torch.equal(load_weights(path)["a"], torch.arange(5.0))


def test_changing_loaded_weights_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(to_safetensors({"a": torch.zeros(1000)}))
    load_weights(path)["a"].add_(1.0)
    assert load_weights(path)["a"].abs().sum() == 0.0


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, "one")
    assert write_atomically(path, b"two") == path
    assert path.read_bytes() == b"two"
    assert [item.name for item in path.parent.iterdir()] == ["file.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = write_atomically(tmp_path / "file.txt", "old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(BadInput, match=r"could not write in .*: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["file.txt"]


def test_what_comes_in_parts_replaces_the_file_at_the_end(tmp_path: Path) -> None:
    file = write_atomically(tmp_path / "a", b"old")

    def parts(fail: bool) -> Iterator[bytes]:
        yield b"one "
        assert file.read_bytes() == b"old"
        if fail:
            raise ValueError
        yield b"two"

    with pytest.raises(ValueError):
        write_atomically(file, parts(True))
    assert [*tmp_path.iterdir()] == [file] and file.read_bytes() == b"old"
    assert write_atomically(file, parts(False)).read_bytes() == b"one two"
