"""`damc train-inversion` and `damc invert`."""

from __future__ import annotations

__all__ = ["Invert", "TrainInversion"]

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from damc.cli.console import device, say, table, write_results
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.inversion.invert import Source
    from damc.inversion.learner import Inversion
    from damc.inversion.problem import Problem
    from damc.train.origin import Origin


@dataclass(frozen=True)
class TrainInversion:
    """Learn to invert a decoder: an encoder, an energy of codes and the amortized sampler.

    The decoder stays as it is. The same command again goes on where it stopped; the run folder
    then is all that `damc invert` needs.
    """

    generator: Annotated[Path, Option("DECODER", positional=True)]
    """The decoder: a run folder of `damc train-gan`, or a StyleGAN file as published (.pth,
    .safetensors)."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; DECODER/inversion if not given and DECODER is a folder."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning updates in total, counting those already done; 2,000 if not given, and 20,000 for
    decoders of 128 pixels and more."""

    data: Annotated[str | None, Option("SOURCE")] = None
    """Images to learn from: a name from `damc data`, a folder of pictures, a raw or .npy file. The
    decoder's own training images if not given."""

    encoder: Annotated[Path | None, Option("FILE")] = None
    """A trained in-domain encoder of the decoder's codes, as published; it is not trained then."""

    vgg: Annotated[Path | None, Option("FILE")] = None
    """VGG16 for the perceptual loss, as published (vgg16.pth); pixels alone if not given."""

    batch: Annotated[int, Option("B")] = 32
    """Images in one iteration."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same run again, bit for bit."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints. One is also written every ten minutes and at the end."""

    resize: bool = False
    """Crop every image to its center square and resize it to what the decoder makes."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that the decoder was trained from."""

    settings: Annotated[
        tuple[tuple[str, ...], ...], Option("NAME=VALUE ...", name="set", repeated=True)
    ] = ()
    """Settings to change, such as sampler=langevin encoder_iterations=500."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Trains, and says how the start and the end of its chains fit at last."""
        from damc.cli.train import stopped
        from damc.inversion.invert import open_source
        from damc.train.run import Run

        source = open_source(self.generator)
        folder = self.folder or default_folder(source)
        try:
            train(source, folder, self)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(stopped(folder)) from None
        last = Run.open(folder).metrics()[-1]
        results = {"run": str(folder), "decoder": str(self.generator), **last}
        say(table([[key, _shown(value)] for key, value in results.items()]))
        say()
        say(f"{write_results(folder, results)}  the table")
        say(f"damc invert --generator {folder}  inverts its unseen images")


