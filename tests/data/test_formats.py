"""The raw-file readers: files written here in the published formats, whole, damaged and hostile."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from damc.data import formats, matfile
from damc.errors import BadInput

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


def write_mnist(folder: Path, split: str, images: np.ndarray, labels: Any, end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if end == ".gz" else bytes
    path = folder / f"{split}-images-idx3-ubyte{end}"
    path.write_bytes(pack(idx_bytes(images)))
    beside = folder / f"{split}-labels-idx1-ubyte{end}"
    beside.write_bytes(pack(idx_bytes(np.asarray(labels, dtype=np.uint8))))
    return path


def pictures(n: int = 6, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *(shape or (5, 4))), dtype=np.uint8)


def one_sentence(error: pytest.ExceptionInfo[BadInput], *words: str) -> None:
    said = str(error.value)
    assert "\n" not in said and not said.endswith(".")
    for word in words:
        assert word in said


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_keeps_every_pixel_and_label(tmp_path: Path, end: str) -> None:
    images = pictures()
    path = write_mnist(tmp_path, "train", images, [3, 1, 4, 1, 5, 9], end)
    got, labels = formats.read_idx(path)
    assert got.shape == (6, 1, 5, 4) and np.array_equal(got[:, 0], images)
    assert labels is not None and labels.dtype == np.int64 and labels.tolist() == [3, 1, 4, 1, 5, 9]
    assert formats.count_idx(path) == 6


def test_idx_without_a_label_file_has_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(idx_bytes(pictures()))
    assert formats.read_idx(path)[1] is None


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("harm", ["cut", "longer", "magic", "empty", "labels"])
def test_a_damaged_idx_file_is_named(tmp_path: Path, end: str, harm: str) -> None:
    whole = idx_bytes(pictures())
    harmed = {
        "cut": whole[:-1],
        "longer": whole + b"x",
        "magic": b"\x00\x00\x0d\x03" + whole[4:],
        "empty": b"",
        "labels": whole,
    }[harm]
    path = write_mnist(tmp_path, "t10k", pictures(), [0] * (5 if harm == "labels" else 6), end)
    path.write_bytes(gzip.compress(harmed) if end else harmed)
    with pytest.raises(BadInput) as error:
        formats.read_idx(path)
    one_sentence(error, "t10k-")


def test_a_gzip_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(pictures(50)))[:-30])
    with pytest.raises(BadInput) as error:
        formats.read_idx(path)
    one_sentence(error, str(path))


def peak_of(read: Any, path: Path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as error:
            read(path)
        one_sentence(error, path.name)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_header_that_claims_the_world_takes_no_memory(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"train-images-idx3-ubyte{end}"
    head = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 20_000, 20_000) + b"\x00" * 100
    path.write_bytes(gzip.compress(head) if end else head)
    assert peak_of(formats.read_idx, path) < 2**21


def test_a_gzip_bomb_takes_no_memory(tmp_path: Path) -> None:
    squeeze = zlib.compressobj(1, wbits=31)
    bomb = squeeze.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 70 * 2**10, 32, 32))
    for _ in range(70):
        bomb += squeeze.compress(bytes(2**20))
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(bomb + squeeze.flush())
    assert peak_of(formats.read_idx, path) < 2**21
    # A header that lies small stops the reader at what it claims.
    path.write_bytes(gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 2, 2) + bytes(2**24)))
    assert peak_of(formats.read_idx, path) < 2**21


def test_cifar_records_are_a_label_and_three_planes(tmp_path: Path) -> None:
    images, labels = pictures(3, 3, 32, 32), [9, 0, 4]
    records = (bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True))
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(b"".join(records))
    got, y = formats.read_cifar(path)
    assert np.array_equal(got, images) and y is not None and y.tolist() == labels
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput) as error:
        formats.read_cifar(path)
    one_sentence(error, "data_batch_1.bin", "3073")
    path.write_bytes(bytes([77]) + images[0].tobytes())
    with pytest.raises(BadInput, match="labels must be 0 to 9, got 77"):
        formats.read_cifar(path)


@pytest.mark.parametrize("compress", [True, False])
def test_svhn_planes_and_the_digit_stored_as_ten(tmp_path: Path, compress: bool) -> None:
    images = pictures(4, 3, 32, 32)
    path = tmp_path / "train_32x32.mat"
    y = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": y}, do_compression=compress)
    got, labels = formats.read_svhn(path)
    assert np.array_equal(got, images)
    assert labels is not None and labels.tolist() == [0, 1, 9, 0]
    assert formats.count_svhn(path) == 4


@pytest.mark.parametrize(
    "held",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8)},
        {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))},
        {"X": np.zeros((28, 28, 3, 2), np.uint8), "y": np.ones((2, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.full((2, 1), 11)},
    ],
)
def test_another_mat_file_is_refused(tmp_path: Path, held: dict[str, Any]) -> None:
    path = tmp_path / "train_32x32.mat"
    savemat(path, held)
    with pytest.raises(BadInput) as error:
        formats.read_svhn(path)
    one_sentence(error, str(path))


def test_a_mat_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    count = 22_000
    # 68 MB of zeros, compressed: what it holds is what it claims, and it is still refused.
    zeros = np.zeros((32, 32, 3, count), np.uint8)
    savemat(path, {"X": zeros, "y": np.ones((count, 1), np.uint8)}, do_compression=True)
    with pytest.raises(BadInput) as error:
        formats.read_svhn(path)
    one_sentence(error, "compressed")
    # A small shape in the header, in front of a stream that inflates far beyond it.
    savemat(path, {"X": zeros[..., :2], "y": np.ones((2, 1), np.uint8)})
    whole = path.read_bytes()
    (size,) = struct.unpack_from("<I", whole, 132)
    bomb = zlib.compress(whole[128 : 136 + size] + bytes(70 * 2**20), 1)
    packed = struct.pack("<II", 15, len(bomb)) + bomb
    path.write_bytes(whole[:128] + packed + whole[136 + size :])
    assert peak_of(formats.read_svhn, path) < 2**21


@pytest.mark.parametrize("compress", [True, False])
def test_mat_reader_agrees_with_scipy(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "x.mat"
    kinds = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
    held: dict[str, Any] = {f"v{k}": RNG.integers(0, 99, (3, 4, 2)).astype(k) for k in kinds}
    others = {"text": "abc", "cell": np.array([1, "x"], object), "z": np.ones(2) * 1j}
    savemat(path, {**others, **held}, do_compression=compress)
    listed = matfile.list_mat(path)
    assert listed.keys() == held.keys()
    for name, array in held.items():
        got = matfile.read_mat(path, listed[name])
        assert got.dtype == array.dtype and np.array_equal(got, array)


def test_mat_reader_takes_big_endian_files(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype=">u2").reshape(2, 3)
    parts = struct.pack(">IIII", 6, 8, 11, 0) + struct.pack(">IIii", 5, 8, 2, 3)
    parts += struct.pack(">HH4s", 1, 1, b"y") + struct.pack(">II", 4, 12)
    parts += numbers.tobytes(order="F") + bytes(4)
    path = tmp_path / "x.mat"
    path.write_bytes(bytes(124) + b"\x01\x00MI" + struct.pack(">II", 14, len(parts)) + parts)
    listed = matfile.list_mat(path)
    assert np.array_equal(matfile.read_mat(path, listed["y"]), numbers)


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped_and_equal(tmp_path: Path, order: Any) -> None:
    images = np.asarray(pictures(4, 3, 6, 5), order=order)
    np.save(tmp_path / "x.npy", images)
    got, labels = formats.read_array(tmp_path / "x.npy")
    assert isinstance(got, np.memmap) and labels is None and np.array_equal(got, images)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("key", ["images", "x", "arr_0", "anything"])
def test_npz_finds_images_and_labels(tmp_path: Path, save: Any, key: str) -> None:
    images = np.asfortranarray(pictures(4, 6, 5))
    save(tmp_path / "x.npz", **{key: images, "labels": np.arange(4.0)[:, None]})
    got, labels = formats.read_array(tmp_path / "x.npz")
    assert np.array_equal(got, images)
    assert labels is not None and labels.dtype == np.int64 and labels.tolist() == [0, 1, 2, 3]


class Trap:
    """Unpickling this would be seen."""

    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    array = np.array([Trap()], dtype=object)
    if name.endswith("y"):
        np.save(tmp_path / name, array, allow_pickle=True)
    else:
        np.savez(tmp_path / name, images=array)
    with pytest.raises(BadInput) as error:
        formats.read_array(tmp_path / name)
    one_sentence(error, name, "pickle")
    assert not Trap.sprung


def npy_bytes(shape: str, data: bytes = b"") -> bytes:
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_an_array_that_claims_the_world_takes_no_memory(tmp_path: Path, name: str) -> None:
    claims = npy_bytes("(1000000000000, 28, 28)", bytes(10))
    if name.endswith("z"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("images.npy", claims)
        claims = packed.getvalue()
    (tmp_path / name).write_bytes(claims)
    assert peak_of(formats.read_array, tmp_path / name) < 2**21


def test_a_zip_bomb_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npy_bytes("(71680, 32, 32)", bytes(70 * 2**20)))
    assert peak_of(formats.read_array, path) < 2**21


def test_the_name_tells_the_format(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pictures())
    assert formats.read_raw(tmp_path / "x.npy")[0].shape == (6, 5, 4)
    with pytest.raises(BadInput, match=r"x\.tar has an unknown format"):
        formats.read_raw(tmp_path / "x.tar")
    for name in ("no.npy", "no.npz", "no.mat", "no.bin", "no-idx3-ubyte"):
        with pytest.raises(BadInput, match="does not exist"):
            formats.read_raw(tmp_path / name)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    small = RNG.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    np.save(folder / "x.npy", small)
    np.savez_compressed(folder / "x.npz", images=small, y=np.arange(2))
    savemat(
        folder / "x.mat",
        {"X": small.transpose(2, 3, 1, 0), "y": np.ones((2, 1), np.uint8)},
        do_compression=True,
    )
    (folder / "x-idx3-ubyte").write_bytes(idx_bytes(small[:, 0]))
    (folder / "y-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(small[:, 0])))
    (folder / "x.bin").write_bytes(bytes([1]) + small[0].tobytes())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(["x.npy", "x.npz", "x.mat", "x-idx3-ubyte", "y-idx3-ubyte.gz", "x.bin"]),
    cut=st.floats(0, 1),
    harm=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
    early=st.booleans(),
)
def test_damage_gives_an_array_or_one_sentence(
    whole_files: dict[str, bytes],
    tmp_path: Path,
    name: str,
    cut: float,
    harm: list[tuple[float, int]],
    early: bool,
) -> None:
    data = bytearray(whole_files[name])
    reach = min(len(data), 200) if early else len(data)
    for where, value in harm:
        data[int(where * (reach - 1))] = value
    path = tmp_path / name
    path.write_bytes(data[: max(1, int(cut * len(data)))] if not harm else data)
    try:
        images, _ = formats.read_raw(path)
        assert isinstance(images, np.ndarray)
    except BadInput as error:
        assert name in str(error) and "\n" not in str(error)
