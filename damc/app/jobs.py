"""Long work that can be watched and stopped, one job at a time in each browser tab."""

from __future__ import annotations

__all__ = ["Job", "Jobs", "Stopped"]

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor

from damc.app.recent import Recent
from damc.density import LogProb

T = TypeVar("T")
_END = object()
_TABS = 200


class Stopped(Exception):
    """The job was stopped."""


class Job:
    """One piece of work in a thread of its own, which says what it has found as it goes.

    The work calls `check` now and then, or evaluates a `watched` density; once the job is stopped,
    both raise `Stopped` inside it.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._said: queue.Queue[Any] = queue.Queue()

    def stop(self) -> None:
        """Ends the work at its next check."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raises `Stopped` if the job was."""
        if self.stopped:
            raise Stopped

    def say(self, found: Any) -> None:
        """Hands a result, or a part of it, to whoever watches."""
        self.check()
        self._said.put(found)

    def watched(self, log_prob: LogProb) -> LogProb:
        """The same density, which raises `Stopped` once the job was stopped."""

        def evaluate(z: Tensor) -> Tensor:
            self.check()
            return log_prob(z)

        return evaluate

    def watch(self, work: Callable[[Job], None]) -> Iterator[Any]:
        """Runs the work and yields all that it says; its exceptions are raised here.

        Whoever closes this iterator stops the work.
        """
        failure: list[BaseException] = []

        def run() -> None:
            try:
                work(self)
            except Exception as error:  # noqa: BLE001 - raised again below, in the watcher's thread
                failure.append(error)
            finally:
                self._said.put(_END)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            while (found := self._said.get()) is not _END:
                if not self.stopped:  # what was said before the stop is no longer of interest
                    yield found
        finally:
            self.stop()
        if failure:
            raise failure[0]


class Jobs:
    """The job of each browser tab, by the tab's name: a new one stops the one before it."""

    def __init__(self) -> None:
        self._jobs = Recent[Job](_TABS)

    def start(self, tab: str) -> Job:
        """A new job of a tab."""
        job = Job()
        before = self._jobs.put(tab, job)
        if before is not None:
            before.stop()
        return job

    def stop(self, tab: str) -> bool:
        """Stops and forgets the job of a tab; whether there was one that had not ended."""
        job = self._jobs.pop(tab)
        if job is None or job.stopped:
            return False
        job.stop()
        return True
