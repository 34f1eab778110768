"""Bytes on disk: atomic writes, reads that cannot hang, and JSON documents with a seal.

A write goes beside its place, to the disk, and is then renamed, so a reader meets the old file or
the new one, never half of either. A sealed document carries the digest of its own content, and a
signature where a team has a signing key; what was changed afterwards is refused, not used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from damc.errors import BadInput

__all__ = [
    "KEY_VARIABLE",
    "TEMPORARY",
    "digest",
    "make_folder",
    "on_disk",
    "open_plain",
    "parse",
    "read",
    "read_sealed",
    "sensible",
    "seal",
    "sync_folder",
    "temporary_beside",
    "unseal",
    "write_atomically",
    "write_synced",
]

TEMPORARY = ".damc-writing-"
"""How the names of files that are not finished begin."""

KEY_VARIABLE = "DAMC_SIGNING_KEY"
"""The environment variable that names the file with a team's signing key."""

_SENSELESS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
_FLAGS = {
    "rb": os.O_RDONLY,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+b": os.O_RDWR,
}
_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_plain(path: Path, mode: str = "rb") -> IO[bytes]:
    """Open an ordinary file; a named pipe, socket or device, which could block, is refused.

    Args:
        path: the file. Reading follows symbolic links, as caches of downloads are made of them;
            writing does not, so that a folder of somebody else's cannot change files elsewhere.
        mode: "rb" to read, "ab" to append, "r+b" to change.
    """
    if mode != "rb" and path.is_symlink():
        raise BadInput(f"{path} must be a plain file, got a symbolic link")
    try:
        _check_plain(path, path.stat().st_mode)  # opening a device may already do something
    except FileNotFoundError:
        if mode != "ab":
            raise
    # A pipe that took the file's place meanwhile must not block; Windows has neither flag.
    extra = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if mode != "rb":
        extra |= getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, _FLAGS[mode] | extra, 0o666)
    try:
        _check_plain(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, limit: int = -1) -> bytes:
    """The bytes of an ordinary file, or the first `limit` of them."""
    with on_disk("read", path), open_plain(path) as file:
        return file.read(limit)


def digest(path: Path) -> str:
    """The SHA-256 of an ordinary file."""
    with on_disk("read", path), open_plain(path) as file:
        found = hashlib.sha256()
        while part := file.read(1 << 20):
            found.update(part)
        return found.hexdigest()


def seal(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """A JSON document with the digest of its content, signed if there is a signing key.

    >>> unseal(seal({"a": [1, None]}), "the file")
    {'a': [1, None]}
    """
    if "seal" in document:
        raise BadInput("'seal' must not be a key of a document: sealing adds it")
    content = _content(document)
    marks = {"sha256": hashlib.sha256(content).hexdigest()}
    key = _signing_key()
    if key is not None:
        marks["hmac"] = hmac.digest(key, content, "sha256").hex()
    text = json.dumps({**document, "seal": marks}, indent=indent, allow_nan=False)
    return text.encode() + b"\n"


def unseal(data: bytes, name: str | Path) -> dict[str, Any]:
    """The document that `seal` made into bytes; `BadInput` if it was changed since.

    With a signing key, a document that was not signed with it is refused, too.

    Args:
        data: the bytes.
        name: of the file, for messages.
    """
    document = parse(data, name)
    marks = document.pop("seal", None)
    if not isinstance(marks, dict) or not isinstance(marks.get("sha256"), str):
        raise BadInput(f"{name} is damaged: it has no digest")
    try:
        content = _content(document)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is damaged: {type(error).__name__}") from error
    if not _same(hashlib.sha256(content).hexdigest(), marks["sha256"]):
        raise BadInput(f"{name} is damaged or was edited: it is not what was saved")
    key = _signing_key()
    if key is not None:
        signature = marks.get("hmac")
        if not isinstance(signature, str):
            raise BadInput(f"{name} must be signed with the key of ${KEY_VARIABLE}, it is not")
        if not _same(hmac.digest(key, content, "sha256").hex(), signature):
            raise BadInput(f"{name} must be signed with the key of ${KEY_VARIABLE}, got another's")
    return document


def parse(data: bytes, name: str | Path) -> dict[str, Any]:
    """The JSON object in these bytes, unchecked: to see its version before its digest."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is damaged: it is not JSON") from error
    if not isinstance(document, dict):
        raise BadInput(f"{name} is damaged: it is not a JSON object")
    return document


def read_sealed(path: Path) -> dict[str, Any]:
    """The document of a file that `seal` made."""
    return unseal(read(path), path)


def write_atomically(path: str | Path, data: bytes | str | Iterable[bytes]) -> Path:
    """Write a file, making its folder, so that at any moment it is the old one or the new one.

    Data that need not be in memory at once may come in parts.
    """
    path = Path(path)
    temporary = temporary_beside(path)
    with on_disk("write in", path.parent):
        make_folder(path.parent)
        try:
            write_synced(temporary, data.encode() if isinstance(data, str) else data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return path


def make_folder(path: Path) -> None:
    """Make a folder and those above it, all of which a power cut leaves in place."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


@contextmanager
def on_disk(verb: str, path: Path) -> Iterator[None]:
    """Turn a full, missing, unreadable or unwritable disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"could not {verb} {path}: {error.strerror or error}") from error


@contextmanager
def sensible(sentence: str) -> Iterator[None]:
    """Turn what an intact file raises that makes no sense, one written by hand, into a sentence."""
    try:
        yield
    except BadInput:
        raise
    except _SENSELESS as error:
        last = (str(error).splitlines() or [type(error).__name__])[-1].strip()
        raise BadInput(f"{sentence}: {last}") from error


def temporary_beside(path: Path) -> Path:
    """A free name in the same folder, so that a rename never crosses file systems."""
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")


def write_synced(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the renames inside a folder survive a power cut."""
    if os.name == "nt":  # Windows opens no folders, and its file system journals renames
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(document: Mapping[str, Any]) -> bytes:
    # Not the bytes of the file: the same values in another layout are the same document.
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode("utf-8", "replace"))


def _check_plain(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "special file")
        raise BadInput(f"{path} must be a plain file, got a {kind}")


def _signing_key() -> bytes | None:
    name = os.environ.get(KEY_VARIABLE)
    if not name:
        return None
    key = read(Path(name)).strip()
    if len(key) < 16:
        raise BadInput(f"${KEY_VARIABLE} must name a file of at least 16 bytes, got {len(key)}")
    return key
