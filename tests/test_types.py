"""What users write type-checks, and mistakes in it are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed: damc[test] brings it")

CODE = """
import torch
import damc
from damc.train.callbacks import EarlyStopping, Progress
from damc.train.loggers import JSONLines

learner = damc.fit(
    damc.DAMC.from_preset("digits-small"),
    "digits",
    iterations=3,
    callbacks=[EarlyStopping(patience=10), lambda progress: print(progress.metrics)],
    loggers=[JSONLines("log")],
)
images: torch.Tensor = learner.sample(4, source="energy", steps=3)
amortizer: damc.Amortizer = learner.amortizer  # fit keeps the type
same: damc.DAMC = damc.load("runs/x", learner=learner)
damc.load("mnist-small").sample(4, source="energy")
learner.history.plot("mse").savefig("curves.png")
learner.plot(8, source="amortizer")
address: str = learner.push_to_hub("owner/name")
"""
WRONG = {
    "learner.sample(4, source=3)": "arg-type",
    "learner.sample(4, sources='energy')": "call-arg",
    "learner.history.plot(3)": "arg-type",
    "damc.fit(learner, 'digits', iterations=3, callbacks=[3])": "list-item",
}


@pytest.mark.slow
def test_user_code_type_checks_and_mistakes_are_found(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(CODE)
    wrong.write_text(CODE + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    root = str(Path(__file__).parents[1])
    done = subprocess.run([*command, str(right)], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout
    found = subprocess.run([*command, str(wrong)], capture_output=True, text=True, cwd=root)
    errors = re.findall(r": error: .*\[([a-z-]+)\]$", found.stdout, re.MULTILINE)
    assert errors == list(WRONG.values()), found.stdout
