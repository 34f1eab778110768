"""What the processes of one run tell each other: gradients, chains, metrics, when to stop.

A batch of N images is that of all W processes together: process r has images r, r + W, r + 2 W,
... of it. Everything here keeps that order, so that W processes compute what one would.

Every message waits at most `timeout()` seconds. A process that is lost to the others by then ends
them with one sentence, `BadInput`.
"""

from __future__ import annotations

__all__ = [
    "TIMEOUT",
    "average",
    "broadcast",
    "largest",
    "mean_of_all",
    "mean_with_gradient",
    "meet",
    "of_all_processes",
    "rank",
    "timeout",
    "world",
]

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from damc.errors import BadInput

TIMEOUT = "DAMC_PROCESS_TIMEOUT"
"""The environment variable of how many seconds the processes of a run wait for each other."""

_BUCKET = 25 * 2**20
"""Bytes of gradients in one message, those of torch's DistributedDataParallel."""


def timeout() -> float:
    """Longer than any picture or evaluation of the first process, for which the others wait."""
    text = os.environ.get(TIMEOUT) or "600"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds < math.inf:
        raise BadInput(f"${TIMEOUT} must be a number of seconds from 1 on, got {text!r}")
    return seconds


def world() -> int:
    """How many processes share the batch; 1 unless training launched several."""
    return dist.get_world_size() if _several() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if _several() else 0


def average(gradients: list[Tensor]) -> None:
    """Averages gradients over processes, in place.

    They travel in flat buckets: while one is under way the next is packed.
    """
    if not _several():
        return
    size = dist.get_world_size()
    sent = []
    for bucket in _buckets(gradients):
        flat = torch.cat([g.flatten() for g in bucket])
        sent.append((bucket, flat, _told(dist.all_reduce, flat, async_op=True)))
    for bucket, flat, work in sent:
        _told(work.wait)
        parts = torch.split(flat.div_(size), [g.numel() for g in bucket])
        torch._foreach_copy_(bucket, [p.view_as(g) for p, g in zip(parts, bucket, strict=True)])


def mean_of_all(values: Tensor) -> Tensor:
    """The mean of a tensor over processes, the same in each."""
    if not _several():
        return values
    values = values.clone()
    _told(dist.all_reduce, values)
    return values / dist.get_world_size()


def mean_with_gradient(values: Tensor) -> Tensor:
    """The mean of a tensor over processes, through which gradients flow to each of them."""
    if not _several():
        return values
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = _told(all_reduce, values)
    return total / dist.get_world_size()


def largest(value: int, device: torch.device | str = "cpu") -> int:
    """The largest of the numbers that the processes say."""
    if not _several():
        return value
    votes = torch.tensor(value, device=device)
    _told(dist.all_reduce, votes, op=dist.ReduceOp.MAX)
    return int(votes)


def of_all_processes(z: Tensor) -> Tensor:
    """Rows ``(B, ...)`` of every process, in the order of the batch, ``(W B, ...)``.

    Each process must have as many.
    """
    if not _several():
        return z
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    _told(dist.all_gather, parts, z.contiguous())
    return torch.stack(parts, 1).flatten(0, 1)


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrites tensors with those of the first process."""
    if _several():
        for tensor in tensors:
            _told(dist.broadcast, tensor, 0)


def meet() -> None:
    """Waits until every process is here."""
    if _several():
        _told(dist.barrier)


def _buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Gradients in order, in lists of one type and at most `_BUCKET` bytes (or one gradient)."""
    buckets: list[list[Tensor]] = []
    room = 0
    for g in gradients:
        room -= g.nbytes
        if not buckets or room < 0 or buckets[-1][0].dtype != g.dtype:
            buckets.append([])
            room = _BUCKET - g.nbytes
        buckets[-1].append(g)
    return buckets


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _told(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls a function of torch.distributed; a process that does not answer is one sentence."""
    try:
        return call(*arguments, **options)
    except RuntimeError as error:
        raise BadInput(
            "training in several processes must have them all, got no answer from one: it was "
            f"stopped, killed or cut off (${TIMEOUT} is {timeout():g} seconds)"
        ) from error
