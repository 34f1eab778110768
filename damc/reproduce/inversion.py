"""Inverting a decoder: the paper's table of GAN inversion, on a small StyleGAN trained here.

Before the cells, a StyleGAN is trained on the data, then everything that inversion learns: an
encoder, an energy and an amortiser of its codes. Each cell inverts the same unseen images by one
method.
"""

from __future__ import annotations

__all__ = ["InversionTable"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from damc.data import load_images
from damc.errors import BadInput
from damc.learn.gan import GAN, Settings, Sizes
from damc.learn.inversion import Inversion
from damc.learn.inversion_methods import METHODS
from damc.reproduce.table import Cell, Measure, Options, Table
from damc.tasks.evaluate import choose_features
from damc.tasks.gan import GANTraining
from damc.tasks.inversion_training import InversionTraining
from damc.tasks.invert import figures, invert_images, own_images
from damc.tasks.origin import Origin
from damc.train import load

_ONE_DRAW = "damc, one draw"
_ROWS = {**{name: {} for name in METHODS}, _ONE_DRAW: {"candidates": 1}}
_IMAGES = 200
_DECODER = 4000  # iterations of the StyleGAN; the encoder has 600 then, and DAMC 300


class InversionTable(Table):
    """Errors of inverting unseen images, by every method, at the paper's iteration counts."""

    name: ClassVar[str] = "inversion"
    about: ClassVar[str] = "codes of unseen images under a frozen StyleGAN (the paper's table 2)"
    uses: ClassVar[frozenset[str]] = frozenset(
        {"methods", "data", "images", "features", "inception", "iterations"}
    )
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("mse", "MSE"),
        Measure("frechet", "Frechet distance"),
        Measure("own_mse", "MSE on the decoder's own images"),
        Measure("start_mse", "MSE at the start"),
        Measure("seconds", "seconds"),
    )
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (method, name, key): value
        for method, row in {
            "opt": {"ffhq": (0.055, 149.39), "lsun-tower": (0.080, 240.11)},
            "enc": {"ffhq": (0.028, 62.32), "lsun-tower": (0.079, 132.41)},
            "lebm-1x": {"ffhq": (0.054, 149.21), "lsun-tower": (0.072, 239.51)},
            "lebm-2x": {"ffhq": (0.039, 101.59), "lsun-tower": (0.066, 163.20)},
            "lebm-4x": {"ffhq": (0.032, 84.64), "lsun-tower": (0.059, 111.53)},
            "damc": {"ffhq": (0.025, 52.85), "lsun-tower": (0.059, 80.42)},
        }.items()
        for name, pair in row.items()
        for key, value in zip(("mse", "frechet"), pair, strict=True)
    }

    def cells(self, options: Options) -> list[Cell]:
        rows = options.methods or tuple(_ROWS)
        for row in rows:
            if row not in _ROWS:
                raise BadInput(f"the rows of inversion are {', '.join(_ROWS)}, got {row!r}")
        iterations = options.iterations or _DECODER
        plan = {
            "decoder_iterations": iterations,
            "encoder_iterations": max(1, 3 * iterations // 20),
            "damc_iterations": max(2, 3 * iterations // 40),
            "images": options.images or _IMAGES,
            "features": options.features or "pixel-pca",
        }
        return [
            Cell(row, name, seed, plan)
            for seed in options.seeds
            for name in options.data or ("mnist",)
            for row in rows
        ]

    def prepare(self, options: Options, out: Path) -> None:
        for cell in self.cells(options):
            decoder, learned = _folders(out, cell)
            origin = _origin(cell, options)
            if not (decoder / "decoder.safetensors").is_file():
                settings = Settings(horizon=cell.plan["decoder_iterations"])
                iterations = cell.plan["decoder_iterations"]
                sizes = Sizes(origin.shape)
                GANTraining(sizes, settings, decoder, iterations, origin, cell.seed).run()
            gan = load(decoder)
            assert isinstance(gan, GAN)
            InversionTraining(
                gan.decoder,
                learned,
                cell.plan["encoder_iterations"] + cell.plan["damc_iterations"],
                origin,
                seed=cell.seed,
                changes={
                    "encoder_iterations": cell.plan["encoder_iterations"],
                    "warmup_iterations": cell.plan["damc_iterations"] // 3,
                },
            ).run()

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        out = folder.parent.parent
        learner = load(_folders(out, cell)[1])
        assert isinstance(learner, Inversion)
        origin = _origin(cell, options)
        train, unseen = origin.train(), origin.unseen().images
        features = choose_features(cell.plan["features"], train, path=options.inception)
        method = cell.row.partition(",")[0]
        chosen: dict[str, Any] = {**_ROWS[cell.row], "limit": cell.plan["images"]}
        found = figures(invert_images(learner, unseen, method, seed=cell.seed, **chosen), features)
        own = own_images(learner, min(50, cell.plan["images"]), seed=cell.seed)
        found["own_mse"] = figures(invert_images(learner, own, method, seed=cell.seed, **chosen))[
            "mse"
        ]
        return found

    def remarks(self, options: Options) -> str:
        return (
            f"{options.images or _IMAGES} unseen images; the Frechet distance is between them and "
            f"their inversions, on {options.features or 'pixel-pca'} features. The paper's figures "
            "are for 256-pixel StyleGANs. The energy of the lebm rows is the one learned beside "
            "the amortiser. damc takes the best of 4 draws as its start, unless it says one."
        )


def _folders(out: Path, cell: Cell) -> tuple[Path, Path]:
    """Of the StyleGAN and of what inversion learned, which the cells of a seed share."""
    place = out / "trained" / f"{cell.column}-seed-{cell.seed}"
    return place / "decoder", place / "inversion"


def _origin(cell: Cell, options: Options) -> Origin:
    shape = load_images(cell.column, root=options.data_root).shape
    root = None if options.data_root is None else Path(options.data_root)
    return Origin(cell.column, shape, root=root)
