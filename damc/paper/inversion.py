"""Inverting a decoder: the paper's table of GAN inversion.

At the small scale a StyleGAN is trained on the data first, then the encoder, the energy and the
amortizer of its codes. At the paper's scale the StyleGAN, its encoder and the perceptual network
are the published ones, from a folder of weights. Each cell inverts the same unseen images by one
method.
"""

from __future__ import annotations

__all__ = ["InversionTable"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from damc.data import load_images
from damc.errors import BadInput
from damc.inversion.gan import GANSettings, GANSizes
from damc.inversion.gan_training import DECODER, GANTraining
from damc.inversion.invert import decoder_images, figures, invert_images
from damc.inversion.methods import METHODS
from damc.inversion.source import open_source
from damc.inversion.stylegan_encoder import load_style_encoder
from damc.inversion.training import InversionTraining
from damc.inversion.vgg import load_vgg16
from damc.paper.table import Cell, Measure, Options, Table
from damc.tasks.evaluate import choose_features
from damc.train.origin import Origin

_ONE_DRAW = "damc, one draw"
_ROWS = {**{name: {} for name in METHODS}, _ONE_DRAW: {"candidates": 1}}
_IMAGES = 200
_DECODER = 4000  # iterations of the StyleGAN; the encoder has 600 then, and DAMC 300
_PUBLISHED = {"ffhq": ("styleganinv_ffhq256", 500), "lsun-tower": ("styleganinv_tower256", 300)}
_PUBLISHED_BATCH = 64
_PUBLISHED_ITERATIONS = 20_000  # of DAMC beside the published networks; the paper does not say


class InversionTable(Table):
    """Errors of inverting unseen images, by every method, at the paper's iteration counts."""

    name: ClassVar[str] = "inversion"
    about: ClassVar[str] = "codes of unseen images under a frozen StyleGAN (the paper's table 2)"
    uses: ClassVar[frozenset[str]] = frozenset(
        {"scale", "methods", "data", "images", "features", "inception", "iterations", "weights"}
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
                raise BadInput(f"methods must be among {', '.join(_ROWS)}, got {row!r}")
        if options.weights is not None and options.scale != "paper":
            raise BadInput(f"scale must be paper where weights are given, got {options.scale}")
        plan = _paper_plan if options.scale == "paper" else _small_plan
        usual = tuple(_PUBLISHED) if options.scale == "paper" else ("mnist",)
        return [
            Cell(row, name, seed, plan(name, options))
            for seed in options.seeds
            for name in options.data or usual
            for row in rows
        ]

    def prepare(self, options: Options, out: Path) -> None:
        shared = {_folders(out, cell): cell for cell in self.cells(options)}
        for (decoder, learned), cell in shared.items():
            if options.scale == "paper":
                _published(cell, learned, options).run()
            else:
                _trained_here(cell, decoder, learned, options).run()

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        out = folder.parent.parent
        learner = open_source(_folders(out, cell)[1]).learner
        assert learner is not None
        resize = options.scale == "paper"
        origin = Origin(cell.column, learner.problem.shape, resize=resize, root=_root(options))
        train, unseen = origin.train(), origin.unseen().images
        features = choose_features(cell.plan["features"], train, path=options.inception)
        method = cell.row.partition(",")[0]
        chosen: dict[str, Any] = {**_ROWS[cell.row], "limit": cell.plan["images"]}
        found = figures(invert_images(learner, unseen, method, seed=cell.seed, **chosen), features)
        # Not the seed of the inversion, whose random starts would be these codes, truncated.
        own = decoder_images(learner, min(50, cell.plan["images"]), seed=cell.seed + 1)
        found["own_mse"] = figures(invert_images(learner, own, method, seed=cell.seed, **chosen))[
            "mse"
        ]
        return found

    def remarks(self, options: Options) -> str:
        plan = self.cells(options)[0].plan
        return (
            f"{plan['images']} unseen images; the Frechet distance is between them and their "
            f"inversions, on {plan['features']} features. The paper's figures are for 256-pixel "
            "StyleGANs. The energy of the lebm rows is the one learned with the amortizer. damc "
            "starts at the best of 4 draws, except in the row of one draw."
        )


def _small_plan(name: str, options: Options) -> dict[str, Any]:
    iterations = options.iterations or _DECODER
    return {
        "decoder_iterations": iterations,
        "encoder_iterations": max(1, 3 * iterations // 20),
        "damc_iterations": max(2, 3 * iterations // 40),
        "images": options.images or _IMAGES,
        "features": options.features or "pixel-pca",
    }


def _paper_plan(name: str, options: Options) -> dict[str, Any]:
    if name not in _PUBLISHED:
        raise BadInput(f"data must be {' or '.join(_PUBLISHED)} at the paper's scale, got {name}")
    if options.weights is None:
        raise BadInput(
            "--weights must be given for inversion at the paper's scale, the folder of "
            f"{_PUBLISHED[name][0]}_generator.pth, {_PUBLISHED[name][0]}_encoder.pth and vgg16.pth"
        )
    return {
        "damc_iterations": options.iterations or _PUBLISHED_ITERATIONS,
        "images": options.images or _PUBLISHED[name][1],
        "features": options.features or "inception",
    }


def _trained_here(cell: Cell, decoder: Path, learned: Path, options: Options) -> InversionTraining:
    """Inversion of a StyleGAN that is trained here, unless it was before."""
    origin = Origin(cell.column, _shape(cell, options), root=_root(options))
    if not (decoder / DECODER).is_file():
        iterations = cell.plan["decoder_iterations"]
        settings = GANSettings(horizon=iterations)
        GANTraining(GANSizes(origin.shape), settings, decoder, iterations, origin, cell.seed).run()
    source = open_source(decoder)
    assert source.decoder is not None
    changes = {
        "encoder_iterations": cell.plan["encoder_iterations"],
        "warmup_iterations": cell.plan["damc_iterations"] // 3,
    }
    iterations = cell.plan["encoder_iterations"] + cell.plan["damc_iterations"]
    return InversionTraining(
        source.decoder, learned, iterations, origin, seed=cell.seed, changes=changes
    )


def _published(cell: Cell, learned: Path, options: Options) -> InversionTraining:
    """Inversion of a published StyleGAN, with its encoder and the perceptual network."""
    name = _PUBLISHED[cell.column][0]
    source = open_source(_weights(options, f"{name}_generator"))
    assert source.decoder is not None
    origin = Origin(cell.column, source.shape, resize=True, root=_root(options))
    return InversionTraining(
        source.decoder,
        learned,
        cell.plan["damc_iterations"],
        origin,
        seed=cell.seed,
        batch=min(_PUBLISHED_BATCH, len(origin.train())),
        changes={"warmup_iterations": cell.plan["damc_iterations"] // 4},
        encoder=load_style_encoder(_weights(options, f"{name}_encoder")),
        vgg=load_vgg16(_weights(options, "vgg16")),
    )


def _weights(options: Options, name: str) -> Path:
    """A file of weights, as published or as `damc convert` writes it."""
    assert options.weights is not None
    for suffix in (".safetensors", ".pth"):
        path = Path(options.weights) / f"{name}{suffix}"
        if path.is_file():
            return path
    raise BadInput(f"--weights must hold {name}.pth or {name}.safetensors, got {options.weights}")


def _folders(out: Path, cell: Cell) -> tuple[Path, Path]:
    """The runs of the StyleGAN and of its inversion, which the cells of a seed share."""
    place = out / "trained" / f"{cell.column}-seed-{cell.seed}"
    return place / "decoder", place / "inversion"


def _shape(cell: Cell, options: Options) -> tuple[int, int, int]:
    return load_images(cell.column, root=options.data_root).shape


def _root(options: Options) -> Path | None:
    return None if options.data_root is None else Path(options.data_root)
