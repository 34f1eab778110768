"""Bytes on disk: atomic, sealed, and never a pipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damc import Amortizer, disk
from damc.amortize import History
from damc.errors import BadInput

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(max_size=6).filter(lambda k: k != "seal"), JSON, max_size=4)


@given(DOCUMENTS)
def test_what_is_sealed_comes_back(document: dict[str, Any]) -> None:
    for indent in (None, 2):
        assert disk.unseal(disk.seal(document, indent=indent), "it") == document


@given(DOCUMENTS, DOCUMENTS)
def test_no_other_document_fits_a_seal(one: dict[str, Any], other: dict[str, Any]) -> None:
    seal = json.loads(disk.seal(one))["seal"]
    swapped = json.dumps({**other, "seal": seal}).encode()
    if json.dumps(one) == json.dumps(other):
        assert disk.unseal(swapped, "it") == one
    else:
        with pytest.raises(BadInput, match="it is damaged or was edited"):
            disk.unseal(swapped, "it")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"{}", "has no digest"),
        (b'{"seal": null}', "has no digest"),
        (b'{"seal": {"sha256": 1}}', "has no digest"),
        (b'{"seal": {"sha256": "\xc3\xa4"}}', "damaged or was edited"),
        (b'{"a": NaN, "seal": {"sha256": ""}}', "is damaged: ValueError"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON"),
    ],
)
def test_what_is_no_sealed_document_is_one_sentence(data: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        disk.unseal(data, "it")


def test_layout_does_not_matter_to_a_seal_and_values_do() -> None:
    text = disk.seal({"a": 1, "b": [1.5, "x"]}).decode()
    assert disk.unseal(text.replace(" ", "\n\t").encode(), "it") == {"a": 1, "b": [1.5, "x"]}
    for old, new in (("1.5", "1.25"), ('"x"', '"y"'), ('"a": 1', '"a": 1.0'), ('"a"', '"A"')):
        with pytest.raises(BadInput, match="was edited"):
            disk.unseal(text.replace(old, new).encode(), "it")


def test_what_could_block_is_refused(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path, what in ((pipe, "named pipe"), (link, "device"), (tmp_path, "folder")):
        for use in (disk.read, disk.digest):
            with pytest.raises(BadInput, match=f"must be a plain file, got a {what}"):
                use(path)
    for mode in ("ab", "r+b"):
        with pytest.raises(BadInput, match="got a named pipe"):
            disk.open_plain(pipe, mode)
        with pytest.raises(BadInput, match="got a symbolic link"):
            disk.open_plain(link, mode)


def test_reading_follows_links_and_writing_does_not(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(ours)
    assert disk.read(tmp_path / "link") == b"precious"
    with pytest.raises(BadInput, match="got a symbolic link"):
        disk.open_plain(tmp_path / "link", "ab")
    disk.write_atomically(tmp_path / "link", b"new")
    assert ours.read_bytes() == b"precious"
    assert (tmp_path / "link").read_bytes() == b"new"


def test_new_folders_are_synced_up_to_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync_folder", synced.append)
    disk.write_atomically(tmp_path / "a" / "b" / "file", b"x")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)


@pytest.mark.parametrize("kind", ["amortizer", "history"])
def test_saving_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def save(value: float) -> None:
        if kind == "history":
            History(loss=[value]).save(tmp_path / "it")
        else:
            Amortizer(2, gamma=value).save(tmp_path / "it")

    save(0.5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write = os.fsync

    def full(descriptor: int) -> None:
        write(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="No space left on device"):
        save(0.25)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_changed_amortizer_is_refused(tmp_path: Path) -> None:
    Amortizer(2).save(tmp_path / "q")
    path = tmp_path / "q.safetensors"
    whole = path.read_bytes()
    for place in (len(whole) - 3, whole.index(b"gamma") + 9):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadInput, match="no amortizer could be read from"):
            Amortizer.load(tmp_path / "q")
    path.write_bytes(whole)
    Amortizer.load(tmp_path / "q")
