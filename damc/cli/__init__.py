"""The `damc` command: sub-commands are dataclasses, and failures are one sentence.

Nothing here imports torch before a command runs, so that help is quick.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "Command", "main"]

import difflib
import importlib
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from damc.cli.console import rank, say, table
from damc.cli.options import parse
from damc.errors import BadInput, Diverged


class Command(NamedTuple):
    """One sub-command: its dataclass, as "module:class", its arguments, and what it does."""

    place: str
    usage: str
    about: str


COMMANDS = {
    "demo": Command("damc.cli.demo:Demo", "", "train, sample and report in a few minutes"),
    "train": Command(
        "damc.cli.train:Train",
        "PRESET | --data IMAGES",
        "train a model of a preset's images or of your own, or resume a run",
    ),
    "train-gan": Command(
        "damc.cli.gan:TrainGAN", "[DATA]", "train a small StyleGAN, a decoder to invert"
    ),
    "train-inversion": Command(
        "damc.cli.invert:TrainInversion", "DECODER", "learn to invert a decoder"
    ),
    "invert": Command(
        "damc.cli.invert:Invert",
        "--decoder RUN [IMAGES]",
        "find codes from which a decoder makes images",
    ),
    "sample": Command("damc.cli.trained:Sample", "RUN", "draw images from a trained run"),
    "reconstruct": Command(
        "damc.cli.trained:Reconstruct", "RUN [IMAGES]", "reconstruct images, with errors"
    ),
    "train-detector": Command(
        "damc.cli.train_detector:TrainDetector", "IMAGES", "fit a detector to normal images"
    ),
    "detect": Command(
        "damc.cli.detect:Detect", "RUN IMAGES", "score how anomalous images are: CSV and picture"
    ),
    "evaluate": Command(
        "damc.cli.measure:Evaluate", "RUN", "Frechet and kernel distances, errors on unseen images"
    ),
    "transitions": Command(
        "damc.cli.measure:Transitions", "RUN", "long chains on the learned prior, against data"
    ),
    "cost": Command(
        "damc.cli.measure:Cost", "PRESET", "parameters and seconds of a preset on this machine"
    ),
    "reproduce": Command("damc.cli.reproduce:Reproduce", "TABLE", "reproduce a table of the paper"),
    "report": Command("damc.cli.trained:Report", "RUN", "write report.html, a run on one page"),
    "app": Command("damc.cli.app:App", "[RUN ...]", "serve a web page: see and try all of it"),
    "presets": Command("damc.cli.lists:Presets", "", "list the presets of `train`"),
    "methods": Command("damc.cli.lists:Methods", "", "list the learning methods of `train`"),
    "data": Command("damc.cli.lists:Data", "", "list the named data sets, and which are found"),
    "download": Command(
        "damc.cli.download:Download", "DATA", "fetch mnist, cifar10 or svhn, and check the files"
    ),
    "models": Command("damc.cli.models:Models", "[NAME]", "list the models that come with damc"),
    "package": Command("damc.cli.models:Package", "RUN", "make a small model folder of a run"),
    "push": Command("damc.cli.models:Push", "RUN OWNER/NAME", "upload a model to the Hub"),
    "convert": Command(
        "damc.cli.convert:Convert", "FILE", "convert the authors' checkpoints, published weights"
    ),
    "toy": Command("damc.cli.toy:Toy", "", "the paper's two-dimensional example"),
}
"""Every sub-command by name, in the order of the overview.

Its dataclass has a docstring for the help, fields that tyro fills, and a method ``run()``.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0, 2 for bad input or faults, 130 if stopped,
    75 if stopped by a scheduler or `--max-minutes`: the same command resumes it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--"]:
        words = words[1:]  # it keeps torchrun from reading our options as its own
    for name, handler in _SIGNALS.items():
        number = getattr(signal, name, None)  # Windows has the first only
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            _run(words)
            sys.stdout.flush()
            return 0
        except (BadInput, OSError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
            if os.environ.get("TORCHELASTIC_RUN_ID"):
                # torchrun ends all processes once one has: each is to end with its own exit code.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.environ.get("DAMC_DEBUG"):
                traceback.print_exc()
            code, sentence = _outcome(error)
            if sentence:
                _print_error(sentence)
            return code


def _run(words: list[str]) -> None:
    name = words[0] if words else "--help"
    if name == "help" and len(words) > 1:  # `damc help train` is `damc train --help`
        name, words = words[1], [words[1], "--help"]
    if name in ("-h", "--help", "help"):
        say(_overview())
    elif name in ("--version", "-V", "version"):
        from damc import __version__

        say(f"damc {__version__}")
    elif name in COMMANDS:
        module, _, kind = COMMANDS[name].place.partition(":")
        parse(getattr(importlib.import_module(module), kind), f"damc {name}", words[1:]).run()
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"command must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")


def _overview() -> str:
    rows = [[f"  damc {name} {c.usage}", c.about] for name, c in COMMANDS.items()]
    return (
        "Train generative models and anomaly detectors on images; draw from them, measure and\n"
        "compare them. Densities are sampled in Python: damc.sample(log_prob, dim).\n\n"
        f"{table(rows)}\n\n"
        "`damc help COMMAND` explains a command; `damc version` prints the version."
    )


def _outcome(error: BaseException) -> tuple[int, str]:
    """The exit code and the message; an error that is a bug of damc is raised again."""
    if isinstance(error, BadInput | Diverged):
        return 2, str(error)
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "code", 130), str(error) or "stopped"
    if isinstance(error, BrokenPipeError):
        # The reader of our output has closed it; the interpreter's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141, ""
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return 2, f"could not read or write{where}: {error.strerror or error}"
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return 2, "there is not enough memory: give a smaller --batch"
    if isinstance(error, RuntimeError) and rank() > 0:
        # The process that failed first reports why.
        return 2, "stopped, because another process of this run stopped"
    raise error


def _out_of_memory(error: BaseException) -> bool:
    # torch has an exception class for the memory of GPUs only.
    words = ("can't allocate memory", "not enough memory")
    return type(error).__name__ == "OutOfMemoryError" or any(w in str(error) for w in words)


def _print_error(sentence: str) -> None:
    who = f"damc (process {rank()})" if rank() else "damc"
    sys.stderr.write(f"{who}: {' '.join(sentence.split())}\n")


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _postpone(number: int, frame: Any) -> None:
    from damc.train.stopping import OutOfTime

    raise OutOfTime


_SIGNALS = {"SIGTERM": _interrupt, "SIGHUP": _interrupt, "SIGUSR1": _postpone}


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    # Warnings of libraries are for programmers; users of the command see only those of damc.
    if os.environ.get("DAMC_DEBUG") or f"{os.sep}damc{os.sep}" in filename:
        _print_error(f"note: {message}")
