"""CSV files of paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from damc.data import load_images
from damc.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for i in range(4):
        Image.fromarray(np.full((8, 8), 60 * i, np.uint8)).save(tmp_path / "in" / f"{i}.png")
    return tmp_path


def levels(source: Path, split: str = "train") -> list[int]:
    images = load_images(source, split=split)
    x = images.batch(torch.arange(len(images)))[:, 0, 0, 0]
    return [round(float(v) * 127.5 + 127.5) for v in x]


def test_columns_of_paths_labels_and_splits(folder: Path) -> None:
    file = folder / "list.csv"
    file.write_text("label,path,split\n3,in/2.png,train\n1,in/0.png,test\n0,in/1.png,train\n")
    assert levels(file) == [120, 60] and levels(file, "test") == [0]
    images = load_images(file)
    assert images.labels is not None and images.labels.tolist() == [3, 0]


def test_a_plain_list_counts_from_its_folder(folder: Path) -> None:
    file = folder / "list.csv"
    file.write_text(f"in/3.png\n\n{folder / 'in' / '0.png'}\n")
    assert levels(file) == [180, 0]
    with pytest.raises(BadInput, match="without a column split, has no split 'test'"):
        load_images(file, split="test")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lists no pictures"),
        ("path\n", "lists no pictures"),
        ("in/9.png\nin/0.png\n", "1 missing files, the first is .*9.png"),
        ("path,label\nin/0.png,cat\n", "labels of .* must be whole numbers"),
        ("path,label\nin/0.png\n", "must have 2 columns"),
        ("path,split\nin/0.png,test\n", "no pictures of the split 'train'"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "list.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        load_images(folder / "list.csv")


def test_a_file_that_is_no_text(folder: Path) -> None:
    (folder / "list.csv").write_bytes(b"\xff\xfe\x00\x80" * 9)
    with pytest.raises(BadInput, match="not a readable CSV file"):
        load_images(folder / "list.csv")
