"""The cells of a table on a dask cluster: `damc reproduce TABLE --cluster ADDRESS`.

A cell is what it is on one machine: `python -m damc.paper.worker` in its own process, in the
same folder, which all machines have to see. dask decides where it runs, and sends it elsewhere when
the machine it ran on is lost; it then goes on at its last checkpoint. The lock of its folder keeps
a process that was thought lost, and is not, from writing beside the new one.
"""

from __future__ import annotations

__all__ = ["last_line", "run_on_cluster"]

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from damc.disk import write_atomically
from damc.errors import BadInput
from damc.paper.table import Cell, Options, Table

_CONNECT = 20  # seconds to reach the scheduler
_LOOK = 1.0  # seconds between looks at a process
_SAVING = 120  # seconds that cells have to save when the table is stopped


def run_on_cluster(
    table: Table,
    waiting: Sequence[Cell],
    options: Options,
    out: Path,
    address: str,
    report: Callable[[Cell, str], None],
) -> None:
    """Does the cells on the cluster's workers, one for each of their threads at a time.

    Args:
        table: which table.
        waiting: its cells that are not finished.
        options: what was chosen about it.
        out: the folder of the table, seen by all machines under this name.
        address: of dask's scheduler, such as ``tcp://10.0.0.1:8786``.
        report: told of each cell that it is "sent" and "done".
    """
    out = out.resolve()
    write_atomically(out / "options.json", json.dumps(asdict(options), indent=2) + "\n")
    with _client(address) as client:
        import distributed

        name = f"damc-stop-{uuid.uuid4().hex}"
        stop = distributed.Event(name, client=client)
        try:
            cells = {}
            for cell in waiting:
                future = client.submit(
                    _do_cell, table.name, str(out), cell.name, options.threads, str(Path.cwd()),
                    os.environ.get("DAMC_DATA"), name, pure=False,
                )  # fmt: skip
                cells[future] = cell
                report(cell, "sent")
            for future in distributed.as_completed(cells):
                cell = cells[future]
                said = _outcome(future, cell)
                if said:
                    raise BadInput(f"{cell.row} on {cell.column} failed: {said}")
                report(cell, "done")
        except BaseException:
            stop.set()  # those that run save and end, those that wait do not begin
            distributed.wait(list(cells), timeout=_SAVING)
            raise


def _outcome(future: Any, cell: Cell) -> str:
    """Why a cell failed; empty if it did not."""
    import distributed

    try:
        said: str = future.result()
    except distributed.KilledWorker as error:
        raise BadInput(
            f"{cell.row} on {cell.column} must run on a worker that lives, got several that died "
            f"under it: {error}"
        ) from error
    return said


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        import distributed
    except ImportError as error:
        raise BadInput(
            "a cluster must be reached through dask.distributed, which is missing: "
            "pip install 'damc[cluster]'"
        ) from error
    try:
        client = distributed.Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:  # a timeout is an OSError, too
        raise BadInput(
            f"cluster must be the address of a dask scheduler, got no answer from {address!r}"
        ) from error
    try:
        with client.as_current():
            yield client
    finally:
        client.close()


def _do_cell(
    table: str,
    out: str,
    cell: str,
    threads: int | None,
    folder: str,
    data: str | None,
    stop: str,
) -> str:
    """On a worker: one cell in its own process. Returns why it failed; empty if it did not."""
    import distributed

    place = Path(out) / "cells" / cell
    if not (place / "cell.json").is_file():
        return f"the workers must see the folder {out}, got one that does not"
    worker = distributed.get_worker()
    threads = threads or max(1, (os.cpu_count() or 1) // worker.state.nthreads)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if data is not None:
        environment["DAMC_DATA"] = data
    asked = distributed.Event(stop, client=distributed.get_client())
    if asked.is_set():
        return "stopped"
    with (place / "log.txt").open("ab") as log:
        # The process ends when its standard input does: with this one, however that ends.
        process = subprocess.Popen(
            [sys.executable, "-m", "damc.paper.worker", table, out, cell, "--follow"],
            env=environment,
            cwd=folder if Path(folder).is_dir() else None,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    told = False
    while True:
        try:
            code = process.wait(_LOOK)
            break
        except subprocess.TimeoutExpired:
            if not told and asked.is_set():
                process.terminate()
                told = True
    if code == 0:
        return ""
    return "stopped" if told else last_line(place)


def last_line(place: Path) -> str:
    """The last thing that a cell said in its folder."""
    text = (place / "log.txt").read_text(errors="replace")
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].removeprefix("damc: ") if lines else "it said nothing"
