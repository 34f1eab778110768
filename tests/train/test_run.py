from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import damc.train.run
from damc.disk import TEMPORARY
from damc.errors import BadInput
from damc.train.run import FORMAT, Run

CONFIG: dict[str, Any] = {
    "preset": "digits-small",
    "model": {"dim": 8, "sigma": 0.3},
    "sizes": [1, 2],
}


def weights(value: float, size: int = 10) -> dict[str, Tensor]:
    return {"decoder.weight": torch.full((size,), value), "energy.bias": torch.tensor(value)}


def values_of(run: Run) -> tuple[int, float, float]:
    """Iteration, and the value that fills weights and resume state; every entry has to agree."""
    iteration, loaded, resume = run.load()
    (value,) = set(loaded["decoder.weight"].tolist())
    (other,) = set(resume["adam"][0].tolist())
    assert loaded["energy.bias"] == value
    return iteration, value, other


# A second process, for real. It imports torch once and then forks for every piece of code it is
# sent, because an import takes seconds and there are dozens of deaths to die here.
NURSERY = """
import json, os, sys, traceback
import torch
import damc.train.run
for line in sys.stdin:
    code, output = json.loads(line)
    pid = os.fork()
    if pid == 0:
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(out, 1)
        try:
            exec(code, {"__name__": "child"})
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(2)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""

PRELUDE = """
import os, sys
from pathlib import Path
import torch
from damc.train.run import Run
def weights(value, size=10):
    return {"decoder.weight": torch.full((size,), value), "energy.bias": torch.tensor(value)}
