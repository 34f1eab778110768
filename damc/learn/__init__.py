"""Ways of learning a latent model, one file each, behind one interface."""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from damc.errors import BadInput
from damc.learn.abp import ABP
from damc.learn.adaptive import AdaptiveCE
from damc.learn.bigan import BiGAN
from damc.learn.damc import DAMC, GaussianDAMC, PaperDAMC
from damc.learn.latent_space import ABPDiffusion, VAEDiffusion
from damc.learn.learner import Learner
from damc.learn.lebm import LEBM, PersistentLEBM
from damc.learn.meg import MEG
from damc.learn.nalr import NALR
from damc.learn.ncp import NCPVAE
from damc.learn.rae import RAE
from damc.learn.sri import SRI, HierarchicalSRI
from damc.learn.two_stage import TwoStageVAE
from damc.learn.vae import VAE
from damc.learn.vi_lebm import VILEBM

__all__ = ["DAMC", "LEARNERS", "METHODS", "Learner", "find_learner", "find_method"]

LEARNERS: dict[str, type[Learner]] = {
    learner.name: learner
    for learner in (
        DAMC,
        PaperDAMC,
        GaussianDAMC,
        NALR,
        LEBM,
        PersistentLEBM,
        VILEBM,
        ABP,
        SRI,
        HierarchicalSRI,
        MEG,
        BiGAN,
        VAE,
        TwoStageVAE,
        RAE,
        NCPVAE,
        AdaptiveCE,
        VAEDiffusion,
        ABPDiffusion,
    )
}
"""Every way of learning by its name; a new one is a file and a class here."""

METHODS = {name: learner for name, learner in LEARNERS.items() if learner.takes_presets}
"""Those that learn a model of images on the networks of any preset."""


def find_learner(name: str) -> type[Learner]:
    """The way of learning of that name, among all that are installed.

    Packages add theirs by an entry point of the group "damc.learners", as `damc.inversion` does.
    """
    if name in LEARNERS:
        return LEARNERS[name]
    others = entry_points(group="damc.learners")
    if name in others.names:
        learner: type[Learner] = others[name].load()
        return learner
    known = ", ".join([*LEARNERS, *sorted(others.names)])
    raise BadInput(f"learner must be one of {known}, got {name!r}")


def find_method(name: str) -> type[Learner]:
    """The way of learning of that name, among those that take presets."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(METHODS)}"
    raise BadInput(f"there is no method {name!r}; {hint}")