@dataclass(frozen=True)
class Invert:
    """Find the codes from which a decoder would make given images.

    `opt` needs the decoder alone. The other methods need what `damc train-inversion` learned; for a
    run of `damc train-gan` that has no such run inside yet, one is trained first.
    """

    generator: Annotated[Path, Option("RUN|FILE")]
    """The decoder: a run folder of `damc train-inversion` or `damc train-gan`, or a StyleGAN file
    as published (.pth, .safetensors)."""

    images: Annotated[tuple[Path, ...], Option("[IMAGES ...]", positional=True)] = ()
    """Pictures, folders of pictures, raw or .npy files; the unseen images of the run's data if not
    given."""

    method: Literal["damc", "opt", "enc", "lebm-1x", "lebm-2x", "lebm-4x"] = "damc"
    """damc: a draw of the learned sampler, then 100 iterations. opt: 100 from a random code. enc:
    100 from the encoder's code. lebm: 100, 200 or 400 with the learned energy."""

    sampler: Literal["adam", "langevin"] = "adam"
    """How lebm and damc move: by Adam, as the authors' code, or by Langevin on the posterior, as
    the paper."""

    encoder: Annotated[Path | None, Option("FILE")] = None
    """A trained in-domain encoder as published; `enc` then needs no training."""

    vgg: Annotated[Path | None, Option("FILE")] = None
    """VGG16 for the perceptual loss and distance; an inversion run brings its own."""

    n: Annotated[int | None, Option("N")] = None
    """Only the first N images."""

    own: Annotated[int | None, Option("N")] = None
    """Instead of IMAGES: N images that the decoder makes of its own codes."""

    iterations: Annotated[int | None, Option("N")] = None
    """Iterations on each code; the method's own number if not given."""

    rate: Annotated[float, Option("R")] = 0.01
    """Step of Adam, in units of the codes' spread."""

    samples: Annotated[int | None, Option("N")] = None
    """Posterior samples for each image, to show the uncertainty; 4 for damc if not given."""

    train_iterations: Annotated[int | None, Option("N")] = None
    """Learning updates, if an inversion run has to be trained first; as many as `damc
    train-inversion` makes if not given."""

    batch: Annotated[int, Option("B")] = 50
    """Images inverted together."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same codes again."""

    resize: bool = False
    """Crop every image to its center square and resize it to what the decoder makes."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Where to write; inversions/METHOD inside the run folder if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that was trained from."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Inverts, prints the errors, writes codes, pictures and tables."""
        from damc.inversion.invert import invert_images, open_source, own_images, write_found

        source = open_source(self.generator, device(self.device))
        out = self._out(source)
        images, kind = self._images(source)
        parts = self._parts(source)
        if images is None:
            images = own_images(parts, self.own or 1, seed=self.seed + 1)
        samples = self.samples
        if samples is None:
            samples = 4 if self.method == "damc" else 0
        found = invert_images(
            parts,
            images,
            self.method,
            limit=self.n,
            seed=self.seed,
            batch=self.batch,
            progress=sys.stderr.isatty(),
            sampler=self.sampler,
            iterations=self.iterations,
            rate=self.rate,
            samples=samples,
        )
        written = write_found(found, out)
        results = {
            "generator": str(self.generator),
            "judged_on": kind,
            "sampler": self.sampler,
            "seed": self.seed,
            **found.table,
        }
        path = write_results(out, {**results, "each": found.rows})
        say(table([[key, _shown(value)] for key, value in results.items()]))
        say()
        for caption, file in written.items():
            say(f"{file}  {caption}")
        say(f"{path}  the table, and every image's numbers")

    def _out(self, source: Source) -> Path:
        if self.out is not None:
            return self.out
        home = source.path if source.run is not None else Path("inversions")
        return home / "inversions" / self.method if source.run is not None else home / self.method

    def _images(self, source: Source) -> tuple[Any, str]:
        """The images and what they are; None for those that the decoder is yet to make."""
        from damc.errors import BadInput
        from damc.train.origin import Origin

        if self.own is not None:
            if self.images or self.own < 1:
                raise BadInput("give images, or --own with a number of at least 1, not both")
            return None, "the decoder's own images"
        if self.images:
            origin = Origin("", source.shape, resize=self.resize, root=self.data_root)
            return origin.load(self.images), "the images given"
        remembered = origin_of(source, self.data_root)
        if remembered is None:
            raise BadInput(f"{source.path} remembers no images: say which ones to invert")
        unseen = remembered.unseen()
        if unseen.note:
            say(f"no unseen images: {unseen.note}")
        return unseen.images, unseen.kind

    def _parts(self, source: Source) -> Problem | Inversion:
        """What the method needs, trained if it has to be."""
        import torch

        from damc.errors import BadInput
        from damc.inversion.learner import Inversion
        from damc.inversion.networks import InversionNetworks
        from damc.inversion.settings import InversionSettings
        from damc.inversion.stylegan_encoder import load_style_encoder
        from damc.inversion.vgg import load_vgg16
        from damc.train.loop import load

        if source.learner is not None:
            if self.encoder is not None or self.vgg is not None:
                raise BadInput(f"{source.path} has its own encoder and perceptual network already")
            return self._learned(source.learner, source.path)
        assert source.decoder is not None
        if self.method == "opt" or (self.method == "enc" and self.encoder is not None):
            vgg = None if self.vgg is None else load_vgg16(self.vgg)
            encoder = None if self.encoder is None else load_style_encoder(self.encoder)
            described = InversionNetworks.describe(
                source.decoder, source.shape, encoder=encoder, vgg=vgg
            )
            problem = described.problem(source.decoder, vgg).to(device(self.device))
            generator = torch.Generator(problem.mean.device).manual_seed(self.seed)
            problem.calibrate(generator, probes=0)
            if self.method == "opt":
                return problem
            learner = described.learner(InversionSettings(), problem, encoder)
            return learner.to(problem.mean.device)
        folder = default_folder(source)
        if (folder / "checkpoints").is_dir():
            known = load(folder, device(self.device))
            if not isinstance(known, Inversion):
                raise BadInput(f"{folder} is no run of damc train-inversion")
            if self.method == "enc" or known.phase != "encoder":
                return known
        say(f"{self.method} needs learned parts: training them in {folder}")
        order = TrainInversion(
            source.path,
            folder,
            self.train_iterations,
            encoder=self.encoder,
            vgg=self.vgg,
            seed=self.seed,
            data_root=self.data_root,
            device=self.device,
        )
        return self._learned(train(source, folder, order), folder)

    def _learned(self, learner: Inversion, folder: Path) -> Inversion:
        """The learner, if what the method needs of it was trained already."""
        from damc.errors import BadInput

        if self.method not in ("opt", "enc") and learner.phase == "encoder":
            raise BadInput(
                f"the {learner.iteration} iterations of {folder} trained its encoder alone, and "
                f"{self.method} needs the energy and the sampler, which learn from iteration "
                f"{learner.settings.encoder_iterations} on: go on with damc train-inversion"
            )
        return learner


