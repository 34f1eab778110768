"""Several processes of one run on this machine: the same command, started once for each."""

from __future__ import annotations

__all__ = ["launch_others"]

import atexit
import os
import signal
import socket
import subprocess
import sys
import time

from damc.errors import BadInput

_PATIENCE = 5.0
"""Seconds that a process has to end by itself when the first one is gone."""


def launch_others(count: int) -> None:
    """Starts this command again as processes 1, ..., count - 1 of one run; this one is process 0.

    They find each other by the variables that torchrun sets. When this process ends, those that
    are still there are asked to end, too, and killed if they do not: one that was stopped cannot
    hear anything else.
    """
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise BadInput(
            "devices must be 1 in an interactive session, which cannot be started again, got "
            f"{count}: train from a script or by the command"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "damc",
    }
    others = []
    for number in range(1, count):
        command = [sys.executable, *sys.orig_argv[1:]]
        others.append(subprocess.Popen(command, env=os.environ | shared | _numbered(number)))
    os.environ.update(shared | _numbered(0))
    atexit.register(_end, others)


def _numbered(number: int) -> dict[str, str]:
    return {"RANK": str(number), "LOCAL_RANK": str(number)}


def _end(others: list[subprocess.Popen[bytes]]) -> None:
    """Waits for the other processes a little, then ends them."""
    deadline = time.monotonic() + _PATIENCE
    for other in others:
        try:
            other.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            other.send_signal(signal.SIGTERM)
            try:
                other.wait(1.0)
            except subprocess.TimeoutExpired:
                other.kill()
                other.wait()
