"""`damc train-gan`."""

from __future__ import annotations

__all__ = ["TrainGAN"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import at_least_one, stopped, use_threads
from damc.cli.options import Option
from damc.cli.summary import show_summary


@dataclass(frozen=True)
class TrainGAN:
    """Train a small StyleGAN, a decoder to invert; the same command again resumes it.

    At 32 pixels it has 8 style layers. Smaller images, such as MNIST's 28 pixels, are padded with
    black. decoder.safetensors in the run folder has the keys of the published StyleGAN files.
    """

    data: Annotated[str, Option("[DATA]", positional=True)] = "mnist-5k"
    """Images: a name from `damc data`, a folder of pictures, a raw or .npy file, or
    hub:OWNER/NAME. The 5,000 digits that come with damc if not given."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; runs/gan if not given. If it holds this run already, training is resumed."""

    iterations: Annotated[int, Option("N")] = 4000
    """Learning updates in total, counting those already done."""

    size: Annotated[int, Option("PIXELS")] = 32
    """Height and width of the decoder's images: a power of two from 8 to 1024."""

    width: Annotated[int, Option("C")] = 16
    """Channels of the largest maps; they double with every halving of the size, up to --widest."""

    widest: Annotated[int, Option("C")] = 64
    """The largest number of channels."""

    style: Annotated[int, Option("D")] = 32
    """Size of z and of the code of one layer."""

    batch: Annotated[int, Option("B")] = 32
    """Images in one iteration, over all processes together."""

    r1: Annotated[float, Option("GAMMA")] = 1.0
    """Weight of the gradient penalty R1; larger is more stable and slower."""

    r1_every: Annotated[int, Option("K")] = 16
    """Iterations between penalties, which then have K times the weight."""

    rate: Annotated[float, Option("R")] = 0.002
    """Learning rate of both networks."""

    ema_rate: Annotated[float, Option("R")] = 0.005
    """Rate of the exponential moving average of the decoder's weights, which is the result."""

    flip: bool = False
    """Mirror each image with probability one half."""

    resize: bool = False
    """Crop every image to its center square and resize it to --size; needed for pictures of
    different sizes."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random; the same seed gives the same run, bit for bit."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints; another is written every ten minutes and at the end."""

    pictures_every: Annotated[int | None, Option("K")] = None
    """Iterations between pictures; if not given, they are drawn ten times in a run."""

    samples: Annotated[int, Option("N")] = 1000
    """Number of samples that are compared with real images at the end."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    devices: Annotated[int, Option("N")] = 1
    """Number of devices or processes; under torchrun, torchrun's number is used."""

    threads: Annotated[int | None, Option("N")] = None
    """Threads for each process; all cores if not given."""

    def run(self) -> None:
        """Trains, then prints a table of how it went."""
        from damc.inversion.gan import GANSettings
        from damc.inversion.gan_training import DECODER, plan_gan

        use_threads(self.threads)
        at_least_one(
            iterations=self.iterations,
            batch=self.batch,
            devices=self.devices,
            samples=self.samples,
            checkpoint_every=self.checkpoint_every,
            pictures_every=self.pictures_every,
        )
        settings = GANSettings(
            r1=self.r1,
            r1_every=self.r1_every,
            decoder_rate=self.rate,
            discriminator_rate=self.rate,
            ema_rate=self.ema_rate,
        )
        training = plan_gan(
            self.data,
            self.folder or Path("runs") / "gan",
            self.iterations,
            size=self.size,
            width=self.width,
            widest=self.widest,
            style=self.style,
            data_root=self.data_root,
            resize=self.resize,
            settings=settings,
            seed=self.seed,
            batch=self.batch,
            flip=self.flip,
            pictures_every=self.pictures_every,
            samples=self.samples,
            loop={
                "checkpoint_every": self.checkpoint_every,
                "accelerator": self.device,
                "devices": self.devices,
            },
        )
        try:
            summary = training.run()
        except KeyboardInterrupt as error:
            raise type(error)(stopped(training.folder)) from None
        if summary is not None:
            decoder = {"the decoder alone, in the published layout": training.folder / DECODER}
            show_summary(training.folder, summary, {}, decoder)
