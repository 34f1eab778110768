"""A process of a run is killed, stopped or slow: the others end in one sentence."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from damc.disk.tensors import load_weights
from damc.train.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes of /proc"),
]

WORDS = ["train", "digits-small", "--method", "lebm-persistent", "--batch", "24", "--seed", "3"]
WORDS += ["--pictures-every", "100000", "--checkpoint-every", "10", "--device", "cpu"]
WORDS += ["--set", "horizon=60"]  # else schedules have the length of the first command
TIMEOUT = 60  # processes of a busy machine take long to find each other
SENTENCE = "training in several processes must have them all, got no answer from one"


def command(count: int, run: Path, iterations: int, launcher: str, *more: str) -> list[str]:
    damc = [*WORDS, "--run", str(run), "--iterations", str(iterations), *more]
    if launcher == "devices" or count == 1:
        return [sys.executable, "-m", "damc", *damc, "--devices", str(count)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(count), "-m", "damc", "--", *damc]


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DAMC_PROCESS_TIMEOUT": str(TIMEOUT),
    }
    return subprocess.Popen(
        words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )


def process_of(rank: int, run: Path) -> int:
    """The process number of a rank of this run."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if str(run).encode() in line and b"damc" in line and f"RANK={rank}".encode() in variables:
            return int(folder.name)
        # The process that launched the others learned its own number only afterwards.
        first = (
            rank == 0
            and b"--devices" in line
            and not any(v.startswith(b"RANK=") for v in variables)
        )
        if first and str(run).encode() in line:
            return int(folder.name)
    raise AssertionError(f"no process {rank}")


def until_checkpoint(run: Path, process: subprocess.Popen[str], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not any(run.glob("checkpoints/[0-9]*")):
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)


def weights_after(run: Path, count: int, iterations: int) -> dict[str, torch.Tensor]:
    done = start(command(count, run, iterations, "torchrun"))
    _, err = done.communicate()
    assert done.returncode == 0, err[-2000:]
    return load_weights(run / "checkpoints" / f"{iterations:08d}" / "weights.safetensors")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """One process that nobody stopped."""
    return weights_after(tmp_path_factory.mktemp("one") / "run", 1, 60)


