"""`damc train-gan`."""

from __future__ import annotations

__all__ = ["TrainGAN"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from damc.cli.console import say, table, write_results
from damc.cli.options import Option


@dataclass(frozen=True)
class TrainGAN:
    """Train a small StyleGAN, a decoder to invert; the same command again goes on.

    At 32 pixels it has 8 style layers. Images that are smaller, such as MNIST's 28, are padded with
    black. decoder.safetensors in the run folder has the keys of the published StyleGAN files.
    """

    data: Annotated[str, Option("[DATA]", positional=True)] = "mnist-5k"
    """Images: a name from `damc data`, a folder of pictures, a raw or .npy file, or
    hub:OWNER/NAME. The 5,000 digits that come with damc if not given."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder, runs/gan if not given. If it holds this run already, training resumes."""

    iterations: Annotated[int, Option("N")] = 4000
    """Learning updates in total, counting those already done."""

    size: Annotated[int, Option("PIXELS")] = 32
    """Height and width of the decoder's images: a power of two from 8 to 1024."""

    width: Annotated[int, Option("C")] = 16
    """Channels of the largest maps; they double with every halving, up to --widest."""

    widest: Annotated[int, Option("C")] = 64
    """The largest number of channels."""

    style: Annotated[int, Option("D")] = 32
    """Size of z and of the code of one layer."""

    batch: Annotated[int, Option("B")] = 32
    """Images in one iteration, over all processes together."""

    r1: Annotated[float, Option("GAMMA")] = 1.0
    """Weight of the gradient penalty R1; larger is steadier and slower."""

    r1_every: Annotated[int, Option("K")] = 16
    """Iterations between penalties, each then K times as heavy."""

    rate: Annotated[float, Option("R")] = 0.002
    """Learning rate of both networks."""

    ema_rate: Annotated[float, Option("R")] = 0.005
    """How fast the decoder that is kept follows the one that learns."""

    flip: bool = False
    """Mirror each image with probability one half."""

    resize: bool = False
    """Crop every image to its center square and resize it to --size; pictures of different sizes
    need it."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same run again, bit for bit."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints. One is also written every ten minutes and at the end."""

    pictures_every: Annotated[int | None, Option("K")] = None
    """Iterations between pictures; ten times in a run if not given."""

    judged: Annotated[int, Option("N")] = 1000
    """How many samples are compared with real images at the end."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    devices: Annotated[int, Option("N")] = 1
    """How many devices or processes; torchrun's number holds under torchrun."""

    threads: Annotated[int | None, Option("N")] = None
    """Threads for each process; all cores if not given."""

    def run(self) -> None:
        """Trains, then prints a table of how it went."""
        from damc.cli.train import stopped

        self._check()
        training = self._training()
        try:
            summary = training.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(stopped(training.folder)) from None
        if summary is not None:
            self._show(training.folder, summary)

    def _training(self) -> Any:
        from damc.data import load_images
        from damc.inversion.gan import GANSettings, Sizes
        from damc.inversion.gan_training import GANTraining
        from damc.inversion.stylegan import check_resolution
        from damc.train.origin import Origin

        check_resolution(self.size)
        side = self.size if self.resize else None
        shape = load_images(self.data, root=self.data_root, size=side).shape
        sizes = Sizes(
            shape,
            self.size,
            latent_dim=self.style,
            style=self.style,
            base=self.width * self.size,
            widest=self.widest,
        )
        settings = GANSettings(
            r1=self.r1,
            r1_every=self.r1_every,
            decoder_rate=self.rate,
            discriminator_rate=self.rate,
            ema_rate=self.ema_rate,
        )
        loop = {
            "checkpoint_every": self.checkpoint_every,
            "accelerator": self.device,
            "devices": self.devices,
        }
        return GANTraining(
            sizes,
            settings,
            self.folder or Path("runs") / "gan",
            self.iterations,
            Origin(self.data, shape, resize=self.resize, root=self.data_root),
            seed=self.seed,
            batch=self.batch,
            flip=self.flip,
            pictures_every=self.pictures_every,
            judged=self.judged,
            loop=loop,
        )

    def _check(self) -> None:
        import torch

        from damc.errors import BadInput

        counts = {
            "width": self.width,
            "widest": self.widest,
            "style": self.style,
            "batch": self.batch,
            "devices": self.devices,
            "judged": self.judged,
            "pictures-every": self.pictures_every,
            "threads": self.threads,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def _show(self, folder: Path, summary: Any) -> None:
        from damc.inversion.gan_training import DECODER

        words = {
            "iteration": "iterations",
            "training_images": "training images",
            "resolution": "pixels a side",
            "code": "code, layers x style",
            "decoder_parameters": "parameters of the decoder",
            "discriminator_parameters": "parameters of the discriminator",
            "images_judged": "images judged",
            "pixel_pca_distance_samples": "pixel-PCA distance, samples",
            "pixel_pca_distance_test_images": "pixel-PCA distance, test images",
            "pixel_pca_distance_training_images": "pixel-PCA distance, training images",
            "seconds": "seconds of training",
        }
        results = {"run": str(folder), **summary.table}
        rows = [
            [words.get(k, k), f"{v:.4g}" if isinstance(v, float) else str(v)]
            for k, v in results.items()
        ]
        say(table(rows))
        say()
        for caption, path in summary.pictures.items():
            say(f"{path}  {caption}")
        say(f"{folder / DECODER}  the decoder alone, in the published layout")
        say(f"{summary.report}  all of this on one page")
        say(f"{write_results(folder, results)}  the table")
