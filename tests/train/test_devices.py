"""Where training computes: one process without lightning-fabric, several with it, bad words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from damc import BadInput
from damc.disk.tensors import load_weights
from damc.train import devices
from damc.train.devices import OneProcess, open_place
from damc.train.run import Run

CPU = torch.device("cpu")


@pytest.fixture
def no_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)


@pytest.mark.usefixtures("no_fabric")
def test_one_process_needs_no_fabric() -> None:
    place = open_place("cpu", 1, "32-true")
    assert (place.device, place.global_rank, place.world_size) == (CPU, 0, 1)


@pytest.mark.usefixtures("no_fabric")
def test_several_processes_without_fabric_are_one_sentence() -> None:
    with pytest.raises(
        BadInput, match=r"needs lightning-fabric: pip install 'damc\[distributed\]'$"
    ):
        open_place("cpu", 2, "32-true")


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", 32), ("bf16-mixed", 16)])
def test_the_precision_is_that_of_products(precision: str, dtype: int) -> None:
    with OneProcess(CPU, devices.PRECISIONS[precision]).autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert torch.finfo(product.dtype).bits == dtype


def accelerator(monkeypatch: pytest.MonkeyPatch, found: str | None, count: int = 1) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: found is not None)
    device = None if found is None else torch.device(found)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize("word", ["auto", "gpu", "cuda", "cpu"])
def test_an_accelerator_goes_by_three_names(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    accelerator(monkeypatch, "cuda")
    assert open_place(word, "auto", "32-true").device.type == ("cpu" if word == "cpu" else "cuda")


def test_all_accelerators_are_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator(monkeypatch, "cuda", 3)
    asked: list[Any] = []
    started: list[int] = []
    monkeypatch.setattr(devices, "_launch", lambda *words: asked.append(words))
    monkeypatch.setattr(devices, "launch_others", started.append)
    open_place("auto", "auto", "32-true")
    open_place("cpu", "auto", "32-true")  # a processor is one device
    assert asked == [(torch.device("cuda"), 3, 1, "32-true")] and started == [3]


def test_an_interactive_session_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(BadInput, match="devices must be 1 in an interactive session"):
        open_place("cpu", 2, "32-true")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gpu", 1, "32-true"), "no such device: this machine has auto and cpu, got 'gpu'"),
        (("mps", 1, "32-true"), "no such device: this machine has auto and cpu, got 'mps'"),
        (("cpu", 0, "32-true"), "devices must be a number from 1 on or 'auto', got 0"),
        (("cpu", "two", "32-true"), "devices must be a number from 1 on or 'auto', got 'two'"),
        (("cpu", 1, "16"), "precision must be 32-true or bf16-mixed, got '16'"),
    ],
)
def test_bad_words_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, words: tuple[Any, Any, Any], sentence: str
) -> None:
    accelerator(monkeypatch, None)
    with pytest.raises(BadInput) as error:
        open_place(*words)
    assert str(error.value) == sentence


def test_a_processor_that_refuses_bf16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator(monkeypatch, None)
    monkeypatch.setattr(sys, "executable", "false")  # as if the trial had been killed
    with pytest.raises(BadInput, match="this processor cannot compute in bf16"):
        open_place("cpu", 1, "bf16-mixed")


SCRIPT = """
import atexit, os, torch, damc
from damc.disk import write_atomically
from damc.disk.tensors import to_safetensors

atexit.register(lambda: print("left", not torch.distributed.is_initialized()))
torch.manual_seed(os.getpid())  # weights that the processes have to agree on first
learner = damc.DAMC.from_preset("digits-small", posterior_steps=2, prior_steps=2)
damc.fit(
    learner, "digits", iterations=3, batch=16, run="run", devices=2, accelerator="cpu",
    progress=False,
)
rank = torch.distributed.get_rank()
write_atomically(f"{rank}.safetensors", to_safetensors(learner.state_dict()))
"""


@pytest.mark.parametrize(
    "launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]]
)
def test_two_processes_train_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[str]
) -> None:
    """One folder, and weights that both processes agree on, by fabric's own launch or torchrun."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left True") == 2  # a group that is not left may abort its process
    one, other = (load_weights(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    checkpoint = Run.open(tmp_path / "run").load()
    assert checkpoint.iteration == 3
    assert all(torch.equal(one[name], checkpoint.weights[name]) for name in one)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "abc"}, r"\$RANK must be a whole number, got 'abc'"),
        ({"WORLD_SIZE": "x"}, r"\$WORLD_SIZE must be a whole number, got 'x'"),
        ({"LOCAL_RANK": "-1"}, r"\$LOCAL_RANK must be a whole number, got '-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"\$RANK must be below \$WORLD_SIZE, 2, got 2"),
    ],
)
def test_an_environment_that_makes_no_sense_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=words):
        open_place("cpu", 1, "32-true")
