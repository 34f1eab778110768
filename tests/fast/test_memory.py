"""Many rows take the memory of a few, beside the result."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from damc import Amortizer
from damc.amortize import amortizer
from damc.fast import memory
from damc.learn import find_method


def test_parts_are_the_rows_of_one_draw() -> None:
    drawn: list[int] = []

    def draw(k: int) -> torch.Tensor:
        drawn.append(k)
        return torch.full((k, 2), float(len(drawn)))

    result = memory.draw_by_parts(draw, 7, rows=3)
    assert drawn == [3, 3, 1]
    assert result[:, 0].tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert memory.draw_by_parts(draw, 3, rows=3).shape == (3, 2)


def test_mapped_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BUDGET", 256 * 4 * 100)
    sizes: list[int] = []

    def images(z: torch.Tensor) -> torch.Tensor:
        sizes.append(len(z))
        return z[:, :, None, None].expand(-1, -1, 2, 2) * 2

    z = torch.randn(700, 3)
    assert memory.map_by_parts(images, z).equal(z[:, :, None, None].expand(-1, -1, 2, 2) * 2)
    assert sizes == [256, 100, 100, 100, 100, 44]


def test_samples_in_parts_are_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amortizer, "ROWS", 10)
    monkeypatch.setattr(memory.draw_by_parts, "__defaults__", (10,))
    q = Amortizer(2, capacity=0.1)
    parts = q.sample(25, steps=2, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    by_hand = torch.cat([q.sample(k, steps=2, generator=generator) for k in (10, 10, 5)])
    assert parts.equal(by_hand)
    learner = find_method("vae").from_preset("digits-small").eval()
    assert learner.sample(25, generator=generator).shape == (25, 1, 8, 8)


PEAK = """
import resource, sys, numpy, torch
torch.set_num_threads(1)
import damc
from damc.learn import find_method
n, what = int(sys.argv[1]), sys.argv[2]
held = 0
if what == "amortizer":
    made = damc.Amortizer(2, capacity=0.25).sample(n, steps=2)
elif what == "learner":
    made = find_method("vae").from_preset("digits-small").eval().sample(n)
elif what == "detector":
    x = numpy.random.default_rng(0).normal(size=(n, 10))
    held = x.nbytes
    made = torch.from_numpy(damc.AnomalyDetector().fit(x[:1000]).decision_function(x))
else:
    made = damc.sample(lambda z: -z.square().sum(1) / 2, 2, n=n).samples
assert len(made) == n
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(peak - (held + made.numel() * made.element_size()) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "few", "many"),
    [
        ("amortizer", 50_000, 1_000_000),
        ("learner", 50_000, 1_000_000),
        ("detector", 10_000, 200_000),
        ("sample", 10_000, 100_000),
    ],
)
def test_peak_memory_is_flat(what: str, few: int, many: int) -> None:
    """MiB beside the result, and the rows given, of a great many and of fewer."""
    peaks = [
        float(subprocess.check_output([sys.executable, "-c", PEAK, str(n), what], text=True))
        for n in (few, many)
    ]
    print(what, peaks)
    assert peaks[1] < 1.1 * peaks[0]
