"""Run the notebooks of this folder: `python docs/tutorials/run.py` fills in their outputs.

A notebook is JSON; its cells run here one after the other in one namespace, as Jupyter runs them,
without Jupyter. What a cell prints, and the value of its last expression, become its outputs;
figures are stored in the notebook. The tests run every notebook the same way, and `make docs` runs
them into build/notebooks (`--out`), from where the site takes them.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")
HERE = Path(__file__).parent


def run_notebook(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a fresh run, in a folder that is removed afterwards."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for k, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"] = number
                place = f"{path.name}, cell {k + 1}"
                cell["outputs"] = run_cell("".join(cell["source"]), namespace, place, number)
    return notebook


def run_cell(source: str, namespace: dict[str, Any], place: str, number: int) -> list[Any]:
    """The outputs of one cell; lines that begin with % are for Jupyter alone."""
    lines = ["" if line.startswith("%") else line for line in source.split("\n")]
    tree = ast.parse("\n".join(lines), place)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, place, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), namespace)
    outputs: list[Any] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": shown(value),
            }
        )
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """A value as a notebook stores it: its text, and its picture if it is a figure."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=80)
        data["image/png"] = base64.b64encode(buffer.getvalue()).decode()
    return data


def main() -> None:
    """Runs all notebooks, or those named, and writes them with their outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of this folder by default")
    parser.add_argument("--out", type=Path, help="folder for the results; in place by default")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for path in options.notebooks or sorted(HERE.glob("*.ipynb")):
        start = time.process_time()
        done = json.dumps(run_notebook(path), indent=1, ensure_ascii=False)
        target = path if options.out is None else options.out / path.name
        target.write_text(done + "\n", encoding="utf-8")
        print(f"{target}  {time.process_time() - start:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
