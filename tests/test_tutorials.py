"""The notebooks run from the first cell to the last, and the stored ones show their figures."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
FIGURES = {"anomalies": 3, "compare-methods": 4, "density": 2, "own-images": 4}
LONG = {"own-images", "compare-methods"}  # half a minute each


def opened(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return opened(FOLDER / "run.py")


def count_figures(notebook: dict) -> int:  # type: ignore[type-arg]
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_every_notebook_is_listed_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(FIGURES)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in FIGURES]
)
def test_a_notebook_runs(name: str, runner: ModuleType) -> None:
    assert count_figures(runner.run_notebook(FOLDER / f"{name}.ipynb")) == FIGURES[name]


@pytest.mark.parametrize("name", FIGURES)
def test_the_stored_outputs_are_those_of_a_whole_run(name: str) -> None:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert count_figures(notebook) == FIGURES[name]
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 200_000


def test_a_cell_that_fails_names_its_place(runner: ModuleType, tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["x = 1\n", "x + 1"]}]
    cells.append({"cell_type": "code", "source": ["%matplotlib inline\n", "print(x)\n", "x / 0"]})
    path = tmp_path / "bad.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(ZeroDivisionError) as caught:
        runner.run_notebook(path)
    frames = [str(entry.path) for entry in caught.traceback]
    assert "bad.ipynb, cell 2" in frames
    cells.pop()
    path.write_text(json.dumps({"cells": cells}))
    (output,) = runner.run_notebook(path)["cells"][0]["outputs"]
    assert output["data"]["text/plain"] == ["2"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_becomes_a_page_with_its_figures_inline(name: str) -> None:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    page, figures = opened(FOLDER.parent / "hooks.py").notebook_page(notebook, name)
    assert page.startswith("# ") and f"../tutorials/{name}.ipynb" in page
    assert len(figures) == FIGURES[name]
    assert all(f"]({file})" in page for file in figures)
    assert all(picture.startswith(b"\x89PNG") for picture in figures.values())
    code = sum(cell["cell_type"] == "code" for cell in notebook["cells"])
    assert page.count("```python\n") == code and "%matplotlib" not in page
