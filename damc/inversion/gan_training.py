"""Train a small StyleGAN in a run folder: pictures on the way, the decoder and a report at the end.

The folder is then what decoder inversion inverts; `decoder.safetensors` in it has the keys of the
published files.
"""

from __future__ import annotations

__all__ = ["DECODER", "GANTraining", "summarize_gan"]

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import Diverged
from damc.files import to_safetensors
from damc.inversion.gan import GAN, GANSettings, Sizes
from damc.learn.learner import count
from damc.metrics.frechet import distances, statistics
from damc.report import plots
from damc.report.page import Section, write_report
from damc.seeds import global_seed
from damc.tasks.evaluate import choose_features
from damc.tasks.generate import generate
from damc.tasks.summarize import Summary
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run

DECODER = "decoder.safetensors"
"""The decoder alone, in the layout of the published checkpoints."""


@dataclass(frozen=True)
class GANTraining:
    """Everything that one training run is told.

    Attributes:
        sizes: what the networks are.
        settings: the choices of the training.
        folder: the run folder; a run that is there already goes on.
        iterations: in total, counting those done before.
        origin: the images.
        seed: of the initial weights, the order of the images and every draw.
        batch: images an iteration.
        flip: mirror each image with probability one half.
        pictures_every: iterations between pictures; by default ten times in a run, not
            more often than every hundred.
        judged: how many images are drawn for the distances of the table.
        loop: further options of `damc.fit`.
    """

    sizes: Sizes
    settings: GANSettings
    folder: Path
    iterations: int
    origin: Origin
    seed: int = 0
    batch: int = 32
    flip: bool = False
    pictures_every: int | None = None
    judged: int = 1000
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
        return summarize_gan(learner, run, self.origin, seed=self.seed, n=self.judged)

    def _watch(self, learner: Any, run: Run | None, iteration: int) -> None:
        self.origin.remember(self.folder)
        if iteration < self.iterations:  # the last pictures come with the summary
            try:
                draw_samples(learner, self.folder, seed=self.seed)
            except Diverged as error:
                raise Diverged(f"iteration {iteration}: {error}") from error


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
        n: how many samples are compared with as many training images. Unseen images stand beside
            them: a perfect decoder would do as well as they do, not better.
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
        "images_judged": n,
        **_distances(drawn, train, unseen.images, unseen.kind),
    }
    records = run.metrics()
    if records:
        table["seconds"] = _seconds(records)
    samples = draw_samples(learner, run.path, seed=seed)
    generator = torch.Generator(learner.r1.device).manual_seed(seed)
    with torch.no_grad():
        safe = learner.decode(learner.codes(64, generator, truncation=0.7)).cpu()
    place = run.path / "pictures"
    pictures = {
        "Samples.": samples,
        "The same, codes drawn towards their averages (0.7).": plots.image_grid(
            safe, place / f"truncated_{learner.iteration:08d}.png"
        ),
        "Training images.": plots.image_grid(
            train.batch(torch.arange(min(64, len(train)))), place / "data.png"
        ),
    }
    sections = [Section("Result", settings=table), Section("Pictures", pictures=dict(pictures))]
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


def _seconds(records: list[dict[str, Any]]) -> float:
    """Training time over all the calls that a run took; each counts from its own start."""
    total = last = 0.0
    for record in records:
        now = float(record.get("seconds") or 0.0)
        total += last if now < last else 0.0
        last = now
    return round(total + last, 1)
