"""Plain numeric arrays out of MATLAB version 5 files, the format of SVHN.

A reader of our own, because the compiled one of scipy can crash the whole process on a damaged
file. It knows real numeric arrays, compressed or not, and skips every other kind of variable.
The layout is that of MathWorks' "MAT-File Format": a header of 128 bytes, then elements, each a tag
(type, size) and its data; a matrix element holds the elements flags, dimensions, name and numbers.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput

__all__ = ["Variable", "list_mat", "read_mat"]

MATRIX, COMPRESSED = 14, 15
COMPLEX = 0x800
# By the number of a matrix's class, and by the number of the type its numbers are stored as.
CLASSES = {
    **{6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2"},
    **{11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"},
}
STORED = {
    **{1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4"},
    **{6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"},
}
# Tags, flags, at most 32 dimensions and a name of at most 64 letters fit in this many bytes.
HEADER_BYTES = 512


class Variable(NamedTuple):
    """What the header of one variable says, and where its numbers are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    place: tuple[int, int, bool]
    start: int


def list_mat(path: Path) -> dict[str, Variable]:
    """The plain numeric variables of a file, from their headers alone."""
    with path.open("rb") as file:
        return {variable.name: variable for variable in _variables(file, path)}


def read_mat(path: Path, variable: Variable) -> NDArray[Any]:
    """The array of one variable of `list_mat`, whose shape and type the caller has checked."""
    size = math.prod(variable.shape) * variable.stored.itemsize
    with path.open("rb") as file:
        # A little more than needed, so that the checksum at the end of the stream is read.
        data, ended = _beginning(file, variable.place, variable.start + size + 16)
    if not ended or len(data) < variable.start + size:
        raise BadInput(
            f"{path} is damaged: {variable.name} does not have the {size} bytes that it claims"
        )
    flat = np.frombuffer(data, variable.stored, math.prod(variable.shape), variable.start)
    return flat.reshape(variable.shape, order="F").astype(variable.dtype, copy=False)


def _variables(file: IO[bytes], path: Path) -> Iterator[Variable]:
    length = path.stat().st_size
    header = file.read(128)
    order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if order is None or struct.unpack(f"{order}H", header[124:126]) != (0x0100,):
        raise BadInput(f"{path} is not a MATLAB version 5 file")
    at = 128
    while at < length:
        file.seek(at)
        kind, size = struct.unpack(f"{order}II", file.read(8))
        if at + 8 + size > length:
            raise BadInput(f"{path} is truncated: {size} bytes are claimed at byte {at}")
        if kind in (MATRIX, COMPRESSED):
            packed = kind == COMPRESSED
            # The inflated bytes begin with a tag of their own; the plain ones with this one.
            place = (at + 8, size, True) if packed else (at, size + 8, False)
            variable = _header(_beginning(file, place, HEADER_BYTES)[0], order, place)
            if variable is not None:
                yield variable
        at += 8 + size + (0 if kind == COMPRESSED else -size % 8)


def _header(block: bytes, order: str, place: tuple[int, int, bool]) -> Variable | None:
    """Read the header of a matrix, or give None if it is not a plain numeric one."""
    kind, _ = struct.unpack_from(f"{order}II", block)
    (flags,) = struct.unpack_from(f"{order}I", block, 16)
    if kind != MATRIX or flags & COMPLEX or flags & 0xFF not in CLASSES:
        return None
    _, size, at, following = _tag(block, 24, order)
    shape = struct.unpack_from(f"{order}{size // 4}i", block, at)
    _, size, at, following = _tag(block, following, order)
    name = block[at : at + size].decode("latin-1")
    kind, size, at, _ = _tag(block, following, order)
    if kind not in STORED or min(shape, default=0) < 1:
        return None
    stored = np.dtype(order + STORED[kind])
    if math.prod(shape) * stored.itemsize != size:
        raise BadInput(f"the variable {name!r} claims the shape {shape} and has {size} bytes")
    return Variable(name, shape, np.dtype(CLASSES[flags & 0xFF]), stored, place, at)


def _tag(block: bytes, at: int, order: str) -> tuple[int, int, int, int]:
    """Type and size of an element, where its data begin and where the next element does."""
    first, second = struct.unpack_from(f"{order}II", block, at)
    if first >> 16:  # a small element, with its data inside the tag
        return first & 0xFFFF, first >> 16, at + 4, at + 8
    return first, second, at + 8, at + 8 + second + -second % 8


def _beginning(file: IO[bytes], place: tuple[int, int, bool], size: int) -> tuple[bytes, bool]:
    """The first `size` bytes of an element, inflated; and whether it ends there."""
    at, held, packed = place
    file.seek(at)
    if not packed:
        return file.read(min(held, size)), held <= size
    inflate = zlib.decompressobj()
    data = inflate.decompress(file.read(held if size > HEADER_BYTES else min(held, 4096)), size)
    return data, inflate.eof
