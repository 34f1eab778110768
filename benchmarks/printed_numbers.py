"""`python -m benchmarks.printed_numbers OUT --data-root DIR`: made-up house numbers in print.

SVHN is reported on, so nothing may be chosen on it. These images resemble it more closely than
`benchmarks.house_numbers`: printed digits in the fonts that come with matplotlib, one to four in a
row, and an image for each digit of a row, so that images come in groups of one house with parts of
each other's digits; in one color on a plain, shaded or framed ground, some of them faint, some
blurred. OUT gets train.npy, 5,083 images as the part of SVHN has, and unseen.npy, 3,000 of other
houses; and soft-train.npy and soft-unseen.npy, the same as a camera takes them from afar: blurred
further, with some noise, through JPEG. `damc train svhn-small --data OUT/soft-train.npy` trains on
them.
"""

from __future__ import annotations

import argparse
import io
from itertools import cycle
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from benchmarks.house_numbers import blur
from damc.data import load_images

_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "cmr10", "cmb10", "cmss10", "cmtt10"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
_WIDE, _HIGH, _LEFT = 480, 160, 60  # pixels of a drawn row, and where its first digit begins
_TALL = 55.0  # pixels of a digit
_SOFT = 0.7, 1.0, 1.4  # pixels by which those from afar are blurred
_FINE = 4  # pixels of a crop for each of an image


def house(fonts: list[ImageFont.FreeTypeFont], ground: Tensor, g: Generator) -> Tensor:
    """An image ``(3, 32, 32)`` of each digit of a house, on a photograph ``(3, H, W)``."""
    ink, centers, end, gap = _row(fonts[g.integers(len(fonts))], g)
    squeeze, turn, slant = g.uniform(0.7, 1.5), g.normal(0, 0.08), g.normal(0, 0.06)
    paper = np.clip(g.normal(-0.12, 0.42) + g.normal(0, 0.13, 3), -0.95, 0.95)
    lighter = g.random() < (0.75 if paper.mean() < 0 else 0.3)
    room = 1 - paper if lighter else -paper - 1
    strength = 0.2 + 0.9 * g.random()
    paint = paper + np.sign(room) * np.minimum(strength, abs(room)) + g.normal(0, 0.06, 3)
    ground = (ground - ground.mean((1, 2), keepdim=True)) * 0.7 * g.random() ** 2
    frame = g.normal(0, 0.4) + g.normal(0, 0.1, 3) if g.random() < 0.4 else None
    margin, larger = g.uniform(0.55, 0.9), g.uniform(1.0, 1.25)
    shade = g.normal(0, 0.12, 2) * g.random()
    soft = g.choice([0.3, 0.6, 0.9, 1.3, 1.8], p=[0.25, 0.25, 0.2, 0.2, 0.1])

    line = torch.linspace(-1, 1, 32 * _FINE)
    down, across = torch.meshgrid(line, line, indexing="ij")
    images = []
    for center in centers:
        high = _TALL / 2 * larger * g.normal(1, 0.03)
        x = np.cos(turn) * across + (np.sin(turn) + slant) * down
        x = center + g.normal(0, 1.5) + high * squeeze * x
        y = _HIGH / 2 + g.normal(0, 1.2) + high * (np.cos(turn) * down - np.sin(turn) * across)
        color = _flat(paper) + _at(ground, (x - _LEFT) / _WIDE, 2 * y / _HIGH - 1)
        if frame is not None:
            outside = (y - _HIGH / 2).abs() > _TALL * margin
            outside |= (x < _LEFT - 12 * margin) | (x > end - gap + 12 * margin)
            color = torch.where(outside, _flat(frame), color)
        color = color + shade[0] * (x - 150) / 100 + shade[1] * (y - _HIGH / 2) / 40
        covered = _at(ink, 2 * x / _WIDE - 1, 2 * y / _HIGH - 1)
        fine = color * (1 - covered) + _flat(paint) * covered
        images.append(blur(avg_pool2d(fine, _FINE)[None].float(), float(soft))[0])
    return torch.stack(images)


