"""Published files fetched from a server on this machine, and checked."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from damc.data import download as module
from damc.data import load_images
from damc.data.download import DOWNLOADS, Remote, download
from damc.data.formats import CIFAR_RECORD
from damc.errors import BadInput

CONTENT = b"the published file" * 1000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Its address, the folder that it serves, and what it was asked for."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{running.server_address[1]}"
        yield address, folder, running.asked  # type: ignore[attr-defined]
        running.shutdown()
        thread.join()


def remote(name: str, content: bytes) -> Remote:
    return Remote(name, len(content), hashlib.md5(content).hexdigest())


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    files = (remote("a.mat", CONTENT), remote("b.mat", CONTENT[:77]))
    monkeypatch.setitem(module.DOWNLOADS, "svhn", replace(DOWNLOADS["svhn"], files=files))


@pytest.mark.usefixtures("published")
def test_files_arrive_whole_and_are_not_fetched_twice(
    server: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    address, folder, asked = server
    (folder / "a.mat").write_bytes(CONTENT)
    (folder / "b.mat").write_bytes(CONTENT[:77])
    seen: list[tuple[str, int, int]] = []
    paths = download("svhn", tmp_path / "data", url=address, watch=lambda *now: seen.append(now))
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT[:77]]
    assert seen[-1] == ("b.mat", 77, 77) and len(asked) == 2
    assert download("svhn", tmp_path / "data", url=address + "/") == paths and len(asked) == 2
    paths[0].write_bytes(b"mine")
    with pytest.raises(BadInput, match=r"a.mat must be the published file .*remove it"):
        download("svhn", tmp_path / "data", url=address)
    assert paths[0].read_bytes() == b"mine"


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("served", [CONTENT[:-1], CONTENT + b"!", b"?" + CONTENT[1:]])
def test_another_file_is_discarded(
    server: tuple[str, Path, list[str]], tmp_path: Path, served: bytes
) -> None:
    address, folder, _ = server
    (folder / "a.mat").write_bytes(served)
    with pytest.raises(BadInput, match=r"must have 18000 bytes and the MD5 .* it was discarded"):
        download("svhn", tmp_path / "data", url=address)
    assert not any((tmp_path / "data" / "svhn").iterdir())


@pytest.mark.usefixtures("published")
def test_no_server_no_file_and_no_address(
    server: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="could not be fetched: 404"):
        download("svhn", tmp_path, url=server[0])
    with pytest.raises(BadInput, match="could not be fetched: .*refused"):
        download("svhn", tmp_path, url="http://127.0.0.1:9")
    with pytest.raises(BadInput, match="must be an address of http or https"):
        download("svhn", tmp_path, url="file:///etc")
    with pytest.raises(BadInput, match="one of mnist, cifar10, svhn to be fetched, got 'ffhq'"):
        download("ffhq", tmp_path)


def test_the_records_of_cifar_are_taken_out_of_their_archive(
    server: tuple[str, Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder, asked = server
    members = DOWNLOADS["cifar10"].members
    monkeypatch.setattr(module, "MEMBER_BYTES", 10 * CIFAR_RECORD)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for number, name in enumerate((*members, "../evil.bin")):
            records = np.zeros((10, CIFAR_RECORD), np.uint8)
            records[:, 1:] = 100 + number
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = records.size
            archive.addfile(entry, io.BytesIO(records.tobytes()))
    content = packed.getvalue()
    (folder / "cifar-10-binary.tar.gz").write_bytes(content)
    changed = replace(DOWNLOADS["cifar10"], files=(remote("cifar-10-binary.tar.gz", content),))
    monkeypatch.setitem(module.DOWNLOADS, "cifar10", changed)
    paths = download("cifar10", tmp_path / "data", url=address)
    assert [path.name for path in paths] == list(members)
    here = sorted(path.name for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert here == sorted(members)
    assert len(load_images("cifar10", root=tmp_path / "data")) == 50
    assert download("cifar10", tmp_path / "data", url=address) == paths and len(asked) == 1


def test_the_official_files_are_known_by_their_hashes() -> None:
    """The MD5s that the publishers of CIFAR-10 give, and torchvision those of the others."""
    known = {file.name: file.md5 for found in DOWNLOADS.values() for file in found.files}
    assert known["cifar-10-binary.tar.gz"] == "c32a1d4ab5d03f1284b67883e8d87530"
    assert known["train-images-idx3-ubyte.gz"] == "f68b3c2dcbeaaa9fbdd348bbdeb94873"
    assert known["train_32x32.mat"] == "e26dedcc434d2e4c54c9b2d4a06d8373"
    assert all(len(md5) == 32 for md5 in known.values()) and len(known) == 7
