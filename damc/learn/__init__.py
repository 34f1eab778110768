"""Ways of learning a latent model, one file each, behind one interface."""

from __future__ import annotations

from damc.learn.damc import DAMC
from damc.learn.learner import Learner

__all__ = ["DAMC", "LEARNERS", "Learner"]

LEARNERS: dict[str, type[Learner]] = {learner.name: learner for learner in (DAMC,)}
"""Every way of learning by its name; a new one is a file of its own and a name here."""