def default_folder(source: Source) -> Path:
    """Where the inversion run of a decoder lies if nobody says otherwise: inside its run."""
    from damc.errors import BadInput

    if source.run is None:
        raise BadInput(
            f"{source.path} is a file: train its inversion with damc train-inversion {source.path} "
            "--run DIR --data SOURCE, and give DIR as --generator"
        )
    return source.path / "inversion"


def origin_of(source: Source, root: Path | None) -> Origin | None:
    """The images that a run was trained on, if it was one of the command line."""
    from damc.train.origin import recall

    return None if source.run is None else recall(source.run, root)


def train(source: Source, folder: Path, order: TrainInversion) -> Inversion:
    """Trains an inversion run as the command line asks for it."""
    from dataclasses import replace

    from damc.errors import BadInput
    from damc.inversion.settings import InversionSettings
    from damc.inversion.stylegan_encoder import load_style_encoder
    from damc.inversion.training import InversionTraining, usual_iterations
    from damc.inversion.vgg import load_vgg16
    from damc.tasks.training import parse_settings
    from damc.train.origin import Origin

    if source.decoder is None:
        raise BadInput(f"{source.path} is an inversion run: give the decoder that it came from")
    origin = origin_of(source, order.data_root)
    if order.data is not None:
        origin = Origin(order.data, source.shape, resize=order.resize, root=order.data_root)
    elif origin is None:
        raise BadInput(f"{source.path} remembers no images: give those to learn from with --data")
    elif order.resize:
        origin = replace(origin, resize=True)
    texts = [text for group in order.settings for text in group]
    training = InversionTraining(
        source.decoder,
        folder,
        usual_iterations(source.decoder) if order.iterations is None else order.iterations,
        origin,
        seed=order.seed,
        batch=order.batch,
        changes=parse_settings(texts, InversionSettings),
        encoder=None if order.encoder is None else load_style_encoder(order.encoder),
        vgg=None if order.vgg is None else load_vgg16(order.vgg),
        loop={"checkpoint_every": order.checkpoint_every, "accelerator": order.device},
    )
    return training.run()


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