def goes_on(run: Path, count: int, wanted: dict[str, torch.Tensor]) -> None:
    """The folder is intact, and its run ends as if nothing had happened."""
    checkpoint = Run.open(run).load()
    assert checkpoint.iteration >= 10
    found = weights_after(run, count, 60)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("launcher", ["torchrun", "devices"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_a_lost_process_ends_the_others(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor], launcher: str, lost: int, fault: str
) -> None:
    """Killed: at once. Stopped: after the timeout, and torchrun's 30 s for the stopped one."""
    run = tmp_path / "run"
    process = start(command(2, run, 100_000, launcher))
    until_checkpoint(run, process)
    pid = process_of(lost, run)
    begun = time.monotonic()
    os.kill(pid, getattr(signal, fault))
    if launcher == "devices" and lost == 0 and fault == "SIGSTOP":
        # Nobody is there to end the stopped process, which launched the other one.
        other = process_of(1, run)
        while Path(f"/proc/{other}/stat").exists() and _state(other) != "Z":
            time.sleep(0.05)
            assert time.monotonic() - begun < 4 * TIMEOUT
        seconds = time.monotonic() - begun
        os.kill(pid, signal.SIGCONT)
    else:
        process.wait(TIMEOUT + 90)
        seconds = time.monotonic() - begun
    _, err = process.communicate(timeout=60)
    print(f"{launcher}, process {lost}, {fault}: {seconds:.1f} s")
    assert process.returncode != 0
    assert err.count(SENTENCE) >= (0 if fault == "SIGSTOP" and lost == 0 else 1), err[-2000:]
    assert "Traceback" not in err.split("torch/distributed")[0]
    limit = 20 if fault == "SIGKILL" else TIMEOUT + 45
    assert seconds < limit
    goes_on(run, 3, undisturbed)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_another_number_of_processes_goes_on(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """Two, then three, then one: the chains went with their images."""
    run = tmp_path / "run"
    for count, iterations in ((2, 20), (3, 40), (1, 60)):
        found = weights_after(run, count, iterations)
    for name, tensor in undisturbed.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5)


def test_chains_of_two_processes_go_on(tmp_path: Path) -> None:
    """ABP over epochs in which images change process: resumed equals not stopped, bit for bit."""
    words = ["--method", "abp", "--batch", "718"]
    found = []
    for name, parts in (("whole", [9]), ("parts", [4, 6, 9])):
        for iterations in parts:
            run = tmp_path / name
            done = start([*command(2, run, iterations, "torchrun"), *words])
            _, err = done.communicate()
            assert done.returncode == 0, err[-2000:]
        checkpoint = Run.open(run).load()
        found.append({**checkpoint.weights, **checkpoint.resume["chains"]["posterior"]})
    one, other = found
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert int(one["known"].sum()) > 1430  # of 1,438: every image's chain, whichever process had it


@pytest.mark.parametrize("launcher", ["torchrun", "devices"])
def test_all_processes_say_that_the_run_goes_on(tmp_path: Path, launcher: str) -> None:
    """After --max-minutes every process ends with 75, and the run is saved."""
    run = tmp_path / "run"
    words = command(2, run, 100_000, launcher, "--max-minutes", "0.2")
    if launcher == "torchrun":
        i = words.index("--")
        words[i - 2 : i] = [str(Path(__file__).with_name("codes.py"))]
    process = start(words)
    out, err = process.communicate()
    if launcher == "torchrun":
        assert sorted(line for line in out.splitlines() if "exit" in line) == [
            "process 0: exit 75",
            "process 1: exit 75",
        ], (out, err[-2000:])
    else:
        assert process.returncode == 75, err
    assert Run.open(run).load().iteration > 0


SLOW = "tc qdisc add dev lo root tbf rate 30mbit burst 256kb latency 20s"
CUT = "tc qdisc add dev lo root tbf rate 1kbit burst 2kb latency 1s"  # no packet of a gradient fits


def in_namespace(shell: str) -> list[str]:
    """A network of its own, in which `lo` is the only device."""
    return ["unshare", "-rn", "sh", "-ec", f"ip link set lo up; {shell}"]


def shaped() -> bool:
    found = shutil.which("tc") is not None and shutil.which("unshare") is not None
    return found and subprocess.run(in_namespace(SLOW), capture_output=True).returncode == 0


@pytest.mark.skipif(not shaped(), reason="needs tc, its tbf and a network namespace")
def test_a_slow_network_only_takes_longer(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = shlex.join(command(2, run, 12, "devices"))
    begun = time.monotonic()
    process = start(in_namespace(f"{SLOW}; exec {train}"))
    _, err = process.communicate(timeout=500)
    print(f"30 Mbit/s: {time.monotonic() - begun:.1f} s in all")
    assert process.returncode == 0, err[-2000:]
    assert Run.open(run).load().iteration == 12


@pytest.mark.skipif(not shaped(), reason="needs tc, its tbf and a network namespace")
def test_a_network_that_is_cut_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    run, cut = tmp_path / "run", tmp_path / "cut"
    train = shlex.join(command(2, run, 100_000, "devices"))
    wait = f"until ls {run}/checkpoints/0* >/dev/null 2>&1; do sleep .05; done"
    process = start(in_namespace(f"({wait}; {CUT}; touch {cut}) & exec {train}"))
    until_checkpoint(run, process)
    while not cut.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    begun = time.monotonic()
    _, err = process.communicate(timeout=500)
    seconds = time.monotonic() - begun
    print(f"cut: {seconds:.1f} s")
    assert process.returncode == 2 and SENTENCE in err, err[-2000:]
    assert seconds < 2 * TIMEOUT + 30
    assert Run.open(run).load().iteration >= 10
