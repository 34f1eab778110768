"""The `damc` command in processes of its own, quickly: one process imports, then forks for each.

A command runs exactly as installed (`damc.cli.main` on its arguments, its own working folder,
output files and limits), without the seconds that importing torch takes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NURSERY = """
import json, os, resource, sys, traceback
import matplotlib.figure, torch, tqdm, tyro
import damc.cli, damc.report.plots, damc.tasks.training, damc.tasks.demo

# The first figure looks for fonts, which takes longer than drawing it.
damc.report.plots.curves([{"iteration": 1, "mse": 1.0}], "first.png")

def live(order):
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    err = os.open(order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(out, 1), os.dup2(err, 2)
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    if order["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    try:
        code = damc.cli.main(order["words"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)

for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            live(order)
    print(answer, flush=True)
"""


class Outcome(NamedTuple):
    """How a command ended: its exit code (negative: the signal that killed it) and its words."""

    code: int
    out: str
    err: str


class Started:
    """A command that is running."""

    def __init__(self, ask: Callable[[dict[str, Any]], int], pid: int, files: list[Path]) -> None:
        self.pid, self._ask, self._files = pid, ask, files

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Outcome:
        code = self._ask({"wait": self.pid})
        out, err = (file.read_text() for file in self._files)
        return Outcome(code, out, err)


class Damc:
    """Runs `damc` with words and gives its outcome."""

    def __init__(self, folder: Path, first: str = "") -> None:
        """`first` is a program for the process from which commands are forked."""
        self.folder = folder
        self._count = 0
        self._running: set[int] = set()
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", f"{first}\n{NURSERY}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def __call__(self, *words: object, **options: Any) -> Outcome:
        return self.start(*words, **options).wait()

    def start(
        self,
        *words: object,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        file_limit: int = 0,
    ) -> Started:
        self._count += 1
        files = [self.folder / f"{self._count}.{name}" for name in ("out", "err")]
        order = {
            "words": list(map(str, words)),
            "cwd": str(cwd or self.folder),
            "env": env or {},
            "file_limit": file_limit,
            "out": str(files[0]),
            "err": str(files[1]),
        }
        started = Started(self._ask, self._ask(order), files)
        self._running.add(started.pid)
        return started

    def close(self) -> None:
        assert self._nursery.stdin is not None
        for pid in self._running:  # a test that failed half way leaves its command behind
            os.kill(pid, signal.SIGKILL)
        self._nursery.stdin.close()
        self._nursery.wait(timeout=60)

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()
        answer = int(self._nursery.stdout.readline())
        self._running.discard(order.get("wait", 0))
        return answer


@pytest.fixture(scope="session")
def damc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damc]:
    command = Damc(tmp_path_factory.mktemp("damc"))
    yield command
    command.close()


ITERATIONS = 30
TINY = ["--batch", 16, "--pictures-every", 1000, "--set", "posterior_steps=2", "prior_steps=2"]
TINY += ["updates=1", "start_steps=2", "test_steps=1", "prior_sample_steps=2"]


class Trained(NamedTuple):
    """A finished run that nobody disturbed.

    `words` made it, but for --run DIR; `tiny` are those of them that keep every run short.
    """

    folder: Path
    words: list[Any]
    tiny: list[Any]
    outcome: Outcome


@pytest.fixture(scope="session")
def trained(damc: Damc) -> Trained:
    words = ["train", "digits-small", "--iterations", ITERATIONS, *TINY]
    outcome = damc(*words, "--run", "trained", "--checkpoint-every", 10)
    assert outcome.code == 0, outcome.err
    return Trained(damc.folder / "trained", words, TINY, outcome)


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    return Path(shutil.copytree(trained.folder, tmp_path / "copied"))


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for something to become true."""

    def wait(ready: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not ready():
            assert time.monotonic() < end, "waited for two minutes in vain"
            time.sleep(0.002)

    return wait