"""


class Processes:
    def __init__(self, folder: Path) -> None:
        source = Path(damc.train.run.__file__).parents[1]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
        self.output = folder / "output.txt"
        self.nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, code: str, kill_after: float | None = None) -> tuple[int, str]:
        """Exit code (negative: the signal that ended it) and what was printed.

        With `kill_after` it is killed that many seconds after it first printed something.
        """
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.output.write_text("")
        self.nursery.stdin.write(json.dumps([PRELUDE + code, str(self.output)]) + "\n")
        self.nursery.stdin.flush()
        pid = int(self.nursery.stdout.readline())
        if kill_after is not None:
            deadline = time.monotonic() + 20
            while not self.output.read_text() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        status = int(self.nursery.stdout.readline())
        return os.waitstatus_to_exitcode(status), self.output.read_text()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    made = Processes(tmp_path_factory.mktemp("nursery"))
    yield made
    made.nursery.communicate()


def save(run: Run, iteration: int, value: float | None = None, **options: Any) -> None:
    value = float(iteration if value is None else value)
    run.save(iteration, weights(value), {"adam": {0: torch.full((5,), value)}}, **options)


# Settings


def test_a_folder_is_made_with_its_parents_and_opened_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "deep" / "run", CONFIG)
    again = Run.open(str(run.path))
    assert again.config == run.config == CONFIG
    written = json.loads((run.path / "config.json").read_text())
    assert written["format"] == FORMAT
    assert "damc" in written
    assert Run.create(run.path, CONFIG).config == CONFIG


def test_other_settings_are_refused_by_the_first_key_that_differs(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG | {"sizes": (1, 2)})  # a tuple is a JSON list
    before = (run.path / "config.json").read_bytes()
    for other, key in [
        (CONFIG | {"model": {"dim": 16, "sigma": 0.3}}, r"model\.dim differs"),
        (CONFIG | {"sizes": [1, 3], "preset": "digits-small"}, "sizes differs"),
        (CONFIG | {"extra": None}, "extra differs"),
        ({"preset": "mnist-small"}, "preset differs"),
    ]:
        with pytest.raises(BadInput, match=key):
            Run.create(tmp_path, other)
    assert (run.path / "config.json").read_bytes() == before


def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    bad: dict[str, Any]
    for bad in ({"clip": math.inf}, {"net": torch.nn.Identity()}, {"format": 3}):
        with pytest.raises(BadInput, match="settings"):
            Run.create(tmp_path / "run", bad)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": 1, "pre', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"preset": "mnist"}', "not a damc run folder"),
        (b'{"format": 99, "damc": "9.1"}', "has run format 99, written by damc 9.1, but this is"),
        (b'{"format": 1, "damc": "0.1.0"}', "has run format 1, written by damc 0.1.0, but this is"),
    ],
)
def test_a_damaged_or_foreign_config_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    for use in (Run.open, lambda path: Run.create(path, CONFIG)):
        with pytest.raises(BadInput, match=message):
            use(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == content


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, message in [
        (tmp_path / "absent", "there is no folder"),
        (file, "there is no folder"),
        (tmp_path, r"has no config\.json"),
    ]:
        with pytest.raises(BadInput, match=message):
            Run.open(path)
    with pytest.raises(BadInput, match="could not write in"):
        Run.create(file, CONFIG)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(BadInput, match=r"without a config\.json"):
        Run.create(tmp_path, CONFIG)


# Checkpoints


def test_a_checkpoint_comes_back_and_only_the_newest_stay(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    with pytest.raises(BadInput, match="no checkpoint yet"):
        run.load()
    for iteration in (0, 1, 20, 300):
        save(run, iteration, keep=2)
    assert run.checkpoints() == [20, 300]
    assert values_of(run) == (300, 300.0, 300.0)
    assert run.load(20).weights["energy.bias"] == 20.0
    assert isinstance(next(iter(run.load().resume["adam"])), int)
    with pytest.raises(BadInput, match=r"no checkpoint 7: it has \[20, 300\]"):
        run.load(7)
    assert sorted(item.name for item in (tmp_path / "checkpoints").iterdir()) == [
        "00000020",
        "00000300",
    ]


def test_nine_digits_sort_as_numbers(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 99_999_999)
    save(run, 100_000_000)
    assert run.checkpoints() == [99_999_999, 100_000_000]
    assert run.load().iteration == 100_000_000


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 5, 1.0)
    save(run, 5, 2.0)
    assert values_of(run) == (5, 2.0, 2.0)
    assert [item.name for item in (tmp_path / "checkpoints").iterdir()] == ["00000005"]


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "one bit":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
    elif how == "pickle":
        torch.save({"a": 1}, path)


@pytest.mark.parametrize(
    ("file", "how"),
    [
        ("weights.safetensors", "truncated"),
        ("weights.safetensors", "one bit"),
        ("weights.safetensors", "pickle"),
        ("resume.safetensors", "empty"),
        ("resume.safetensors", "one bit"),
        ("resume.json", "truncated"),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_and_is_replaced(
    tmp_path: Path, file: str, how: str
) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 1)
    save(run, 3)
    damage(tmp_path / "checkpoints" / "00000003" / file, how)
    with pytest.raises(BadInput, match=r"checkpoint 3 .* is damaged"):
        run.load(3)
    with pytest.warns(UserWarning, match=r"checkpoint 3 .* is damaged"):
        assert values_of(run) == (1, 1.0, 1.0)
    save(run, 2, keep=1)  # the resumed run saves earlier than the damaged one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values_of(run) == (2, 2.0, 2.0)
    assert run.checkpoints() == [2]


def test_only_damaged_checkpoints_are_one_clear_error(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 1)
    damage(tmp_path / "checkpoints" / "00000001" / "weights.safetensors", "truncated")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(BadInput, match=r"nothing to load: .* has only damaged checkpoints"),
    ):
        run.load()


@pytest.mark.parametrize("file", ["resume.json", "resume.safetensors", "weights.safetensors"])
def test_an_incomplete_checkpoint_is_told_and_passed_over(tmp_path: Path, file: str) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 1)
    save(run, 2)
    (tmp_path / "checkpoints" / "00000002" / file).unlink()
    with pytest.warns(UserWarning, match=r"checkpoint 2 .* is damaged: could not read"):
        assert values_of(run) == (1, 1.0, 1.0)
    save(run, 2)
    assert values_of(run) == (2, 2.0, 2.0)


def test_saving_behind_an_intact_checkpoint_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 100)
    with pytest.raises(BadInput, match="already holds iteration 100, later than 5"):
        save(run, 5, keep=1)
    assert run.checkpoints() == [100]


# Metrics and other files


def test_metrics_are_one_record_a_line(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    assert run.metrics() == []
    run.log({"iteration": 1, "loss": 0.1, "note": "ä"})
    run.log({"iteration": 2, "loss": math.nan, "gap": -math.inf})
    assert run.metrics() == [
        {"iteration": 1, "loss": 0.1, "note": "ä"},
        {"iteration": 2, "loss": None, "gap": None},
    ]


def test_a_torn_last_line_is_ignored_and_the_next_record_survives(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.log({"iteration": 1})
    path = tmp_path / "metrics.jsonl"
    line = b'{"iteration": 2, "loss": 0.25}'
    for cut in range(1, len(line) + 1):
        path.write_bytes(b'{"iteration": 1}\n' + line[:cut])
        whole = [{"iteration": 2, "loss": 0.25}] if cut == len(line) else []
        assert run.metrics() == [{"iteration": 1}, *whole]
        run.log({"iteration": 3})
        assert run.metrics() == [{"iteration": 1}, *whole, {"iteration": 3}]


def test_a_damaged_line_in_the_middle_is_left_out_with_a_warning(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n\0\0\0\n{"iteration": 3}\n')
    with pytest.warns(UserWarning, match="line 2"):
        assert run.metrics() == [{"iteration": 1}, {"iteration": 3}]


def test_a_resumed_run_forgets_what_it_will_log_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.log({"event": "start"})
    for iteration in range(6):
        run.log({"iteration": iteration, "loss": 1.0 / (iteration + 3)})
    full = run.metrics()
    run.truncate_metrics(3)
    assert run.metrics() == full[:5]


def test_other_files_stay_inside_the_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    assert run.write("samples/1.png", b"png").read_bytes() == b"png"
    for name in ("../escaped", "/tmp/escaped", "samples/../../escaped"):
        with pytest.raises(BadInput, match="leads out of the run folder"):
            run.write(name, "x")


# Faults, in real processes


def test_a_second_process_may_not_train_but_may_read(tmp_path: Path, processes: Processes) -> None:
    run = Run.create(tmp_path, CONFIG)
    attempt = f"with Run.open({str(tmp_path)!r}).lock(): print('training')"
    with run.lock():
        save(run, 1)
        code, said = processes.run(attempt)
        assert (code, said.strip()) == (
            2,
            f"BadInput: {tmp_path} is being trained by process {os.getpid()}",
        )
        with pytest.raises(BadInput, match="is being trained"), run.lock():
            pass
        code, said = processes.run(f"print(Run.open({str(tmp_path)!r}).load().iteration)")
        assert (code, said) == (0, "1\n")
    assert processes.run(attempt) == (0, "training\n")
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    with run.lock():  # an error inside has let it go
        pass


def test_a_killed_process_lets_go_of_the_lock(tmp_path: Path, processes: Processes) -> None:
    run = Run.create(tmp_path, CONFIG)
    hold = f"import time\nwith Run.open({str(tmp_path)!r}).lock():\n    print(1, flush=True)"
    hold += "\n    time.sleep(60)"
    assert processes.run(hold, kill_after=0.0)[0] == -signal.SIGKILL
    with run.lock():
        pass


def test_a_lock_that_is_a_link_harms_nothing(tmp_path: Path) -> None:
    """A folder of somebody else's may hold links to files of ours."""
    run = Run.create(tmp_path / "run", CONFIG)
    ours = tmp_path / "ours.txt"
    ours.write_text("precious")
    (run.path / "lock").symlink_to(ours)
    with pytest.raises(BadInput, match="must be a plain file, got a symbolic link"), run.lock():
        pass
    (run.path / "lock").unlink()
    (run.path / "lock.pid").symlink_to(ours)
    with run.lock():
        pass
    assert ours.read_text() == "precious"
    assert not (run.path / "lock.pid").is_symlink()


