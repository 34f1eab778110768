"""Raw image files in, arrays out: idx (MNIST), CIFAR-10 records, SVHN .mat, NumPy arrays.

Every reader takes a path and returns `(images, labels)`: images as `(N, C, H, W)` (NumPy arrays in
the layout they were stored in), labels as int64 `(N,)` or None. None of these formats
holds code, and nothing is ever unpickled. What a header claims is checked against the bytes of the
file before memory is taken, compressed files included, so a damaged or hostile file costs one
sentence and not the machine.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from damc.data import matfile
from damc.data.limits import check_inflation
from damc.errors import BadInput

__all__ = [
    "Labeled",
    "count_cifar",
    "count_idx",
    "count_svhn",
    "read_array",
    "read_cifar",
    "read_idx",
    "read_raw",
    "read_svhn",
]

Labeled = tuple[NDArray[Any], NDArray[np.int64] | None]

CIFAR_RECORD = 1 + 3 * 32 * 32


def read_raw(path: str | Path) -> Labeled:
    """Read one raw file; its name tells the format: .npy, .npz, .mat, .bin, idx or .gz."""
    path = Path(path)
    name = path.name.lower()
    if name.endswith((".npy", ".npz")):
        return read_array(path)
    if name.endswith(".mat"):
        return read_svhn(path)
    if name.endswith(".bin"):
        return read_cifar(path)
    if name.endswith(".gz") or "idx" in name or "ubyte" in name:
        return read_idx(path)
    raise BadInput(
        f"{path} has an unknown format: it must be a folder, a picture, .npy, .npz, .mat (SVHN), "
        ".bin (CIFAR-10) or an idx file (MNIST), plain or .gz"
    )


def read_idx(path: str | Path) -> Labeled:
    """Read MNIST's own format, plain or gzipped: images `(N, 1, H, W)` uint8.

    The labels are read from the file beside it whose name has `labels` and `idx1` for `images` and
    `idx3`; without such a file they are None.
    """
    path = Path(path)
    images = _idx(path, axes=3)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = None
    if beside != path and beside.is_file():
        labels = _idx(beside, axes=1).astype(np.int64)
        if len(labels) != len(images):
            raise BadInput(f"{beside} has {len(labels)} labels for {len(images)} images")
    return images[:, None], labels


def count_idx(path: str | Path) -> int:
    """How many images an idx file says it has, from its header alone."""
    path = Path(path)
    with _reading(path, "an idx file"), _inflated(path) as (file, _):
        return _idx_header(file, path, axes=3)[0]


def read_cifar(path: str | Path) -> Labeled:
    """Read CIFAR-10's binary version: records of a label byte, then the R, G and B planes."""
    path = Path(path)
    count = count_cifar(path)
    with _reading(path, "a CIFAR-10 binary file"):
        records = np.fromfile(path, dtype=np.uint8).reshape(count, CIFAR_RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise BadInput(
            f"{path} is not a CIFAR-10 binary file: labels must be 0 to 9, got {labels.max()}"
        )
    return records[:, 1:].reshape(count, 3, 32, 32), labels


def count_cifar(path: str | Path) -> int:
    """How many records a CIFAR-10 binary file has, from its size alone."""
    path = Path(path)
    with _reading(path, "a CIFAR-10 binary file"):
        size = path.stat().st_size
    count, rest = divmod(size, CIFAR_RECORD)
    if rest or not count:
        raise BadInput(
            f"{path} is not a CIFAR-10 binary file: its {size} bytes are not a whole number of "
            f"{CIFAR_RECORD}-byte records"
        )
    return count


def read_svhn(path: str | Path) -> Labeled:
    """Read SVHN's cropped digits (MATLAB version 5): `X` `(32, 32, 3, N)` uint8, `y` `(N, 1)`.

    The digit 0, which the file stores as 10, becomes 0.
    """
    path = Path(path)
    x, y = _svhn_variables(path)
    with _reading(path, "a readable SVHN .mat file"):
        images, labels = matfile.read_mat(path, x), matfile.read_mat(path, y).reshape(-1)
    if not np.isin(labels, np.arange(11)).all():
        raise BadInput(
            f"labels of {path} must be whole numbers 1 to 10 (10 is digit 0), "
            f"got {labels.min()} to {labels.max()}"
        )
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def count_svhn(path: str | Path) -> int:
    """How many images an SVHN .mat file says it has, from its headers alone."""
    return _svhn_variables(Path(path))[0].shape[3]


def read_array(path: str | Path) -> Labeled:
    """Read a NumPy .npy or .npz file, in its own layout.

    An .npy is memory-mapped, so it may be larger than memory. In an .npz the images are `images`,
    `x`, `X` or `arr_0`, else the first array; labels are `labels` or `y`. Arrays of Python objects
    hold pickles and are refused.
    """
    path = Path(path)
    wanted = "a NumPy file of plain numbers (object arrays, which hold pickles, are refused)"
    with _reading(path, wanted):
        if path.suffix.lower() == ".npy":
            return np.lib.format.open_memmap(path, mode="r"), None
        with zipfile.ZipFile(path) as archive:
            names = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
            if not names:
                raise BadInput(f"{path} contains no arrays")
            key = _first_of(["images", "x", "X", "arr_0"], names) or next(iter(names))
            images = _npz_member(archive, names[key], path)
            other = _first_of(["labels", "y"], names.keys() - {key})
            labels = None if other is None else _npz_member(archive, names[other], path)
    if labels is None:
        return images, None
    if labels.dtype.kind not in "biuf" or labels.size != len(images):
        raise BadInput(
            f"labels of {path} must be one whole number for each image, got {labels.dtype} "
            f"{labels.shape} for images of shape {images.shape}"
        )
    return images, labels.reshape(-1).astype(np.int64)


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    with _reading(path, "an idx file"), _inflated(path) as (file, stored):
        shape = _idx_header(file, path, axes)
        claimed, header = math.prod(shape), 4 + 4 * axes
        if stored is None:
            held = path.stat().st_size - header
            if held != claimed:
                raise BadInput(
                    f"{path} is not a complete idx file: its header says {shape}, {claimed} bytes, "
                    f"and {held} follow"
                )
        else:
            check_inflation(path, claimed, stored)
        # One byte more than claimed, to see that nothing follows.
        data = file.read(claimed + 1)
        if len(data) != claimed:
            follow = "more" if len(data) > claimed else str(len(data))
            raise BadInput(
                f"{path} is not a complete idx file: its header says {shape}, {claimed} bytes, "
                f"and {follow} follow"
            )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _idx_header(file: IO[bytes], path: Path, axes: int) -> tuple[int, ...]:
    header = file.read(4 + 4 * axes)
    magic = bytes([0, 0, 8, axes])
    if header[:4] != magic or len(header) != 4 + 4 * axes:
        raise BadInput(
            f"{path} is not an idx file of {axes} axes of bytes: it must start with "
            f"{magic.hex()}, got {header[:4].hex()}"
        )
    shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
    if 0 in shape:
        raise BadInput(f"{path} is an idx file of shape {shape}, which is empty")
    return shape


@contextmanager
def _inflated(path: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    """The file's bytes, and the size of the file if they are being decompressed."""
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if not zipped:
            yield plain, None
            return
        with gzip.open(plain) as file:
            yield cast("IO[bytes]", file), path.stat().st_size


def _first_of(wanted: list[str], held: Container[str]) -> str | None:
    return next((key for key in wanted if key in held), None)


def _npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    what = f"{path}, array {member.filename.removesuffix('.npy')!r},"
    check_inflation(path, member.file_size, member.compress_size)
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise BadInput(f".npy version of {what} must be (1, 0) or (2, 0), got {version}")
        if dtype.hasobject:
            raise BadInput(f"{what} must be plain numbers, got Python objects (a pickle)")
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if claimed != held:
            raise BadInput(f"{what} says {shape} of {dtype}, {claimed} bytes, and {held} follow")
        data = file.read(claimed)
    return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _svhn_variables(path: Path) -> tuple[matfile.Variable, matfile.Variable]:
    with _reading(path, "a readable SVHN .mat file"):
        held = matfile.list_mat(path)
        stored = path.stat().st_size
    if "X" not in held or "y" not in held:
        raise BadInput(f"{path} must have X and y, as SVHN's cropped digits, got {sorted(held)}")
    x, y = held["X"], held["y"]
    bytes_only = x.dtype == np.uint8 and x.stored == np.uint8
    if not bytes_only or len(x.shape) != 4 or x.shape[:3] != (32, 32, 3):
        raise BadInput(f"X of {path} must be uint8 (32, 32, 3, N), got {x.dtype} {x.shape}")
    if math.prod(y.shape) != x.shape[3]:
        raise BadInput(f"{path} has labels of shape {y.shape} for {x.shape[3]} images")
    check_inflation(path, math.prod(x.shape), stored)
    return x, y


@contextmanager
def _reading(path: Path, wanted: str) -> Iterator[None]:
    """Turn every way a reader can fail on a file into one sentence that names the file."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist: it must be {wanted}") from error
    except (
        *(OSError, EOFError, ValueError, TypeError, KeyError, SyntaxError, TokenError),
        *(MemoryError, OverflowError, RuntimeError, zlib.error, struct.error, zipfile.BadZipFile),
    ) as error:
        raise BadInput(f"{path} is not {wanted}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
