"""Run the cells of a table, in one process, several, or on a cluster, and never one twice.

A cell's folder holds ``cell.json``, what it is; whatever its work keeps to go on after an
interruption; and at last ``result.json``, which makes it finished.
"""

from __future__ import annotations

__all__ = ["do_cell", "run_cells"]

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from damc import disk
from damc.disk import write_atomically
from damc.errors import BadInput, Diverged
from damc.paper.cluster import last_line, run_on_cluster
from damc.paper.table import Cell, Options, Result, Table
from damc.tasks.evaluate import check_features

Report = Callable[[Cell, str], None]


def run_cells(
    table: Table,
    options: Options,
    out: Path,
    *,
    processes: int = 1,
    cluster: str | None = None,
    report: Report = lambda cell, state: None,
) -> list[Result]:
    """Every cell's result, from the folder where it is finished, else by doing it.

    Args:
        table: which table.
        options: what was chosen about it.
        out: the folder of the table.
        processes: how many cells are done at a time.
        cluster: the address of a dask scheduler whose workers do them instead.
        report: told of each cell whether it "starts" (or is "sent"), is "done" or was "kept".
    """
    if cluster is not None and processes != 1:
        raise BadInput(f"processes must be left out with a cluster, got {processes}")
    if processes < 1:
        raise BadInput(f"processes must be at least 1, got {processes}")
    table.check(options)
    cells = table.cells(options)
    for name in {cell.plan["features"] for cell in cells if "features" in cell.plan}:
        check_features(name, options.inception)  # now, not after the first hour of training
    for cell in cells:
        _claim(cell, out)
    waiting = []
    for cell in cells:
        if _result(cell, out) is None:
            waiting.append(cell)
        else:
            report(cell, "kept")
    if waiting:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        table.prepare(options, out)
    if cluster is not None:
        if waiting:
            run_on_cluster(table, waiting, options, out, cluster, report)
    elif processes == 1:
        for cell in waiting:
            report(cell, "starts")
            do_cell(table, cell, options, out)
            report(cell, "done")
    else:
        _in_processes(table, waiting, options, out, processes, report)
    results = [(cell, _result(cell, out)) for cell in cells]
    return [Result(cell, found["figures"]) for cell, found in results if found is not None]


def do_cell(table: Table, cell: Cell, options: Options, out: Path, *, wait: bool = False) -> None:
    """One cell, from where it stands to its ``result.json``.

    Args:
        table: which table.
        cell: which cell.
        options: what was chosen about the table.
        out: the folder of the table.
        wait: for another process that does the same cell; else that is refused.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    folder = out / "cells" / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, wait):
        if _result(cell, out) is not None:  # by the process that was waited for
            return
        start = time.monotonic()
        try:
            figures = table.work(cell, folder, options)
        except Diverged as error:
            raise Diverged(f"{table.name}, {cell.row} on {cell.column}: {error}") from error
        found = {"figures": figures, "seconds": round(time.monotonic() - start, 1)}
        write_atomically(folder / "result.json", json.dumps(found, indent=2) + "\n")


@contextmanager
def _alone(folder: Path, wait: bool) -> Iterator[None]:
    """Holds the folder of a cell: two processes must never write it."""
    disk.open_plain(folder / "lock", "ab").close()
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(blocking=wait, poll_interval=0.5)
    except Timeout:
        raise BadInput(f"{folder} must be done by one process at a time, got two") from None
    try:
        yield
    finally:
        lock.release()


def _claim(cell: Cell, out: Path) -> None:
    """Says in the cell's folder what it is; another cell of that name is refused."""
    path = out / "cells" / cell.name / "cell.json"
    wanted = json.loads(json.dumps(asdict(cell)))
    found = _read(path)
    if found is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(wanted, indent=2) + "\n")
    elif found != wanted:
        old, new = found.get("plan", {}), wanted["plan"]
        key = next((k for k in {**old, **new} if old.get(k) != new.get(k)), "plan")
        raise BadInput(
            f"{path.parent} was made with {key} = {old.get(key)!r}, now it is {new.get(key)!r}: "
            "give another --out"
        )


def _result(cell: Cell, out: Path) -> dict[str, Any] | None:
    return _read(out / "cells" / cell.name / "result.json")


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"{path} is damaged: it is not JSON; remove it to do it again") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged: it holds no table; remove it to do it again")
    return found


def _in_processes(
    table: Table,
    waiting: Sequence[Cell],
    options: Options,
    out: Path,
    processes: int,
    report: Report,
) -> None:
    write_atomically(out / "options.json", json.dumps(asdict(options), indent=2) + "\n")
    threads = options.threads or max(1, (os.cpu_count() or 1) // processes)
    workers = _Workers({**os.environ, "OMP_NUM_THREADS": str(threads)})

    def work(cell: Cell) -> None:
        words = [table.name, str(out), cell.name, "--follow"]
        command = [sys.executable, "-m", "damc.paper.worker", *words]
        process = workers.start(command, out / "cells" / cell.name / "log.txt")
        report(cell, "starts")
        if workers.wait(process):
            raise BadInput(
                f"{cell.row} on {cell.column} failed: {last_line(out / 'cells' / cell.name)}"
            )

    with ThreadPoolExecutor(processes) as pool:
        try:
            cells = {pool.submit(work, cell): cell for cell in waiting}
            for future in as_completed(cells):
                future.result()
                report(cells[future], "done")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise


class _Workers:
    """Processes, each awaited by its own thread.

    Not a `ProcessPoolExecutor`: a process that the system kills would break that pool and with it
    the cells of the others, and Ctrl-C would reach its processes before they have saved.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock, self.stopped = threading.Lock(), False

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """A process that says what it says to a file."""
        with self.lock, log.open("ab") as file:
            if self.stopped:
                raise CancelledError
            # In its own group, so that Ctrl-C reaches it once, by us: a second signal would
            # stop it before it has saved its work. Its standard input ends when we are killed.
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                process_group=0,
            )
            self.running.add(process)
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of a process, once it has ended."""
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        with self.lock:
            self.running.discard(process)
        return code

    def stop(self) -> None:
        """Asks every process to save and end, and lets none start."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()