def test_a_data_worker_that_lives_on_does_not_keep_the_lock(
    tmp_path: Path, processes: Processes
) -> None:
    Run.create(tmp_path, CONFIG)
    code, said = processes.run(f"""
import signal, time
run = Run.open({str(tmp_path)!r})
with run.lock():
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
        os._exit(0)
try:
    with run.lock():
        print("free")
finally:
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
""")
    assert (code, said) == (0, "free\n")


def test_kill_9_at_random_moments_leaves_a_run_that_resumes(
    tmp_path: Path, processes: Processes
) -> None:
    run = Run.create(tmp_path, CONFIG)
    endless = f"""
run = Run.open({str(tmp_path)!r})
with run.lock():
    iteration = run.load().iteration if run.checkpoints() else 0
    while True:
        iteration += 1
        run.log({{"iteration": iteration}})
        resume = {{"adam": {{0: torch.full((50_000,), float(iteration))}}}}
        run.save(iteration, weights(float(iteration), 200_000), resume, keep=2)
        print(iteration, flush=True)
"""
    moment = random.Random(0)
    reached = 0
    for _ in range(12):
        code, said = processes.run(endless, kill_after=moment.uniform(0.0, 0.1))
        assert code == -signal.SIGKILL, said
        announced = int(said.split()[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iteration, value, other = values_of(run)
        assert iteration == value == other
        assert iteration >= announced > reached
        assert [record["iteration"] for record in run.metrics()][-1] >= iteration
        reached = iteration
    with run.lock():
        assert not list(tmp_path.rglob(f"{TEMPORARY}*"))
    assert len(list((tmp_path / "checkpoints").iterdir())) <= 3


DIE_AT = """
touched = 0
def watch(event, arguments):
    global touched
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"):
        touched += 1
        if touched == {operation}:
            os._exit(9)
run = Run.open({path!r})
sys.addaudithook(watch)
{save}(run, {iteration})
"""

SAVE = """
def save(run, iteration):
    run.save(iteration, weights(2.0), {"adam": {0: torch.full((5,), 2.0)}}, keep=1)
"""

SAVE_IN_PLACE = """
import shutil
def save_in_place(run, iteration):
    target = run.path / "checkpoints" / f"{iteration:08d}"
    if target.exists():
        shutil.rmtree(target)
    run.save(iteration, weights(2.0), {"adam": {0: torch.full((5,), 2.0)}}, keep=1)
"""


def deaths(folder: Path, processes: Processes, iteration: int, how: str) -> list[float | None]:
    """Die before every single file operation of a save; the value that is loaded after each."""
    found: list[float | None] = []
    for operation in range(1, 200):
        run = Run.create(folder / str(operation), CONFIG)
        save(run, 1, 1.0)
        name = {SAVE: "save", SAVE_IN_PLACE: "save_in_place"}[how]
        code = how + DIE_AT.format(
            operation=operation, path=str(run.path), save=name, iteration=iteration
        )
        died, said = processes.run(code)
        assert died in (0, 9), said
        try:
            _, value, other = values_of(run)
            assert value == other
            found.append(value)
        except BadInput:
            found.append(None)
        else:
            with run.lock():  # what the next training process does first
                assert values_of(run)[1] == value
            assert len(list((run.path / "checkpoints").iterdir())) <= 2
        if died == 0:
            return found
    raise AssertionError("a save takes fewer than 200 file operations")


@pytest.mark.parametrize("iteration", [2, 1])
def test_death_before_any_file_operation_of_a_save_loses_nothing(
    tmp_path: Path, processes: Processes, iteration: int
) -> None:
    """With `iteration` 1 the save replaces the only checkpoint there is."""
    found = deaths(tmp_path, processes, iteration, SAVE)
    assert len(found) > 10
    assert found == sorted(found, key=lambda value: value or 0)  # old, then new, no way back
    assert set(found) == {1.0, 2.0}


def test_the_deaths_above_catch_a_save_that_removes_before_it_writes(
    tmp_path: Path, processes: Processes
) -> None:
    assert None in deaths(tmp_path, processes, 1, SAVE_IN_PLACE)


def test_a_full_disk_is_one_sentence_and_harms_nothing(
    tmp_path: Path, processes: Processes
) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 1)
    before = sorted(tmp_path.rglob("*"))
    code, said = processes.run(f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
run = Run.open({str(tmp_path)!r})
run.save(2, weights(2.0, 1_000_000), {{}})
""")
    assert (code, said.strip()) == (2, f"BadInput: could not write in {tmp_path}: File too large")
    assert sorted(tmp_path.rglob("*")) == before
    assert values_of(run) == (1, 1.0, 1.0)


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path, processes: Processes) -> None:
    run = Run.create(tmp_path, CONFIG)
    save(run, 1)
    checkpoints = tmp_path / "checkpoints"
    paths = [tmp_path, checkpoints]
    # A root process may write anywhere, so the child becomes someone else, who must be able to
    # pass through the folders above.
    closed = [folder for folder in tmp_path.parents if not folder.stat().st_mode & 0o001]
    modes = {folder: folder.stat().st_mode & 0o7777 for folder in [*closed, *paths]}
    try:
        for folder in closed:
            folder.chmod(modes[folder] | 0o011)
        for folder in paths:
            folder.chmod(0o555)
        for action in (
            "run.save(2, weights(2.0), {})",
            "run.write('file.txt', 'x')",
            "run.log({'iteration': 1})",
            "run.lock().__enter__()",
            "Run.create(run.path / 'inside', {})",
        ):
            code, said = processes.run(f"""
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
run = Run.open({str(tmp_path)!r})
{action}
""")
            assert code == 2, said
            assert said.startswith(f"BadInput: could not write in {tmp_path}"), said
            assert said.endswith(": Permission denied\n")
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)
    assert values_of(run) == (1, 1.0, 1.0)
    assert sorted(item.name for item in tmp_path.iterdir()) == [
        "checkpoints",
        "config.json",
        "metrics.seal",
    ]
