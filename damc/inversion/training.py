"""Train the learned parts of inversion, in a run folder that holds the decoder too."""

from __future__ import annotations

__all__ = ["SMALL", "InversionTraining", "default_iterations", "settings_for", "train_inversion"]

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from damc.disk.tensors import to_safetensors
from damc.errors import BadInput
from damc.inversion.learner import Inversion
from damc.inversion.networks import InversionNetworks
from damc.inversion.settings import InversionSettings
from damc.inversion.source import Source
from damc.inversion.stylegan import StyleDecoder
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.vgg import VGG16
from damc.randomness import global_seed
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run

SMALL = InversionSettings(
    # Few-step starts, short noiseless chains and higher rates: thousands of iterations on a laptop
    # instead of the paper's 200,000 on a GPU.
    encoder_iterations=1000,
    warmup_iterations=100,
    sampler="adam",
    posterior_steps=10,
    adam_rate=0.03,
    prior_steps=20,
    updates=3,
    ema_rate=0.05,
    ema_every=1,
    start_solver="multistep",
    start_steps=10,
    encoder_rate=1e-3,
    energy_rate=5e-4,
    amortizer_rate=1e-3,
)
"""Settings for decoders below 128 pixels."""


def default_iterations(decoder: StyleDecoder) -> int:
    """Iterations for a decoder: about twice those of the encoder and the warm-up."""
    return 2000 if _is_small(decoder) else 20_000


@dataclass(frozen=True)
class InversionTraining:
    """One training run of inversion: which decoder, on which images, for how long.

    Attributes:
        decoder: what is inverted; it is not changed.
        folder: the run folder; a run that it holds already is resumed.
        iterations: in total, counting those done before.
        origin: the images to learn from.
        seed: of the initial weights, the order of the images and every draw.
        batch: images an iteration.
        changes: settings to change, by name.
        encoder: an in-domain encoder that is given, not trained.
        vgg: the perceptual network; without one, pixels are compared.
        networks: fields of `InversionNetworks` to change, by name.
        loop: further options of `damc.fit`.
    """

    decoder: StyleDecoder
    folder: Path
    iterations: int
    origin: Origin
    seed: int = 0
    batch: int = 32
    changes: dict[str, Any] = field(default_factory=dict)
    encoder: StyleEncoder | None = None
    vgg: VGG16 | None = None
    networks: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Inversion:
        """Trains, and gives the learner."""
        images = self.origin.train()
        with global_seed(self.seed):
            learner = self.learner()
        fit(
            learner,
            images,
            iterations=self.iterations,
            run=self.folder,
            batch=self.batch,
            seed=self.seed,
            origin={**self.origin.settings, "decoder": _digest(self.decoder)},
            # Where the images are is known from the first checkpoint on, not only at the end.
            hook=lambda learner, run, k: self.origin.remember(self.folder),
            hook_every=self.loop.get("checkpoint_every", 500),
            **self.loop,
        )
        return learner.eval()

    def learner(self) -> Inversion:
        """The learner before its first iteration, calibrated unless the folder has a run."""
        described = InversionNetworks.describe(
            self.decoder, self.origin.shape, encoder=self.encoder, vgg=self.vgg, **self.networks
        )
        settings = settings_for(self.decoder)
        if self.encoder is not None:
            settings = replace(settings, encoder_iterations=0)
        try:
            settings = replace(settings, **self.changes)
        except TypeError as error:
            raise BadInput(f"changes must be settings of inversion: {error}") from error
        place = next(self.decoder.parameters()).device
        problem = described.problem(self.decoder, self.vgg).to(place)
        there = (self.folder / "config.json").is_file() and Run.open(self.folder).checkpoints()
        if not there or self.encoder is not None:
            problem.calibrate(torch.Generator(problem.mean.device).manual_seed(self.seed))
        return described.learner(settings, problem, self.encoder)


def settings_for(decoder: StyleDecoder) -> InversionSettings:
    """The settings of a decoder's inversion, by its size."""
    return SMALL if _is_small(decoder) else InversionSettings()


def train_inversion(
    source: Source,
    folder: str | Path | None = None,
    *,
    iterations: int | None = None,
    data: str | None = None,
    data_root: Path | None = None,
    resize: bool = False,
    encoder: StyleEncoder | None = None,
    vgg: VGG16 | None = None,
    batch: int = 32,
    seed: int = 0,
    changes: dict[str, Any] | None = None,
    **loop: Any,
) -> Inversion:
    """Trains an inversion run for a decoder, or resumes it.

    Args:
        source: the decoder.
        folder: the run folder; by default "inversion" inside the decoder's run folder.
        iterations: in total; see `default_iterations`.
        data: images to learn from; by default those that the decoder was trained on.
        data_root: folder of the named data sets.
        resize: crop and resize the images to the decoder's size.
        encoder: an in-domain encoder that is given, not trained.
        vgg: the perceptual network; without one, pixels are compared.
        batch: images an iteration.
        seed: of the initial weights, the order of the images and every draw.
        changes: settings to change, by name.
        **loop: further options of `damc.fit`.
    """
    if source.decoder is None:
        raise BadInput(
            "decoder must be a run of damc train-gan or a StyleGAN file, got the inversion run "
            f"{source.path}"
        )
    origin = source.origin(data_root)
    if data is not None:
        origin = Origin(data, source.shape, resize=resize, root=data_root)
    elif origin is None:
        raise BadInput(f"data must be given for {source.path}, which does not name its images")
    elif resize:
        origin = replace(origin, resize=True)
    training = InversionTraining(
        source.decoder,
        source.inversion_folder if folder is None else Path(folder),
        default_iterations(source.decoder) if iterations is None else iterations,
        origin,
        seed=seed,
        batch=batch,
        changes=changes or {},
        encoder=encoder,
        vgg=vgg,
        loop=loop,
    )
    return training.run()


def _is_small(decoder: StyleDecoder) -> bool:
    return decoder.synthesis.layers < 12


def _digest(decoder: StyleDecoder) -> str:
    """16 hex digits that identify a decoder."""
    return hashlib.sha256(to_safetensors(decoder.state_dict())).hexdigest()[:16]
