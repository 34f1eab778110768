"""How things go wrong: the input is not what it must be, or the numbers blew up."""

from __future__ import annotations

__all__ = ["BadInput", "Diverged", "NoSplit", "Unable"]


class BadInput(ValueError):
    """What was given is not what it must be; the message is one sentence that says both."""


class Unable(BadInput, NotImplementedError):
    """A learner was asked for something that its method does not have, such as inference."""


class Diverged(RuntimeError):
    """A log-density, gradient, sample or loss is not finite any more; the message says which."""


class NoSplit(BadInput):
    """The data have no images of the split that was asked for."""
