"""`import damc` stays light: torch, safetensors, and nothing else of any weight."""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import subprocess
import sys
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

import damc

ALLOWED = {"damc", "filelock", "numpy", "safetensors", "tqdm"}

# Reports which third-party packages the statement loads beyond those of torch, and its time.
PROBE = """
import json, sys, time

def packages():
    return {name.partition(".")[0] for name in list(sys.modules)} - sys.stdlib_module_names

start = time.perf_counter()
import torch
middle = time.perf_counter()
before = packages()
STATEMENT
end = time.perf_counter()
print(json.dumps([sorted(packages() - before), (end - start) / (middle - start)]))
"""

EVERY_MODULE = """
import importlib, pkgutil, damc
for module in pkgutil.walk_packages(damc.__path__, "damc."):
    # scikit-learn's base class is what makes the detector one of its estimators.
    if not module.name.endswith(("__main__", "damc.anomaly.detector")):
        importlib.import_module(module.name)
"""


class Report(NamedTuple):
    """Packages that a statement loads, and its time with torch over that of torch alone."""

    packages: set[str]
    ratio: float


def probe(statement: str) -> Report:
    command = [sys.executable, "-c", PROBE.replace("STATEMENT", statement)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    packages, ratio = json.loads(done.stdout)
    return Report(set(packages), ratio)


@pytest.fixture(scope="module")
def plain() -> list[Report]:
    return [probe("import damc") for _ in range(3)]


@pytest.fixture(scope="module")
def heavy() -> Report:
    """The heaviest dependency, which only training in several processes imports."""
    return probe("import damc, lightning_fabric")


TRAINING = """
import damc
damc.fit(damc.DAMC.from_preset("digits-small"), "digits", iterations=1, progress=False)
"""


def test_import_loads_only_the_allowed_packages(plain: list[Report]) -> None:
    assert {"damc"} <= plain[0].packages <= ALLOWED


def test_every_module_is_as_light() -> None:
    """Whatever is heavy is imported by the function that uses it, in every file of damc."""
    assert {"damc"} <= probe(EVERY_MODULE).packages <= ALLOWED


def test_import_costs_little_beyond_torch(plain: list[Report]) -> None:
    assert statistics.median(report.ratio for report in plain) < 1.3, plain


def test_the_probe_sees_a_heavy_import(heavy: Report) -> None:
    assert "lightning_fabric" in heavy.packages - ALLOWED
    assert heavy.ratio > 1.3


def test_training_in_one_process_takes_nothing_more() -> None:
    """lightning-fabric brings aiohttp, torchvision another torch; none is installed by default."""
    packages = probe(TRAINING).packages
    assert "damc" in packages
    assert not packages & {"lightning_fabric", "torchvision", "aiohttp", "pandas", "mlxtend"}


def test_a_plain_install_asks_for_nothing_that_harms_the_users() -> None:
    """torchvision brings another torch, which was how azula replaced the user's."""
    asked = [Requirement(line) for line in importlib.metadata.requires("damc") or []]
    plain = {canonical(one.name) for one in asked if one.marker is None}
    assert {"torch", "safetensors"} <= plain
    harm = {"torchvision", "azula", "mlxtend", "lightning-fabric", "pandas", "aiohttp", "gdown"}
    assert not plain & harm


def test_version_is_that_of_the_installed_package() -> None:
    assert damc.__version__ == importlib.metadata.version("damc")
