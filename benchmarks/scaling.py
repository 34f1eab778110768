"""What training costs on many devices: counted, modeled, and checked with 1, 2 and 3 processes.

    python -m benchmarks scaling          the table of 8 to 1,024 GPUs, from counts alone
    python -m benchmarks scaling-check    the same model against processes on this machine
    python -m benchmarks averaging        gradients in flat buckets against torch's own DDP

The model. One iteration of W processes on a total batch of N images takes each of them

    F(N / W) / R  +  n N / D  +  sum over messages of  2 (W - 1) / W bytes / B  +  2 ceil(log2 W) L

seconds: counted operations F at the rate R, the n random numbers of each image at the rate D (every
process draws those of the whole batch), and for every all-reduce the bytes that a ring sends and
the latency of a tree (Thakur, Rabenseifner and Gropp 2005; NCCL switches between the two). An
all-gather sends (W - 1) / W of its bytes and has half the latencies. Nothing overlaps. F is a line
in the batch, through two counted points; messages are those that the iteration really sends.
"""

from __future__ import annotations

__all__ = ["Counts", "Machine", "averaging", "check", "count", "rows", "seconds"]

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.timing import count_flops
from damc.learn import find_method
from damc.learn.learner import Learner
from damc.learn.presets import find_preset
from damc.learn.processes import average, rank, world
from damc.randomness import BatchShare, global_seed

CHECKED = "mnist-small"
TOTAL = 96  # images of the checked batch, over all processes
ITERATIONS = 8


@dataclass(frozen=True)
class Machine:
    """What the model knows of a machine.

    Attributes:
        rate: operations a second of one device, as damc's networks reach it.
        drawing: random numbers a second of one device.
        bandwidth: bytes a second into and out of one device.
        latency: seconds of one message.
    """

    rate: float
    drawing: float
    bandwidth: float
    latency: float


A100 = Machine(rate=0.3 * 19.5e12, drawing=5e10, bandwidth=25e9, latency=15e-6)
"""30 % of the 19.5 TFLOP/s in float32 of NVIDIA's data sheet of the A100, one 200 Gbit/s link of
InfiniBand for each. The 30 %, the random numbers a second and the latency are assumptions."""


@dataclass(frozen=True)
class Counts:
    """What one iteration does.

    Attributes:
        fixed: operations that do not depend on the batch.
        each: operations for one image.
        messages: bytes of every message of gradients.
        row: bytes that every image adds to what processes gather (chains and stores).
        noise: random numbers for one image; each process draws those of the whole batch.
    """

    fixed: float
    each: float
    messages: tuple[int, ...]
    row: int
    noise: float


def count(preset: str, method: str = "damc", sizes: tuple[int, int] = (2, 4)) -> Counts:
    """Counts one iteration at two batches; the rest is a straight line."""
    operations, drawn = [], []
    messages: list[int] = []
    for n in sizes:
        learner, x = _learner(preset, method, n)
        messages.clear()
        learner.average_gradients(lambda g: messages.append(sum(each.nbytes for each in g)))
        step = partial(learner.step, x, torch.arange(n), torch.Generator().manual_seed(0))
        with _Drawn() as counter:
            operations.append(count_flops(step))
        drawn.append(counter.total)
    apart = sizes[1] - sizes[0]
    each, noise = (operations[1] - operations[0]) / apart, (drawn[1] - drawn[0]) / apart
    row = 4 * learner.model.latent_dim if learner.settings.store else 0
    return Counts(operations[0] - sizes[0] * each, each, tuple(messages), row, noise)


def seconds(counts: Counts, machine: Machine, total: int, processes: int) -> tuple[float, ...]:
    """Seconds of computing, drawing and communicating in one iteration of each process."""
    w = processes
    computing = (counts.fixed + counts.each * total / w) / machine.rate
    drawing = counts.noise * total / machine.drawing
    if w == 1:
        return computing, drawing, 0.0
    hops = math.ceil(math.log2(w)) * machine.latency
    reduced = sum(2 * (w - 1) / w * n / machine.bandwidth + 2 * hops for n in counts.messages)
    gathered = (w - 1) / w * counts.row * total / machine.bandwidth + hops if counts.row else 0.0
    vote = 2 * hops  # whether anybody wants to stop
    return computing, drawing, reduced + gathered + vote


def rows(preset: str = "cifar10", machine: Machine = A100) -> list[dict[str, Any]]:
    """8 to 1,024 GPUs: the preset's batch on all of them together, and on each of them."""
    counts, batch = count(preset), find_preset(preset).batch
    alone = sum(seconds(counts, machine, batch, 1))
    table = []
    for w in (1, 8, 16, 32, 64, 128, 256, 512, 1024):
        row: dict[str, Any] = {"GPUs": w}
        for total in (batch, batch * w):
            parts = seconds(counts, machine, total, w)
            efficiency = alone * total / batch / (sum(parts) * w)
            row |= {
                f"batch {batch} {'on each' if 'share' in row else 'in all'}, ms": " + ".join(
                    f"{1e3 * part:.1f}" for part in parts
                ),
                "efficiency" if "share" in row else "share": f"{efficiency:.0%}",
            }
        if batch < w:  # not an image for each
            row[f"batch {batch} in all, ms"] = row["share"] = "-"
        table.append(row)
    print(f"{preset}, ms of computing + drawing + communicating: {asdict(counts)}")
    print(f"on {asdict(machine)}")
    return table


