"""When training stops before its last iteration: signals, and a limit of time.

Ctrl-C, SIGTERM and SIGHUP (the terminal closed) and SIGUSR1 (a scheduler's warning, such as
Slurm's ``--signal=B:USR1@120``) end the iteration under way, save, and stop; so does the end of
`max_minutes`. The same command resumes the run.
"""

from __future__ import annotations

__all__ = ["OutOfTime", "Stop", "check_minutes", "stopping"]

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from damc.errors import BadInput

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # Windows has the first two


_ECHO = 1.0  # seconds in which a signal is still the first one


class OutOfTime(KeyboardInterrupt):
    """Training stopped, saved, because its time was over or a scheduler asked: go on later.

    Attributes:
        code: what the command exits with, EX_TEMPFAIL of sysexits.h: the same command goes on.
    """

    code: ClassVar[int] = 75


def check_minutes(max_minutes: float | None) -> None:
    """Refuses a limit that is none."""
    if max_minutes is not None and not (max_minutes > 0 and math.isfinite(max_minutes)):
        raise BadInput(f"max_minutes must be a positive number, got {max_minutes}")


class Stop:
    """Whether to stop after this iteration, and why.

    Args:
        max_minutes: stop after so much time; None for no limit.
    """

    def __init__(self, max_minutes: float | None = None) -> None:
        check_minutes(max_minutes)
        self._event = threading.Event()
        self._asked = -math.inf
        self._end = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._longest = 0.0
        self._last = time.monotonic()
        self.for_now = False

    def set(self, *, for_now: bool = False) -> None:
        """Ask to stop; `for_now` if the run is to go on, without anybody asking again."""
        self.for_now = for_now
        self._asked = time.monotonic()
        self._event.set()

    def is_set(self) -> bool:
        """Whether it was asked to stop; call it once an iteration.

        Time is over when another iteration as long as the longest might not end in time.
        """
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        if now + self._longest > self._end and not self._event.is_set():
            self.set(for_now=True)
        return self._event.is_set()

    def insists(self) -> bool:
        """Whether a signal now is a second one: Ctrl-C reaches a process twice at once, from the
        terminal and from torchrun."""
        return self._event.is_set() and time.monotonic() > self._asked + _ECHO


@contextlib.contextmanager
def stopping(max_minutes: float | None = None) -> Iterator[Stop]:
    """Turns signals into a `Stop`: ending in the middle of an iteration would leave the networks
    out of step with each other. A second signal, but for SIGUSR1, ends at once."""
    stop = Stop(max_minutes)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handler(number: int, frame: Any) -> None:
        warned = number == getattr(signal, "SIGUSR1", None)
        if stop.insists() and not warned:
            raise KeyboardInterrupt
        stop.set(for_now=warned)

    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    # What nohup has set to be ignored stays so.
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield stop
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
