"""What a preset costs on this machine: parameters, seconds of a draw and of an epoch.

The paper gives, on one GPU at batch 64, 0.3 s for prior samples by the amortizer and 0.2 s by 100
steps of Langevin; 1.0 s and 8.0 s for posterior samples; 15.2 minutes for an epoch.
"""

from __future__ import annotations

__all__ = ["Cost", "Timing", "cost", "machine"]

import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from damc.errors import BadInput
from damc.kernels.langevin import Langevin
from damc.learn.damc import DAMC
from damc.learn.presets import Preset
from damc.randomness import global_seed
from damc.tasks.presets import network_sizes

_TRAINING_IMAGES = {
    # As the paper's appendix counts them, and as the embedded sets are divided.
    "mnist": 60_000,
    "mnist-5k": 4_000,
    "svhn": 73_257,
    "cifar10": 50_000,
    "celeba64": 40_000,
    "celebahq256": 29_500,
    "digits": 1_438,
}


@dataclass(frozen=True)
class Timing:
    """Seconds of one operation, in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    def ratio(self, other: Timing) -> float:
        """The ratio of these seconds to the other's, the median over the rounds."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return statistics.median(a / b for a, b in pairs)


@dataclass(frozen=True)
class Cost:
    """What `cost` found.

    Attributes:
        parameters: of each network, by name.
        timings: by name; see `cost`.
        batch: latent points drawn together.
        train_batch: images of a training iteration.
        images: training images of an epoch, where they are known.
        seconds: how long the measurement took.
    """

    parameters: dict[str, int]
    timings: dict[str, Timing]
    batch: int
    train_batch: int
    images: int | None
    seconds: float

    @property
    def rounds(self) -> int:
        """How many rounds were counted."""
        return len(next(iter(self.timings.values())).seconds)

    @property
    def results(self) -> dict[str, Any]:
        """Everything for ``results.json``, with the machine."""
        return {
            "batch": self.batch,
            "train_batch": self.train_batch,
            "rounds": self.rounds,
            "machine": machine(),
            "table": self.table,
            "seconds_of_each_round": {name: t.seconds for name, t in self.timings.items()},
            "seconds": self.seconds,
        }

    @property
    def epoch(self) -> float | None:
        """Seconds of an epoch: as many iterations as there are whole batches in the images."""
        if self.images is None:
            return None
        iterations = max(1, self.images // self.train_batch)
        return iterations * self.timings["training iteration"].median

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each network and each timing.

        Ratios are those of parameters to the decoder's, and of Langevin's seconds to the
        amortizer's.
        """
        rows: list[dict[str, Any]] = [
            {"of": name, "parameters": n, "ratio": n / self.parameters["decoder"]}
            for name, n in self.parameters.items()
        ]
        for name, timing in self.timings.items():
            row = {
                "of": name,
                "seconds": timing.median,
                "least": min(timing.seconds),
                "most": max(timing.seconds),
            }
            kind, _, way = name.partition(", ")
            if way.startswith("Langevin"):
                base = next(t for n, t in self.timings.items() if n.startswith(f"{kind}, amort"))
                row["ratio"] = timing.ratio(base)
            rows.append(row)
        if self.epoch is not None:
            rows.append({"of": f"epoch of {self.images:,} images", "seconds": self.epoch})
        return rows


def cost(
    preset: Preset,
    *,
    batch: int = 64,
    train_batch: int | None = None,
    images: int | None = None,
    rounds: int = 7,
    budget: float = 60.0,
    seed: int = 0,
    device: torch.device | None = None,
    progress: bool = False,
) -> Cost:
    """Times a preset's networks, with fresh weights, on images of their own.

    Every round times every operation once, so that a slow moment of the machine affects all of
    them. The first round is a warm-up that does not count, unless it takes longer than the budget;
    then it is the only one. "amortizer" is a draw of q(z), or one of q(z | x) followed by the
    posterior moves of a reconstruction; "Langevin" starts at N(0, I). Decoding is not counted.

    Args:
        preset: what to time.
        batch: latent points drawn together.
        train_batch: images of a training iteration; the preset's number by default.
        images: training images of an epoch; those of the preset's data by default.
        rounds: how often every operation is timed.
        budget: seconds after which no further round begins.
        seed: of the weights and of all draws.
        device: where to compute.
        progress: show a progress bar.
    """
    train_batch = preset.batch if train_batch is None else train_batch
    numbers = {"batch": batch, "train-batch": train_batch, "rounds": rounds, "images": images}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
    if not 0 <= budget < math.inf:
        raise BadInput(f"budget must be 0 seconds or more, got {budget}")
    start = time.monotonic()
    with global_seed(seed):
        learner = DAMC.from_preset(preset).to(device)
    timings = _rounds(_operations(learner, batch, train_batch, seed), rounds, budget, progress)
    if images is None:
        images = _TRAINING_IMAGES.get(preset.data)
    seconds = round(time.monotonic() - start, 2)
    parameters = {name: n for name, n in network_sizes(preset).items() if n is not None}
    return Cost(parameters, timings, batch, train_batch, images, seconds)


def machine() -> dict[str, Any]:
    """The machine that numbers were measured on."""
    accelerator = torch.accelerator.current_accelerator() if _accelerated() else None
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "accelerator": None if accelerator is None else str(accelerator),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _operations(
    learner: DAMC, batch: int, train_batch: int, seed: int
) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    s, model = learner.settings, learner.model
    parameter = next(learner.parameters())
    generator = torch.Generator(parameter.device).manual_seed(seed)
    steps = s.prior_sample_steps
    # Images of the decoder's own: the time does not depend on what they show.
    x = learner.sample(batch, source="gaussian", generator=generator)
    train = learner.sample(train_batch, source="gaussian", generator=generator)
    index = torch.arange(train_batch)

    def posterior_chain() -> object:
        z = learner.sample_latent(batch, "gaussian", None, generator)
        return Langevin(s.posterior_step_size).run(z, model.posterior(x), generator, steps=steps)

    denoising = learner.amortizer.steps
    operations: dict[str, Callable[[], object]] = {
        f"prior, amortizer of {denoising} steps": lambda: learner.sample_latent(
            batch, "amortizer", None, generator
        )
    }
    if model.prior.energy is not None:
        operations[f"prior, Langevin of {steps} steps"] = lambda: learner.sample_latent(
            batch, "energy", steps, generator
        )
    name = f"posterior, amortizer of {denoising} + {s.test_steps} moves"
    operations[name] = lambda: learner.infer(x, generator=generator)
    operations[f"posterior, Langevin of {steps} steps"] = posterior_chain
    operations["training iteration"] = lambda: learner.step(train, index, generator)
    return operations


def _rounds(
    operations: dict[str, Callable[[], object]], rounds: int, budget: float, progress: bool
) -> dict[str, Timing]:
    from tqdm.auto import tqdm

    done: list[dict[str, float]] = []
    begun = time.perf_counter()
    with tqdm(
        total=(rounds + 1) * len(operations), disable=not progress, dynamic_ncols=True
    ) as bar:
        while len(done) < rounds + 1:
            seconds = {}
            for name, operation in operations.items():
                bar.set_description(name)
                start = time.perf_counter()
                operation()
                if _accelerated():
                    torch.accelerator.synchronize()
                seconds[name] = time.perf_counter() - start
                bar.update()
            done.append(seconds)
            if time.perf_counter() - begun > budget:
                break
    counted = done[1:] or done
    return {name: Timing(tuple(seconds[name] for seconds in counted)) for name in operations}


def _accelerated() -> bool:
    return torch.accelerator.is_available()
