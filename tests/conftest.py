"""What every test shares: one thread, fixed seeds, and real data only where it is offered."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest
import torch


def pytest_configure() -> None:
    # One thread for each process: test processes do not fight for cores, and sums come out the same
    # however the tests are spread.
    torch.set_num_threads(1)
    for name, value in {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}.items():
        os.environ[name] = value  # subprocesses and lazy imports read it
    # Shells start background jobs with Ctrl-C ignored, which processes of the tests would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # A first call of torch is slow, which is no failure; a failure must come back at the next run.
    hypothesis.settings.register_profile("damc", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("damc")


@pytest.fixture(autouse=True)
def _same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same initial weights (torch draws them from its global state), no data of the user's."""
    torch.manual_seed(0)
    monkeypatch.delenv("DAMC_DATA", raising=False)


@pytest.fixture
def generator() -> torch.Generator:
    """A random-number generator with a fixed seed, new for every test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data files; a test that asks for it is skipped where there is none."""
    folder = os.environ.get("DAMC_TEST_DATA")
    if not folder:
        pytest.skip("DAMC_TEST_DATA names no folder of real data files")
    if not Path(folder).is_dir():
        pytest.fail(f"DAMC_TEST_DATA is {folder!r}, which is no folder")
    return Path(folder)
