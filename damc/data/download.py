"""Fetch the published files of MNIST, CIFAR-10 and SVHN, and check them.

Every file is known by its size and by the MD5 that its publishers, or the libraries that use them,
give; a file that differs is not kept. Nothing is unpickled: CIFAR-10 is its binary version, of
which the six files of records are taken by name.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from damc.data.formats import CIFAR_RECORD
from damc.disk import on_disk, temporary_beside, write_atomically
from damc.errors import BadInput

__all__ = ["DOWNLOADS", "Download", "Remote", "download"]

_BLOCK = 2**18
_TIMEOUT = 60.0  # seconds without a byte
MEMBER_BYTES = 10_000 * CIFAR_RECORD  # of each file in CIFAR-10's archive

Watch = Callable[[str, int, int], None]
"""Called with a file's name, the bytes that have come, and the bytes of all of it."""


@dataclass(frozen=True)
class Remote:
    """A published file: its name, size in bytes, and MD5."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Download:
    """A data set: where its files are published, which they are, and the folder they go to."""

    url: str
    folder: str
    files: tuple[Remote, ...]
    members: tuple[str, ...] = ()  # of a tar archive, to be unpacked; the archive is not kept


DOWNLOADS = {
    # The mirror of the PyTorch project; yann.lecun.com no longer serves them.
    "mnist": Download(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "mnist",
        (
            Remote("train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Remote("train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            Remote("t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
            Remote("t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz",
        "cifar-10-batches-bin",
        (Remote("cifar-10-binary.tar.gz", 170052171, "c32a1d4ab5d03f1284b67883e8d87530"),),
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
    ),
    "svhn": Download(
        "http://ufldl.stanford.edu/housenumbers",
        "svhn",
        (
            Remote("train_32x32.mat", 182040794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
            Remote("test_32x32.mat", 64275384, "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
}
"""Data sets that can be fetched, by their names in the catalog."""


def download(
    name: str, root: str | Path, *, url: str | None = None, watch: Watch | None = None
) -> list[Path]:
    """Fetch the files of a data set into a folder below `root`; give their paths.

    A file that is there already and is the published one is not fetched again. One that arrives
    with another size or hash is discarded, and `BadInput` says so.

    Args:
        name: one of `DOWNLOADS`.
        root: folder of the named data sets.
        url: fetch the same files from this folder of a mirror instead.
        watch: told of the progress.
    """
    if name not in DOWNLOADS:
        raise BadInput(f"data must be one of {', '.join(DOWNLOADS)} to be fetched, got {name!r}")
    chosen = DOWNLOADS[name]
    base = (url or chosen.url).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise BadInput(f"mirror must be an address of http or https, got {base!r}")
    folder = Path(root).expanduser() / chosen.folder
    if chosen.members:
        (archive,) = chosen.files
        return _archive(f"{base}/{archive.name}", archive, folder, chosen.members, watch)
    return [_file(f"{base}/{file.name}", file, folder / file.name, watch) for file in chosen.files]


def _file(url: str, file: Remote, path: Path, watch: Watch | None) -> Path:
    if path.is_file():
        with on_disk("read", path), path.open("rb") as there:
            same = path.stat().st_size == file.size and _md5(there) == file.md5
        if same:
            return path
        raise BadInput(
            f"{path} must be the published file (MD5 {file.md5}), got another: remove it to fetch "
            "it again"
        )
    temporary = temporary_beside(path)
    with on_disk("write in", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as target:
                _fetch(url, file, target, watch)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def _archive(
    url: str, file: Remote, folder: Path, members: tuple[str, ...], watch: Watch | None
) -> list[Path]:
    paths = [folder / name for name in members]
    if all(path.is_file() and path.stat().st_size == MEMBER_BYTES for path in paths):
        return paths
    content = io.BytesIO()
    _fetch(url, file, content, watch)
    content.seek(0)
    found = {}
    try:
        with tarfile.open(fileobj=content, mode="r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                inside = archive.extractfile(member) if name in members else None
                if inside is not None and member.size == MEMBER_BYTES:
                    found[name] = inside.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput(f"{url} is not a readable archive: {error}") from error
    missing = [name for name in members if name not in found]
    if missing:
        raise BadInput(f"{url} must hold {', '.join(members)}, got none of {', '.join(missing)}")
    return [write_atomically(path, found[path.name]) for path in paths]


def _fetch(url: str, file: Remote, target: IO[bytes], watch: Watch | None) -> None:
    """Streams a file, hashes it on the way, and refuses it if it is not the published one."""
    digest, count = hashlib.md5(usedforsecurity=False), 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            while block := answer.read(_BLOCK):
                count += len(block)
                if count > file.size:
                    break
                digest.update(block)
                target.write(block)
                if watch is not None:
                    watch(file.name, count, file.size)
    except urllib.error.HTTPError as error:
        raise BadInput(f"{url} could not be fetched: {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise BadInput(f"{url} could not be fetched: {reason}") from error
    if count != file.size or digest.hexdigest() != file.md5:
        raise BadInput(
            f"{url} must have {file.size} bytes and the MD5 {file.md5}, got "
            f"{'more' if count > file.size else count} bytes and {digest.hexdigest()}: it was "
            "discarded"
        )


def _md5(file: IO[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := file.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()