def check() -> list[dict[str, Any]]:
    """Predicts 2 and 3 processes here from one, and measures them, in CPU seconds of a process.

    CPU time instead of wall-clock: 3 processes on 2 cores wait for each other. The rate and the
    time that an iteration takes whatever its batch come from one process at two batches; bandwidth
    and latency from all-reduces of two sizes.
    """
    small, large = TOTAL // 4, TOTAL
    one = {n: _run(1, n)["iteration"] for n in (small, large)}
    slope = (one[large] - one[small]) / (large - small)
    counts = count(CHECKED)
    overhead = one[large] - slope * large
    table = [_row(1, one[large], one[large], counts, 0.0, 0.0)]
    for w in (2, 3):
        found = _run(w, TOTAL)
        per_byte, each = found["per_byte"], found["each"]
        sent = sum(n * per_byte + each for n in counts.messages) + 2 * each
        predicted = overhead + slope * TOTAL / w + sent
        table.append(_row(w, predicted, found["iteration"], counts, sent, found["averaging"]))
    return table


def averaging(processes: int = 2) -> list[dict[str, Any]]:
    """One update of the decoder of cifar10: our flat buckets, and torch's DistributedDataParallel.

    DDP sends a bucket while backward still computes; ours begins when the gradients are there.
    """
    found = _run(processes, 0)
    return [
        {"gradients averaged by": name, "CPU s": round(found[name], 4), "s": round(found[wall], 4)}
        for name, wall in (("flat buckets", "flat buckets s"), ("torch DDP", "torch DDP s"))
    ]


def _row(
    w: int, predicted: float, measured: float, counts: Counts, sent: float, averaged: float
) -> dict[str, Any]:
    operations = counts.fixed + counts.each * TOTAL / w
    return {
        "processes": w,
        "GFLOP of each": round(operations / 1e9, 2),
        "MB averaged": round(sum(counts.messages) / 1e6 if w > 1 else 0.0, 1),
        "CPU s predicted": round(predicted, 3),
        "CPU s measured": round(measured, 3),
        "error": f"{predicted / measured - 1:+.0%}",
        "of it averaging, predicted": round(sent, 3),
        "measured": round(averaged, 3),
    }


class _Drawn(TorchDispatchMode):
    """Counts the random numbers that are drawn."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("normal_", "uniform_"):
            self.total += args[0].numel()
        return func(*args, **(kwargs or {}))


def _learner(preset: str, method: str, n: int) -> tuple[Learner, Tensor]:
    found = find_preset(preset)
    with global_seed(0):
        learner = find_method(method).from_preset(found)
    x = torch.rand(n, *found.networks.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return learner, x


def _run(processes: int, total: int) -> dict[str, float]:
    """What `_worker` finds in so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes), "-m", "benchmarks.scaling"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*command, str(out), str(total)], check=True, env=environment)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def _worker(out: str, total: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = _iterations(int(total)) if int(total) else _updates()
    if rank() == 0:
        Path(out).write_text(json.dumps(found))


def _iterations(total: int) -> dict[str, float]:
    """CPU seconds of an iteration and of its messages, and of messages by their size."""
    learner, x = _learner(CHECKED, "damc", total // world())
    spent: list[float] = []

    def timed(gradients: list[Tensor]) -> None:
        start = time.process_time()
        average(gradients)
        spent.append(time.process_time() - start)

    learner.average_gradients(timed)
    generator = BatchShare("cpu", rank(), world())
    took, sending = [], []
    for k in range(ITERATIONS + 2):
        generator.seed_batch(k, own=rank())
        spent.clear()
        start = time.process_time()
        learner.step(x, torch.arange(len(x)), generator)
        took.append(time.process_time() - start)
        sending.append(sum(spent))
    sizes = 10_000, 4_000_000
    small, large = (_median(partial(average, [torch.ones(n)])) for n in sizes)
    per_byte = max(0.0, (large - small) / (4 * (sizes[1] - sizes[0])))
    return {
        "iteration": statistics.median(took[2:]),
        "averaging": statistics.median(sending[2:]),
        "per_byte": per_byte,
        "each": max(0.0, small - 4 * sizes[0] * per_byte),
    }


def _updates() -> dict[str, float]:
    """Seconds of one update's gradients, by ours and by torch's DDP, in turn."""
    from torch.nn.parallel import DistributedDataParallel

    learner, x = _learner("cifar10", "damc", 8)
    decoder = learner.model.decoder
    z = torch.randn(8, learner.model.latent_dim, generator=torch.Generator().manual_seed(1))
    weights = list(decoder.parameters())
    wrapped = DistributedDataParallel(decoder)

    def ours() -> None:
        loss = (decoder(z) - x).square().mean()
        average(list(torch.autograd.grad(loss, weights)))

    def theirs() -> None:
        (wrapped(z) - x).square().mean().backward()
        decoder.zero_grad()

    found: dict[str, list[tuple[float, float]]] = {"flat buckets": [], "torch DDP": []}
    for k in range(12):
        for name, update in (("flat buckets", ours), ("torch DDP", theirs)):
            start = time.process_time(), time.perf_counter()
            update()
            end = time.process_time(), time.perf_counter()
            if k > 1:
                found[name].append((end[0] - start[0], end[1] - start[1]))
    medians: dict[str, float] = {}
    for name, pairs in found.items():
        used, passed = zip(*pairs, strict=True)
        medians |= {name: statistics.median(used), f"{name} s": statistics.median(passed)}
    return medians


def _median(call: Any, rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


if __name__ == "__main__":
    _worker(*sys.argv[1:])
