"""Train a small StyleGAN in a run folder: pictures on the way, the decoder and a report at the end.

`damc invert` inverts the decoder in that folder; `decoder.safetensors` has the keys of the
published files.
"""

from __future__ import annotations

__all__ = ["DECODER", "GANTraining", "draw_samples", "plan_gan", "summarize_gan"]

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images, load_images
from damc.disk.tensors import to_safetensors
from damc.errors import BadInput, Diverged
from damc.inversion.gan import GAN, GANSettings, GANSizes
from damc.inversion.stylegan import check_resolution
from damc.learn.sharing import count
from damc.metrics.frechet import distances, statistics
from damc.randomness import global_seed
from damc.report import plots
from damc.report.page import Section, write_report
from damc.report.results import labeled
from damc.tasks.evaluate import choose_features
from damc.tasks.generate import generate
from damc.tasks.summarize import Summary, training_seconds
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run

DECODER = "decoder.safetensors"
"""The decoder alone, in the layout of the published checkpoints."""


@dataclass(frozen=True)
class GANTraining:
    """One training run of a GAN: which networks, on which images, for how long.

    Attributes:
        sizes: of the networks.
        settings: of the training.
        folder: the run folder; a run that it holds already is resumed.
        iterations: in total, counting those done before.
        origin: the images.
        seed: of the initial weights, the order of the images and every draw.
        batch: images an iteration.
        flip: mirror each image with probability one half.
        pictures_every: iterations between pictures; by default ten times in a run, not
            more often than every hundred.
        samples: how many images are drawn for the distances in the table.
        loop: further options of `damc.fit`.
    """

    sizes: GANSizes
    settings: GANSettings
    folder: Path
    iterations: int
    origin: Origin
    seed: int = 0
    batch: int = 32
    flip: bool = False
    pictures_every: int | None = None
    samples: int = 1000
    loop: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Summary | None:
        """Trains, and summarizes on the first process; the others give None."""
        images = self.origin.train()
        with global_seed(self.seed):
            learner = GAN(self.sizes, self.settings)
        fit(
            learner,
            images,
            iterations=self.iterations,
            run=self.folder,
            batch=self.batch,
            seed=self.seed,
            flip=self.flip,
            origin=self.origin.settings,
            hook=self._watch,
            hook_every=self.pictures_every or max(100, self.iterations // 10),
            **self.loop,
        )
        if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
            return None
        self.origin.remember(self.folder)
        run = Run.open(self.folder)
        return summarize_gan(learner, run, self.origin, seed=self.seed, n=self.samples)

    def _watch(self, learner: Any, run: Run | None, iteration: int) -> None:
        self.origin.remember(self.folder)
        if iteration < self.iterations:  # the last pictures come with the summary
            try:
                draw_samples(learner, self.folder, seed=self.seed)
            except Diverged as error:
                raise Diverged(f"iteration {iteration}: {error}") from error


def plan_gan(
    data: str,
    folder: str | Path,
    iterations: int,
    *,
    size: int = 32,
    width: int = 16,
    widest: int = 64,
    style: int = 32,
    data_root: Path | None = None,
    resize: bool = False,
    settings: GANSettings | None = None,
    **training: Any,
) -> GANTraining:
    """The training of a small StyleGAN on any images.

    Args:
        data: a source of images, as `damc.data.load_images` takes it.
        folder: the run folder.
        iterations: in total, counting those done before.
        size: height and width of the decoder's images, a power of two from 8 to 1024.
        width: channels of the largest maps; they double with every halving of the size.
        widest: the largest number of channels.
        style: size of z and of the code of one layer.
        data_root: folder of the named data sets.
        resize: crop and resize every image to `size`.
        settings: of the training.
        **training: further fields of `GANTraining`.
    """
    check_resolution(size)
    for name, value in {"width": width, "widest": widest, "style": style}.items():
        if value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
    shape = load_images(data, root=data_root, size=size if resize else None).shape
    sizes = GANSizes(shape, size, latent_dim=style, style=style, base=width * size, widest=widest)
    origin = Origin(data, shape, resize=resize, root=data_root)
    return GANTraining(
        sizes, settings or GANSettings(), Path(folder), iterations, origin, **training
    )


def draw_samples(learner: GAN, folder: Path, *, seed: int = 0, n: int = 64) -> Path:
    """A grid of samples in ``pictures/samples_ITERATION.png``; one seed draws the same points."""
    path = folder / "pictures" / f"samples_{learner.iteration:08d}.png"
    return plots.image_grid(generate(learner, n, seed=seed), path)


def summarize_gan(
    learner: GAN, run: Run, origin: Origin, *, seed: int = 0, n: int = 1000
) -> Summary:
    """Draws the pictures of a run, measures its samples, writes the decoder and ``report.html``.

    Args:
        learner: the learner of the run.
        run: its folder.
        origin: where its images come from.
        seed: of all draws.
        n: how many samples are compared with as many training images; so are unseen images, whose
            distance is the best that a decoder can be expected to reach.
    """
    train, unseen = origin.train(), origin.unseen()
    drawn = generate(learner, n, seed=seed)
    synthesis = learner.decoder.synthesis
    table: dict[str, Any] = {
        "iteration": learner.iteration,
        "data": train.name,
        "training_images": len(train),
        "resolution": learner.sizes.resolution,
        "code": f"{synthesis.layers} x {synthesis.style}",
        "decoder_parameters": count(p for p in learner.learned.parameters() if p.requires_grad),
        "discriminator_parameters": count(learner.discriminator.parameters()),
        "samples": n,
        **_distances(drawn, train, unseen.images, unseen.kind),
    }
    records = run.metrics()
    if records:
        table["seconds"] = training_seconds(records)
    samples = draw_samples(learner, run.path, seed=seed)
    generator = torch.Generator(learner.r1.device).manual_seed(seed)
    with torch.no_grad():
        safe = learner.decode(learner.codes(64, generator, truncation=0.7)).cpu()
    place = run.path / "pictures"
    pictures = {
        "Samples.": samples,
        "The same, with codes truncated towards their averages (0.7).": plots.image_grid(
            safe, place / f"truncated_{learner.iteration:08d}.png"
        ),
        "Training images.": plots.image_grid(
            train.batch(torch.arange(min(64, len(train)))), place / "data.png"
        ),
    }
    sections = [
        Section("Result", settings=labeled(table)),
        Section("Pictures", pictures=dict(pictures)),
    ]
    if records:
        kept = [{k: v for k, v in record.items() if k != "seconds"} for record in records]
        path = pictures["Training curves."] = plots.curves(kept, place / "curves.png")
        sections.append(Section("Training", pictures={"What was logged in training.": path}))
    sections.append(Section("GANSettings", settings=run.config))
    run.write(DECODER, to_safetensors(learner.decoder.state_dict()))
    title = f"damc: a StyleGAN of {train.name} at iteration {learner.iteration:,}"
    return Summary(table, pictures, write_report(run.path / "report.html", title, sections))


def _distances(drawn: Tensor, train: Images, unseen: Images, kind: str) -> dict[str, float]:
    """Frechet distances on pixel-PCA features, of samples and of real images, to training ones."""
    if len(drawn) < 3 or len(train) < 3 or len(unseen) < 3:
        return {}
    features = choose_features("pixel-pca", train)
    real, held = (s.batch(torch.arange(min(len(s), len(drawn)))) for s in (train, unseen))
    goal = statistics(real, features)
    found = {"samples": drawn, kind.replace(" ", "_"): held}
    return {
        f"pixel_pca_distance_{of}": distances(statistics(x, features), goal, split="train")[0].value
        for of, x in found.items()
    }
