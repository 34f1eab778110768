"""`damc train-inversion` and `damc invert`."""

from __future__ import annotations

__all__ = ["Invert", "TrainInversion"]

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from damc.cli.console import at_least_one, check_writable, device, say, shown, stopped, table
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.inversion.source import Source
    from damc.tasks.trained import Subjects


@dataclass(frozen=True)
class TrainInversion:
    """Learn to invert a decoder: train an encoder, an energy of codes and the amortized sampler.

    The decoder is not changed. The same command again resumes a run that was stopped; afterwards
    the run folder is all that `damc invert` needs.
    """

    decoder: Annotated[Path, Option("DECODER", positional=True)]
    """The decoder: a run folder of `damc train-gan`, or a published StyleGAN file (.pth,
    .safetensors)."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; DECODER/inversion if not given, for a DECODER that is a folder."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning updates in total, counting those already done; if not given, 2,000, or 20,000 for
    decoders of 128 pixels and more."""

    data: Annotated[str | None, Option("SOURCE")] = None
    """Images to learn from: a name from `damc data`, a folder of pictures, a raw or .npy file. The
    training images of the decoder if not given."""

    encoder: Annotated[Path | None, Option("FILE")] = None
    """A published in-domain encoder of the decoder's codes, which is then not trained."""

    vgg: Annotated[Path | None, Option("FILE")] = None
    """Published VGG16 for the perceptual loss (vgg16.pth); pixels alone if not given."""

    batch: Annotated[int, Option("B")] = 32
    """Images in one iteration."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random; the same seed gives the same run, bit for bit."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints; another is written every ten minutes and at the end."""

    resize: bool = False
    """Crop every image to its center square and resize it to the decoder's size."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used to train the decoder."""

    settings: Annotated[
        tuple[tuple[str, ...], ...], Option("NAME=VALUE ...", name="set", repeated=True)
    ] = ()
    """Settings to change, such as sampler=langevin encoder_iterations=500."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Trains, and prints the metrics of the last iteration."""
        from damc.inversion.settings import InversionSettings
        from damc.inversion.source import open_source
        from damc.inversion.stylegan_encoder import load_style_encoder
        from damc.inversion.training import train_inversion
        from damc.inversion.vgg import load_vgg16
        from damc.report.results import write_results
        from damc.tasks.training import parse_settings
        from damc.train.run import Run

        at_least_one(
            iterations=self.iterations, batch=self.batch, checkpoint_every=self.checkpoint_every
        )
        source = open_source(self.decoder)
        folder = source.inversion_folder if self.folder is None else self.folder
        texts = [text for group in self.settings for text in group]
        try:
            train_inversion(
                source,
                folder,
                iterations=self.iterations,
                data=self.data,
                data_root=self.data_root,
                resize=self.resize,
                encoder=None if self.encoder is None else load_style_encoder(self.encoder),
                vgg=None if self.vgg is None else load_vgg16(self.vgg),
                batch=self.batch,
                seed=self.seed,
                changes=parse_settings(texts, InversionSettings),
                checkpoint_every=self.checkpoint_every,
                accelerator=self.device,
            )
        except KeyboardInterrupt as error:
            raise type(error)(stopped(folder)) from None
        last = Run.open(folder).metrics()[-1]
        results = {"run": str(folder), "decoder": str(self.decoder), **last}
        say(table([[key, shown(value)] for key, value in results.items()]))
        say()
        say(f"{write_results(folder, results)}  the table")
        say(f"damc invert --decoder {folder}  inverts its unseen images")


