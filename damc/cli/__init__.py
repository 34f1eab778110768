"""The `damc` command: sub-commands are dataclasses, and failures are one sentence.

Nothing here imports torch before a command runs, so that help is quick.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "Command", "main"]

import difflib
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from damc.cli.console import say, table
from damc.cli.options import parse
from damc.errors import BadInput, Diverged


class Command(NamedTuple):
    """One sub-command: the dataclass behind it, as "module:class", its use, and what it does."""

    place: str
    usage: str
    about: str


COMMANDS = {
    "demo": Command("damc.cli.demo:Demo", "", "the main job in a few minutes, without a download"),
    "train": Command(
        "damc.cli.train:Train", "PRESET", "train on images, into runs/PRESET; again to go on"
    ),
    "train-gan": Command(
        "damc.cli.gan:TrainGAN", "[DATA]", "train a small StyleGAN, a decoder to invert"
    ),
    "train-inversion": Command(
        "damc.cli.invert:TrainInversion", "DECODER", "learn to invert a decoder, by all methods"
    ),
    "invert": Command(
        "damc.cli.invert:Invert", "--generator RUN [IMAGES]", "codes that a decoder makes images of"
    ),
    "sample": Command("damc.cli.trained:Sample", "RUN", "draw images from a trained run"),
    "reconstruct": Command(
        "damc.cli.trained:Reconstruct", "RUN [IMAGES]", "images as the model sees them, with errors"
    ),
    "detect": Command(
        "damc.cli.detect:Detect", "RUN IMAGES", "how unusual images are: CSV and picture"
    ),
    "evaluate": Command(
        "damc.cli.measure:Evaluate", "RUN", "Frechet and kernel distances, errors on unseen images"
    ),
    "transitions": Command(
        "damc.cli.measure:Transitions", "RUN", "long chains on the learned prior, against data"
    ),
    "cost": Command(
        "damc.cli.measure:Cost", "PRESET", "parameters and seconds of a set-up on this machine"
    ),
    "reproduce": Command(
        "damc.cli.reproduce:Reproduce", "TABLE", "a table of the paper, every method alike"
    ),
    "report": Command("damc.cli.trained:Report", "RUN", "one page about a run: report.html"),
    "presets": Command("damc.cli.lists:Presets", "", "the set-ups that `train` knows"),
    "methods": Command("damc.cli.lists:Methods", "", "the ways of learning that `train` knows"),
    "data": Command("damc.cli.lists:Data", "", "which data sets are found where"),
    "convert": Command(
        "damc.cli.convert:Convert", "FILE", "published .pth weights, made safe: .safetensors"
    ),
    "toy": Command("damc.toy.experiment:Toy", "", "the paper's example in two dimensions"),
}
"""Every sub-command by name, in the order of the overview; a new one is a line here.

Its dataclass has a docstring for the help, fields that tyro fills, and a method ``run()``.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, 2 for bad input or faults, 130 if stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--"]:
        words = words[1:]  # torchrun takes options of ours for its own unless this stands first
    signal.signal(signal.SIGTERM, _interrupt)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            _run(words)
            sys.stdout.flush()
            return 0
        except (BadInput, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
            if os.environ.get("DAMC_DEBUG"):
                traceback.print_exc()
            code, sentence = _outcome(error)
            if sentence:
                _complain(sentence)
            return code


def _run(words: list[str]) -> None:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        say(_overview())
    elif name == "--version":
        from damc import __version__

        say(f"damc {__version__}")
    elif name in COMMANDS:
        module, _, kind = COMMANDS[name].place.partition(":")
        parse(getattr(importlib.import_module(module), kind), f"damc {name}", words[1:]).run()
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(COMMANDS)}"
        raise BadInput(f"there is no command {name!r}; {hint}")


def _overview() -> str:
    rows = [[f"  damc {name} {c.usage}", c.about] for name, c in COMMANDS.items()]
    return (
        "damc learns energy-based priors with diffusion-amortized MCMC.\n\n"
        f"{table(rows)}\n\n"
        "`damc COMMAND --help` says more; `damc --version` says which damc this is."
    )


def _outcome(error: BaseException) -> tuple[int, str]:
    """The exit code, and what to say; what is not the user's doing is raised on."""
    if isinstance(error, BadInput | Diverged):
        return 2, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, str(error) or "stopped"
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has enough; the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141, ""
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return 2, f"the system refused{where}: {error.strerror or error}"
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return 2, "there is not enough memory for this: give a smaller --batch"
    if isinstance(error, RuntimeError) and _rank() > 0:
        # Its peers went away; the process that knows why says so.
        return 2, "stopped, because another process of this run did"
    raise error


def _out_of_memory(error: BaseException) -> bool:
    # torch has a class for a GPU's memory; on the CPU only the words tell.
    words = ("can't allocate memory", "not enough memory")
    return type(error).__name__ == "OutOfMemoryError" or any(w in str(error) for w in words)


def _complain(sentence: str) -> None:
    who = f"damc (process {_rank()})" if _rank() else "damc"
    sys.stderr.write(f"{who}: {' '.join(sentence.split())}\n")


def _rank() -> int:
    """The number of this process under torchrun or lightning-fabric."""
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    # Libraries warn their programmers; a user of the command is shown ours alone.
    if os.environ.get("DAMC_DEBUG") or f"{os.sep}damc{os.sep}" in filename:
        _complain(f"note: {message}")
