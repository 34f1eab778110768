"""How cost grows: with batch, moves, latent size and threads, and memory with the moves."""

from __future__ import annotations

__all__ = ["peak_memory", "rows", "straight_line"]

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import interleaved
from damc import Amortizer, Langevin, LatentModel
from damc.nets import mlp_decoder, mlp_energy


def rows(rounds: int = 7) -> list[dict[str, Any]]:
    """A posterior chain of a small fully connected model, an amortizer's draws, and memory."""
    table = [
        _grows("posterior chain, moves", (10, 20, 40, 80), lambda n: _chain(moves=n), rounds),
        _grows("posterior chain, batch", (64, 128, 256, 512), lambda n: _chain(batch=n), rounds),
        _grows(
            "posterior chain, latent", (16, 64, 128, 256), lambda n: _chain(latent_dim=n), rounds
        ),
        _grows("sampling, steps", (10, 20, 40, 80), lambda n: _draw(steps=n), rounds),
        _grows("sampling, batch", (64, 128, 256, 512), lambda n: _draw(batch=n), rounds),
    ]
    return [*table, _threads(rounds), _memory()]


def straight_line(sizes: tuple[int, ...], seconds: list[float]) -> tuple[float, float, float]:
    """Intercept and slope of the least-squares line, and its largest relative residual."""
    n = torch.tensor(sizes, dtype=torch.float64)
    t = torch.tensor(seconds, dtype=torch.float64)
    line = torch.stack([torch.ones_like(n), n], 1)
    a, b = torch.linalg.lstsq(line, t).solution.tolist()
    return a, b, float(((a + b * n - t) / t).abs().max())


def peak_memory(moves: int) -> float:
    """Largest memory of a process that runs a posterior chain of so many moves, in MiB."""
    program = (
        "import resource, torch; torch.set_num_threads(1)\n"
        "from benchmarks.growth import _chain\n"
        f"_chain(moves={moves})()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _grows(
    what: str, sizes: tuple[int, ...], make: Callable[[int], Callable[[], Any]], rounds: int
) -> dict[str, Any]:
    times = interleaved({str(n): make(n) for n in sizes}, rounds)
    seconds = [min(times[str(n)].seconds) for n in sizes]
    a, b, residual = straight_line(sizes, seconds)
    return {
        "what": f"{what} {sizes[0]} to {sizes[-1]}",
        "measured": ", ".join(f"{s * 1e3:.1f} ms" for s in seconds),
        "fit": f"{a * 1e3:.2f} ms + {b * 1e3:.3f} ms each",
        "largest residual": f"{residual:.0%}",
    }


def _threads(rounds: int) -> dict[str, Any]:
    usual = torch.get_num_threads()
    work = _chain(moves=20, batch=256)

    def with_threads(n: int) -> Callable[[], Any]:
        def run() -> Any:
            torch.set_num_threads(n)
            return work()

        return run

    times = interleaved({"1": with_threads(1), "2": with_threads(2)}, rounds)
    torch.set_num_threads(usual)
    speedup = times["2"].ratio(times["1"])[0]
    return {
        "what": "posterior chain, 2 threads instead of 1",
        "measured": ", ".join(f"{t.median * 1e3:.1f} ms" for t in times.values()),
        "fit": f"{speedup:.2f} times faster",
        "largest residual": "",
    }


def _memory() -> dict[str, Any]:
    moves = (10, 100, 1000)
    sizes = [peak_memory(n) for n in moves]
    return {
        "what": "peak memory of a posterior chain of 10, 100, 1,000 moves",
        "measured": ", ".join(f"{size:.0f} MiB" for size in sizes),
        "fit": f"{(sizes[-1] - sizes[0]) / (moves[-1] - moves[0]) * 1024:.1f} KiB a move",
        "largest residual": "",
    }


def _chain(latent_dim: int = 64, batch: int = 128, moves: int = 20) -> Callable[[], Any]:
    torch.manual_seed(0)
    decoder = mlp_decoder(latent_dim, (1, 28, 28), (256, 256))
    model = LatentModel(decoder, mlp_energy(latent_dim), latent_dim, sigma=0.3)
    x, z = torch.rand(batch, 1, 28, 28), torch.randn(batch, latent_dim)
    kernel = Langevin(0.1, moves)
    return lambda: kernel.run(z, model.posterior(x), torch.Generator().manual_seed(0))


def _draw(batch: int = 128, steps: int = 20) -> Callable[[], Any]:
    torch.manual_seed(0)
    q = Amortizer(64, torch.nn.Identity(), embedding=256, capacity=0.5)
    x = torch.randn(batch, 256)
    return lambda: q.sample(x=x, steps=steps, generator=torch.Generator().manual_seed(0))
