"""What a method of inversion needs: the decoder alone, or learned parts, trained if missing."""

from __future__ import annotations

__all__ = ["prepare"]

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from damc.errors import BadInput
from damc.inversion.learner import Inversion
from damc.inversion.networks import InversionNetworks
from damc.inversion.problem import Problem
from damc.inversion.settings import InversionSettings
from damc.inversion.source import Source, open_source
from damc.inversion.stylegan_encoder import load_style_encoder
from damc.inversion.training import settings_for, train_inversion
from damc.inversion.vgg import load_vgg16
from damc.randomness import global_seed


def prepare(
    source: Source,
    method: str,
    *,
    encoder: str | Path | None = None,
    vgg: str | Path | None = None,
    seed: int = 0,
    on_train: Callable[[Path], None] = lambda folder: None,
    **training: Any,
) -> Problem | Inversion:
    """The decoder or the learner that `damc.inversion.methods.invert` takes for a method.

    "opt" needs the decoder alone, and so does "enc" with a given encoder. For the other methods of
    a GAN run, an inversion run inside its folder is used, and trained first if it is not there.

    Args:
        source: the decoder.
        method: a name in `damc.inversion.methods.METHODS`.
        encoder: the file of a trained in-domain encoder.
        vgg: the file of the perceptual network; without one, pixels are compared.
        seed: of the calibration, and of the training.
        on_train: called with the run folder before a training begins.
        **training: further arguments of `damc.inversion.training.train_inversion`.
    """
    if source.learner is not None:
        if encoder is not None or vgg is not None:
            raise BadInput(
                "encoder and vgg must be left out for an inversion run, which has its own, got "
                f"{source.path}"
            )
        _check_untrained(training, f"the inversion run {source.path}")
        return _learned(source.learner, method, source.path)
    assert source.decoder is not None
    if method == "opt" and encoder is not None:
        raise BadInput(f"encoder must be left out for the method opt, got {encoder}")
    given: dict[str, Any] = {
        "encoder": None if encoder is None else load_style_encoder(encoder),
        "vgg": None if vgg is None else load_vgg16(vgg),
    }
    if method == "opt" or (method == "enc" and encoder is not None):
        _check_untrained(training, f"the method {method}")
        networks = InversionNetworks.describe(source.decoder, source.shape, **given)
        device = source.decoder.truncation.w_avg.device
        problem = networks.problem(source.decoder, given["vgg"]).to(device)
        problem.calibrate(torch.Generator(device).manual_seed(seed), probes=0)
        if method == "opt":
            return problem
        with global_seed(seed):
            return networks.learner(InversionSettings(), problem, given["encoder"]).to(device)
    folder = source.inversion_folder
    settings = settings_for(source.decoder)
    if (folder / "checkpoints").is_dir():
        known = open_source(folder, source.decoder.truncation.w_avg.device).learner
        if known is None:
            raise BadInput(f"{folder} must be a run of damc train-inversion, got another run")
        if method == "enc" or known.phase != "encoder":
            return known
        settings = known.settings
    total, encoding = training.get("iterations"), settings.encoder_iterations
    if method != "enc" and encoder is None and total is not None and total <= encoding:
        raise BadInput(
            f"train-iterations must be more than {encoding} for the method {method}, since the "
            f"first {encoding} train the encoder alone, got {total}"
        )
    on_train(folder)
    learner = train_inversion(source, folder, **given, seed=seed, **training)
    return _learned(learner, method, folder)


def _check_untrained(training: dict[str, Any], what: str) -> None:
    """Refuses a number of iterations where nothing has to be trained."""
    if training.get("iterations") is not None:
        raise BadInput(
            f"train-iterations must be left out for {what}, which trains nothing, got "
            f"{training['iterations']}"
        )


def _learned(learner: Inversion, method: str, folder: Path) -> Inversion:
    """The learner, if it has already trained the parts that the method needs."""
    if method not in ("opt", "enc") and learner.phase == "encoder":
        raise BadInput(
            f"{folder} must be trained for more than {learner.settings.encoder_iterations} "
            f"iterations for the method {method}, got {learner.iteration}, which trained the "
            "encoder alone: resume it with damc train-inversion"
        )
    return learner
