"""Where training computes: one process by torch itself, several through lightning-fabric."""

from __future__ import annotations

__all__ = ["OneProcess", "Place", "open_place"]

import atexit
import contextlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from damc.errors import BadInput
from damc.learn.processes import timeout
from damc.train.launch import launch_others

PRECISIONS: dict[str, torch.dtype | None] = {"32-true": None, "bf16-mixed": torch.bfloat16}
"""What is computed in 16 bits, by autocast, if anything; weights always have 32."""

_START = 600.0
"""Seconds that processes have to find each other."""


class Place(Protocol):
    """What the training loop asks of the process it runs in; a `Fabric` has all of it."""

    @property
    def device(self) -> torch.device:
        """Where this process computes."""

    @property
    def global_rank(self) -> int:
        """The number of this process."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision to compute in."""


@dataclass(frozen=True)
class OneProcess:
    """The only process, on one device."""

    device: torch.device
    low: torch.dtype | None = None
    global_rank: ClassVar[int] = 0
    world_size: ClassVar[int] = 1

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision to compute in."""
        if self.low is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.low)


def open_place(accelerator: str, devices: int | str, precision: str) -> Place:
    """The device asked for; with several, or under torchrun, the processes are launched, too.

    Args:
        accelerator: "auto" (the accelerator if there is one), "cpu", "gpu" (any accelerator), or
            torch's name of one: "cuda", "mps", ...
        devices: how many, or "auto", all accelerators; torchrun's count holds under torchrun.
        precision: "32-true" or "bf16-mixed".
    """
    if precision not in PRECISIONS:
        raise BadInput(f"precision must be {' or '.join(PRECISIONS)}, got {precision!r}")
    if not (devices == "auto" or (isinstance(devices, int) and devices >= 1)):
        raise BadInput(f"devices must be a number from 1 on or 'auto', got {devices!r}")
    _check_environment()
    device = _device(accelerator)
    if PRECISIONS[precision] is not None and device.type == "cpu":
        _check_bf16()
    if devices == "auto":
        devices = 1 if device.type == "cpu" else torch.accelerator.device_count()
    if torch.distributed.is_torchelastic_launched():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return _launch(device, local, int(os.environ["WORLD_SIZE"]) // local, precision)
    if devices == 1:
        return OneProcess(device, PRECISIONS[precision])
    _check_fabric()
    launch_others(int(devices))
    return _launch(device, int(devices), 1, precision)


def _check_environment() -> None:
    """What torchrun and schedulers set must be numbers that belong together."""
    found = {}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        text = os.environ.get(name)
        if text is None or text == "":
            continue
        if not text.isdecimal():
            raise BadInput(f"${name} must be a whole number, got {text!r}")
        found[name] = int(text)
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if rank in found and size in found and not found[rank] < found[size]:
            raise BadInput(f"${rank} must be below ${size}, {found[size]}, got {found[rank]}")


def _device(accelerator: str) -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = torch.device("cpu") if found is None else found
    if accelerator == "cpu":
        return torch.device("cpu")
    if accelerator == "auto" or (accelerator == "gpu" and found is not None):
        return here
    if found is None or accelerator != found.type:
        kinds = ["auto", "cpu", *([] if found is None else ["gpu", found.type])]
        raise BadInput(
            f"no such device: this machine has {', '.join(kinds[:-1])} and {kinds[-1]}, "
            f"got {accelerator!r}"
        )
    return here


def _launch(device: torch.device, devices: int, nodes: int, precision: Any) -> Place:
    _check_fabric()
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    wait = timedelta(seconds=timeout())
    try:
        fabric = Fabric(
            accelerator=device.type,
            strategy=DDPStrategy(timeout=wait),
            devices=devices,
            num_nodes=nodes,
            precision=precision,
            plugins=[TorchElasticEnvironment()],
        )
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"{devices} devices cannot be had: {error}") from error
    try:
        _meet_first(device, wait)
        fabric.launch()
    except RuntimeError as error:
        raise BadInput(
            f"the processes of a run must find each other within {max(_START, timeout()):g} "
            f"seconds, got: {error}"
        ) from error
    return fabric


def _meet_first(device: torch.device, wait: timedelta) -> None:
    """Connects the processes. A busy machine starts them minutes apart, however short the time is
    that they wait for each other afterwards."""
    if dist.is_initialized():
        return
    start = max(timedelta(seconds=_START), wait)
    store, rank, world = next(rendezvous("env://", timeout=start))
    store.set_timeout(wait)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=wait)
    atexit.register(_part)


def _part() -> None:
    """Leaves the group: its threads, when the interpreter ends under them, abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_fabric() -> None:
    if importlib.util.find_spec("lightning_fabric") is None:
        raise BadInput(
            "training in several processes needs lightning-fabric: pip install 'damc[distributed]'"
        )


def _check_bf16() -> None:
    # Some virtual machines claim bf16 instructions they then refuse, which kills the process.
    program = (
        "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum();"
        "torch.nn.Conv2d(8, 8, 3).bfloat16()(torch.ones(4, 8, 9, 9).bfloat16())"
    )
    if subprocess.run([sys.executable, "-c", program], capture_output=True).returncode:
        raise BadInput("this processor cannot compute in bf16: use precision 32-true")
