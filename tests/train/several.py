"""Trains methods in one of several processes, for `test_processes.py`; torchrun starts it.

torchrun --nproc-per-node 2 several.py OUT ITERATIONS [METHOD ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from damc.data import load_images
from damc.disk import write_atomically
from damc.disk.tensors import to_safetensors
from damc.learn import find_method
from damc.learn.processes import average, rank, world
from damc.randomness import BatchShare, derive_seed, global_seed
from damc.train.feed import batches

BATCH = 12
SHORT = {"posterior_steps": 3, "prior_steps": 3}


def train(method: str, iterations: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The gradients that a method's updates had, and the weights at the end, by name."""
    kind = find_method(method)
    fields = kind.settings_type.__dataclass_fields__
    short: dict[str, float] = {k: v for k, v in SHORT.items() if k in fields}
    if method in ("damc", "damc-g"):  # the others have none
        short["warm_up"] = 0.5
        short["warm_up_variational"] = method == "damc-g"
    with global_seed(0):
        learner = kind.from_preset("digits-small", horizon=iterations, **short).to(dtype)
    found: dict[str, Tensor] = {}

    def record(gradients: list[Tensor]) -> None:
        average(gradients)
        found[f"gradient {len(found)}"] = torch.cat([g.flatten() for g in gradients])

    learner.average_gradients(record)
    here, all_of_them = rank(), world()
    share = BatchShare("cpu", here, all_of_them)
    alone = torch.Generator()
    # Two batches an epoch: kept chains go on, mostly in another process than before.
    images = load_images("digits").subset(slice(2 * BATCH))
    feed = batches(images, BATCH, seed=0, rank=here, world=all_of_them)
    for k in range(iterations):
        x, index = next(feed)
        seed = derive_seed(0, "step", k, 0)
        share.seed_batch(seed, own=here)
        alone.manual_seed(seed)
        learner.train()
        learner.step(x.to(dtype), index, alone if all_of_them == 1 else share)
    weights = {f"weights {name}": t.clone() for name, t in learner.state_dict().items()}
    chains = learner.resume_state()["chains"]
    ends = {f"chain {name}": state["z"].clone() for name, state in chains.items()}
    return {**found, **weights, **ends}


def main(out: str, iterations: str, *methods: str) -> None:
    """Every method in float64, then in float32; the first process writes both."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for dtype in (torch.float64, torch.float32):
        bits = torch.finfo(dtype).bits
        for method in methods:
            found = train(method, int(iterations), dtype)
            if rank() == 0:
                write_atomically(Path(out) / f"{method}-{bits}", to_safetensors(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