@dataclass(frozen=True)
class Invert:
    """Invert a decoder: find codes from which it makes given images.

    `opt` needs the decoder alone. The other methods need a run of `damc train-inversion`; for a run
    of `damc train-gan` that has none inside its folder yet, one is trained first.
    """

    decoder: Annotated[Path, Option("RUN|FILE")]
    """The decoder: a run folder of `damc train-inversion` or `damc train-gan`, or a published
    StyleGAN file (.pth, .safetensors)."""

    images: Annotated[tuple[Path, ...], Option("[IMAGES ...]", positional=True)] = ()
    """Pictures, folders of pictures, raw or .npy files; the test images of the run's data if not
    given."""

    method: Literal["damc", "opt", "enc", "lebm-1x", "lebm-2x", "lebm-4x"] = "damc"
    """damc: 100 iterations from a draw of the learned sampler; opt: 100 from a random code; enc:
    100 from the encoder's code; lebm: 100, 200 or 400 from a random code, with the learned
    energy."""

    sampler: Literal["adam", "langevin"] = "adam"
    """How lebm and damc iterate: by Adam, as in the authors' code, or by Langevin moves on the
    posterior, as in the paper."""

    encoder: Annotated[Path | None, Option("FILE")] = None
    """A published in-domain encoder; `enc` then needs no training."""

    vgg: Annotated[Path | None, Option("FILE")] = None
    """Published VGG16 for the perceptual loss and distance; an inversion run has its own."""

    n: Annotated[int | None, Option("N")] = None
    """Only the first N images."""

    decoder_images: Annotated[int | None, Option("N")] = None
    """Instead of IMAGES: N images that the decoder makes from random codes."""

    iterations: Annotated[int | None, Option("N")] = None
    """Iterations on each code; the method's number if not given."""

    rate: Annotated[float | None, Option("R")] = None
    """Learning rate of Adam, in units of the codes' standard deviation; 0.01 if not given."""

    samples: Annotated[int | None, Option("N")] = None
    """Posterior samples of each image, to show the uncertainty; 4 for damc if not given."""

    train_iterations: Annotated[int | None, Option("N")] = None
    """Learning updates of an inversion run that has to be trained first; the default of `damc
    train-inversion` if not given."""

    batch: Annotated[int, Option("B")] = 50
    """Images inverted together."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random; the same seed gives the same codes."""

    resize: bool = False
    """Crop every image to its center square and resize it to the decoder's size."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder; inversions/METHOD inside the run folder if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Inverts, prints the errors, writes codes, pictures and tables."""
        from damc.inversion.invert import decoder_images, invert_images, write_found
        from damc.inversion.methods import check_options
        from damc.inversion.prepare import prepare
        from damc.inversion.source import open_source
        from damc.report.results import write_results

        # Everything that can be refused is, before learned parts are trained.
        at_least_one(n=self.n, batch=self.batch, train_iterations=self.train_iterations)
        options = self._options()
        check_options(self.method, **options)
        source = open_source(self.decoder, device(self.device))
        images = self._images(source)
        out = self.out or source.output_folder / self.method
        check_writable(out)
        parts = prepare(
            source,
            self.method,
            encoder=self.encoder,
            vgg=self.vgg,
            seed=self.seed,
            on_train=lambda folder: say(f"training the learned parts of {self.method} in {folder}"),
            iterations=self.train_iterations,
            data_root=self.data_root,
            accelerator=self.device,
        )
        found = invert_images(
            parts,
            images.sets or decoder_images(parts, self.decoder_images or 1, seed=self.seed + 1),
            self.method,
            limit=self.n,
            seed=self.seed,
            batch=self.batch,
            progress=sys.stderr.isatty(),
            **options,
        )
        written = write_found(found, out)
        results = {
            "decoder": str(self.decoder),
            "evaluated_on": images.kind,
            "sampler": self.sampler,
            "seed": self.seed,
            **found.table,
        }
        path = write_results(out, {**results, "each": found.rows})
        if images.note:
            say(f"no unseen images: {images.note}")
        say(table([[key, shown(value)] for key, value in results.items()]))
        say()
        for caption, file in written.items():
            say(f"{file}  {caption}")
        say(f"{path}  the table, and the numbers of every image")

    def _options(self) -> dict[str, Any]:
        """Options of `damc.inversion.methods.invert`."""
        from damc.errors import BadInput

        if self.rate is not None and self.sampler == "langevin":
            raise BadInput(f"rate must be left out with --sampler langevin, got {self.rate}")
        samples = self.samples
        if samples is None:
            samples = 4 if self.method == "damc" else 0
        return {
            "sampler": self.sampler,
            "iterations": self.iterations,
            "rate": 0.01 if self.rate is None else self.rate,
            "samples": samples,
        }

    def _images(self, source: Source) -> Subjects:
        """The images to invert; no sets for those that the decoder is to make."""
        from damc.errors import BadInput
        from damc.tasks.trained import Subjects

        if self.decoder_images is None:
            return source.subjects(self.images, resize=self.resize, data_root=self.data_root)
        if self.images or self.resize:
            given = "IMAGES" if self.images else "--resize"
            raise BadInput(f"{given} must be left out with --decoder-images, got both")
        if self.decoder_images < 1:
            raise BadInput(f"decoder-images must be at least 1, got {self.decoder_images}")
        return Subjects([], "the decoder's own images")
