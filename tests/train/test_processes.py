"""Several processes learn what one learns, whoever has which image; and what they tell each other.

The processes are real ones, of torchrun or `--devices`, on loopback.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from damc.disk.tensors import load_weights
from damc.learn import LEARNERS
from damc.learn.processes import _buckets, average
from damc.randomness import (
    BatchShare,
    batch_rows,
    normal,
    normal_like,
    own_rows,
    uniform_like,
    whole_batch,
)

SCRIPT = Path(__file__).with_name("several.py")
METHODS = [name for name, kind in LEARNERS.items() if kind.takes_presets]
ITERATIONS = 4  # both stages of methods with two


def one_process(method: str, dtype: torch.dtype) -> dict[str, Tensor]:
    spec = importlib.util.spec_from_file_location("several", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Tensor] = module.train(method, ITERATIONS, dtype)
    return found


def torchrun(count: int, *words: str | Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--nproc-per-node", str(count), *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def compare(folder: Path, methods: list[str]) -> None:
    """Gradients to 1e-6 of their size in float32; in float64 every tensor to 1e-8 of its size.

    Adam, whose first steps are as long for the tiniest gradients, and standardized codes make
    rounding errors a million times larger; an error would be far larger still.
    """
    for method in methods:
        one, several = one_process(method, torch.float64), load_weights(folder / f"{method}-64")
        assert one.keys() == several.keys()
        for name, tensor in one.items():
            apart = float((several[name] - tensor).double().norm())
            assert apart <= 1e-8 * (1 + float(tensor.double().norm())), (method, name, apart)
        one, several = one_process(method, torch.float32), load_weights(folder / f"{method}-32")
        first, found = one["gradient 0"], several["gradient 0"]
        assert float((first - found).norm() / first.norm()) < 1e-6, method


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """Same total batch, same draws: every way that randomness, chains and stores are shared."""
    methods = ["damc", "damc-g", "lebm-persistent", "abp", "meg"]
    methods += ["rae", "bigan-sigma", "nalr", "damc-vae"]
    torchrun(2, SCRIPT, tmp_path, str(ITERATIONS), *methods)
    compare(tmp_path, methods)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_every_method_has_the_gradients_of_one_process(tmp_path: Path, count: int) -> None:
    torchrun(count, SCRIPT, tmp_path, str(ITERATIONS), *METHODS)
    compare(tmp_path, METHODS)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_draw_what_one_draws(world: int) -> None:
    """For rows in any dimension, and for blocks of rows such as data beside noise."""
    alone = torch.Generator()
    shares = [BatchShare("cpu", r, world) for r in range(world)]
    n = 2

    def seed() -> None:
        alone.manual_seed(1)
        for r, share in enumerate(shares):
            share.seed_batch(1, own=r)

    seed()
    z, u = normal(n * world, 5, generator=alone), uniform_like(torch.empty(n * world), alone)
    noise = normal_like(torch.empty(n * world, 3, 4, 4), alone, dim=0)
    blocks = torch.cat([z, normal(n * world, 5, generator=alone)])
    several = normal(3, n * world, 5, generator=alone)
    seed()
    for r, share in enumerate(shares):
        assert batch_rows(n, share) == n * world
        torch.testing.assert_close(normal(n, 5, generator=share), z[r::world], rtol=0, atol=0)
        assert torch.equal(uniform_like(torch.empty(n), share), u[r::world])
        assert torch.equal(normal_like(torch.empty(n, 3, 4, 4), share, dim=0), noise[r::world])
        assert torch.equal(
            torch.cat([z[r::world], normal(n, 5, generator=share)]), own_rows(blocks, share)
        )
        assert torch.equal(normal(3, n, 5, generator=share), several[:, r::world])
        assert whole_batch(share) is share.batch


def test_what_else_draws_differs_by_process() -> None:
    """A learner of somebody else's that knows nothing of shares must not repeat its noise."""
    shares = [BatchShare("cpu", r, 2).seed_batch(1, own=r) for r in range(2)]
    one, other = (torch.empty(4).normal_(generator=share) for share in shares)
    assert not torch.equal(one, other)


def test_gradients_travel_in_buckets_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("damc.learn.processes._BUCKET", 40)
    sizes = [4, 4, 4, 20, 1, 1]
    gradients = [torch.ones(n) for n in sizes] + [torch.ones(2, dtype=torch.float64)]
    found = _buckets(gradients)
    assert [[len(g) for g in bucket] for bucket in found] == [[4, 4], [4], [20], [1, 1], [2]]
    average(gradients)  # of one process: nothing to do
    assert all(bool((g == 1).all()) for g in gradients)
