"""Tables on a dask cluster: the same folders and figures, whatever happens to its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from damc.errors import BadInput
from damc.paper import find_table
from damc.paper.table import Options
from damc.paper.work import _alone, do_cell, run_cells

OPTIONS = Options(
    data=("digits",), methods=("T=10", "T=30"), seeds=(0,), iterations=20, images=60, threads=1
)


@contextmanager
def cluster(workers: int, processes: bool) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="dask.distributed, of damc[cluster]")
    made = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=processes, dashboard_address=None
    )
    try:
        with distributed.Client(made, set_as_default=False) as client:
            yield client
    finally:
        made.close()


def figures(out: Path, options: Options) -> dict[str, dict[str, float]]:
    found = run_cells(find_table("steps"), options, out)  # all of them are there
    return {r.cell.name: {k: v for k, v in r.figures.items() if "seconds" not in k} for r in found}


def until(true: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_cluster_makes_the_table(tmp_path: Path) -> None:
    """On one worker, the folder of a finished cell among them; and bad input is one sentence."""
    options = Options(
        data=("digits",), methods=("T=10",), iterations=2, images=40, threads=1, seeds=(0,)
    )
    told: list[str] = []
    with cluster(1, processes=False) as client:
        address = client.scheduler.address
        for expected in (["sent", "done"], ["sent", "done", "kept"]):
            run_cells(
                find_table("steps"),
                options,
                tmp_path,
                cluster=address,
                report=lambda cell, state: told.append(state),
            )
            assert told == expected
        with pytest.raises(BadInput, match="processes must be left out with a cluster, got 2"):
            run_cells(find_table("steps"), options, tmp_path, cluster=address, processes=2)
    (found,) = figures(tmp_path, options).values()
    assert found["iterations"] == 2


def test_an_address_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="dask.distributed, of damc[cluster]")
    monkeypatch.setattr("damc.paper.cluster._CONNECT", 1)
    for address in ("tcp://127.0.0.1:9", "nobody"):
        with pytest.raises(BadInput, match="cluster must be the address of a dask scheduler"):
            run_cells(find_table("steps"), OPTIONS, tmp_path, cluster=address)


def test_without_dask_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BadInput, match=r"pip install 'damc\[cluster\]'$"):
        run_cells(find_table("steps"), OPTIONS, tmp_path, cluster="tcp://127.0.0.1:9")


def test_two_processes_never_do_one_cell(tmp_path: Path) -> None:
    table = find_table("steps")
    cell = table.cells(OPTIONS)[0]
    folder = tmp_path / "cells" / cell.name
    folder.mkdir(parents=True)
    with _alone(folder, wait=False):
        with pytest.raises(BadInput, match="must be done by one process at a time, got two"):
            do_cell(table, cell, OPTIONS, tmp_path)
        waiting = threading.Thread(
            target=do_cell, args=(table, cell, OPTIONS, tmp_path), kwargs={"wait": True}
        )
        waiting.start()
        (folder / "result.json").write_text(json.dumps({"figures": {"mine": 1.0}}))
    waiting.join()  # it had to wait, and found the result of the first
    assert json.loads((folder / "result.json").read_text()) == {"figures": {"mine": 1.0}}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_cell_ends_with_the_process_that_follows_it(tmp_path: Path) -> None:
    """Standard input of a followed cell ends with its worker, however that ended."""
    program = "import sys; sys.argv[1:] = []; from damc.paper import worker; import threading, time"
    program += "; threading.Thread(target=worker._end_with_input, daemon=True).start()"
    program += "; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    """Three workers, one killed in the middle of a cell: the table is that of one machine."""
    options = Options(
        data=("digits",),
        methods=("T=10", "T=30"),
        seeds=(0, 1),
        iterations=60,
        images=60,
        threads=1,
    )
    here, there = tmp_path / "here", tmp_path / "there"
    run_cells(find_table("steps"), options, here, processes=2)
    with cluster(3, processes=True) as client:
        address = client.scheduler.address
        made: list[Any] = []
        thread = threading.Thread(
            target=lambda: made.append(
                run_cells(find_table("steps"), options, there, cluster=address)
            )
        )
        thread.start()
        until(lambda: any(there.glob("cells/*/run/metrics.jsonl")))
        pids = client.run(os.getpid)
        busy = next(worker for worker, keys in client.processing().items() if keys)
        os.kill(pids[busy], signal.SIGKILL)
        thread.join()
    assert len(made[0]) == 4
    assert figures(there, options) == figures(here, options)