def _row(font: ImageFont.FreeTypeFont, g: Generator) -> tuple[Tensor, list[float], float, float]:
    """Ink ``(1, H, W)`` of a row of digits, their centers, and where the next would begin, after
    which gap."""
    picture = Image.new("L", (_WIDE, _HIGH), 0)
    pen = ImageDraw.Draw(picture)
    gap, at = g.uniform(2, 12), float(_LEFT)
    centers = []
    for digit in g.integers(0, 10, g.choice([1, 2, 3, 4], p=[0.12, 0.42, 0.34, 0.12])):
        left, top, right, bottom = pen.textbbox((0, 0), str(digit), font=font)
        corner = (at - left, (_HIGH - bottom + top) / 2 - top)
        pen.text(corner, str(digit), fill=255, font=font)
        centers.append(at + (right - left) / 2)
        at += right - left + gap
    return torch.from_numpy(np.asarray(picture, np.float32) / 255)[None], centers, at, gap


def _flat(color: np.ndarray) -> Tensor:
    return torch.from_numpy(color).float().view(3, 1, 1)


def _at(image: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """An image ``(C, H, W)`` at places, -1 to 1 from edge to edge and mirrored beyond."""
    grid = torch.stack([x, y], -1)[None].float()
    return grid_sample(image[None], grid, align_corners=False, padding_mode="reflection")[0]


def printed_numbers(n: int, photographs: Tensor, g: Generator) -> np.ndarray:
    """n images ``(n, 3, 32, 32)``, uint8, houses one after the other."""
    folder = Path(matplotlib.__file__).parent / "mpl-data/fonts/ttf"
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), 72) for name in _FONTS]
    images: list[Tensor] = []
    houses = cycle(photographs)
    while len(images) < n:
        images.extend(house(fonts, next(houses), g))
    x = torch.stack(images[:n]).numpy()
    x = x + 0.012 * g.standard_normal(x.shape)
    return ((x.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)


def from_afar(images: np.ndarray, g: torch.Generator) -> np.ndarray:
    """The images ``(n, 3, 32, 32)`` blurred by 0.7 to 1.4 pixels, with noise, through JPEG."""
    x = torch.from_numpy(images).float() / 127.5 - 1
    which = torch.randint(0, len(_SOFT), (len(x),), generator=g)
    for k, width in enumerate(_SOFT):
        x[which == k] = blur(x[which == k], width)
    grain = blur(torch.randn(x.shape, generator=g), _SOFT[0])
    x += 0.05 * grain * torch.rand(len(x), 1, 1, 1, generator=g)
    pictures = ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    qualities = np.random.default_rng(0).integers(50, 90, len(x))
    parts = [_compressed(p, int(q)) for p, q in zip(pictures, qualities, strict=True)]
    return np.stack(parts).transpose(0, 3, 1, 2)


def _compressed(picture: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    large = Image.fromarray(picture).resize((48, 48), Image.Resampling.BICUBIC)
    large.save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file).resize((32, 32), Image.Resampling.BILINEAR))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the four files")
    parser.add_argument("--data-root", type=Path, help="folder of CIFAR-10")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    distance = torch.Generator().manual_seed(0)
    for seed, (name, split, n) in enumerate((("train", "train", 5083), ("unseen", "test", 3000))):
        photographs = load_images("cifar10", root=options.data_root, split=split)
        grounds = blur(photographs.batch(torch.arange(3000)), 2.0)
        images = printed_numbers(n, grounds, np.random.default_rng(seed))
        for kind, made in (("", images), ("soft-", from_afar(images, distance))):
            np.save(options.out / f"{kind}{name}.npy", made)
            print(f"{options.out}/{kind}{name}.npy: {n:,} images")


if __name__ == "__main__":
    main()
