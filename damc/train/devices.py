"""Where training computes: devices, processes and precision, through lightning-fabric."""

from __future__ import annotations

__all__ = ["average", "open_fabric"]

import os
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput


def average(gradients: list[Tensor]) -> None:
    """Averages gradients over processes in one message."""
    flat = torch.cat([g.flatten() for g in gradients])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    parts = torch.split(flat, [g.numel() for g in gradients])
    for g, part in zip(gradients, parts, strict=True):
        g.copy_(part.view_as(g))


def open_fabric(accelerator: str, devices: int | str, precision: Any) -> Any:
    """lightning-fabric on the devices asked for, launched; torchrun's counts hold under torchrun.

    Args:
        accelerator: "auto", "cpu", "gpu", ...
        devices: how many, or "auto".
        precision: "32-true", "bf16-mixed", ...
    """
    from lightning_fabric import Fabric

    if "bf16" in str(precision):
        _check_bf16()
    nodes = 1
    if torch.distributed.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    try:
        fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=nodes, precision=precision
        )
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"no such device or precision: {error}") from error
    fabric.launch()
    return fabric


def _check_bf16() -> None:
    # Some virtual machines claim bf16 instructions they then refuse, which kills the process.
    if torch.accelerator.is_available():
        return
    program = (
        "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum();"
        "torch.nn.Conv2d(8, 8, 3).bfloat16()(torch.ones(4, 8, 9, 9).bfloat16())"
    )
    if subprocess.run([sys.executable, "-c", program], capture_output=True).returncode:
        raise BadInput("this processor cannot compute in bf16: use precision 32-true")
