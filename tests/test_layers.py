"""Imports point down: import-linter holds the layers of pyproject.toml, and notices a breach."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("importlinter", reason="import-linter is not installed: damc[test] brings it")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package with its contracts."""
    shutil.copytree(ROOT / "damc", tmp_path / "damc", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contributors_read_the_layers_of_the_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["contracts"][0]["layers"]]
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Layers")[1]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    assert [set(line.split()) for line in block[1].splitlines()] == layers


def test_the_layers_hold(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "planted", "seen"),
    [
        ("kernels/base.py", "from damc.learn import Learner\n", "damc.kernels.base -> damc.learn"),
        # Hidden inside a function, and from a module that the layer above uses.
        (
            "errors.py",
            "\n\ndef hidden() -> None:\n    import damc.train.run\n",
            "damc.errors -> damc.train.run",
        ),
        ("data/images.py", "from damc.learn import Learner\n", "damc.data.images -> damc.learn"),
        ("kernels/base.py", "import damc.disk.tensors\n", "damc.kernels.base -> damc.disk.tensors"),
        # By way of the package itself, which knows everything.
        ("density.py", "import damc\n", "damc.density -> damc"),
    ],
)
def test_an_upward_import_is_noticed(tree: Path, module: str, planted: str, seen: str) -> None:
    path = tree / "damc" / module
    path.write_text(path.read_text() + planted)
    done = lint(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert seen in done.stdout


def test_a_new_package_needs_a_place(tree: Path) -> None:
    (tree / "damc" / "extra.py").write_text("")
    done = lint(tree)
    assert done.returncode == 1
    assert "extra" in done.stdout
