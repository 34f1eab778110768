"""No damage to a run folder or a saved detector is silent, raw, or blocks for ever."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from damc.errors import BadInput
from damc.train.run import Run
from tests.fuzz import damage, targets
from tests.fuzz.targets import read_detector, read_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return targets.make_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def detector_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return targets.make_detector(tmp_path_factory.mktemp("detector") / "detector")


def attack(
    read: damage.Read, folder: Path, place: Path, harm: Any, times: int, seed: int
) -> Counter[str]:
    intact = read(folder)
    counts: Counter[str] = Counter()
    for k in range(times):
        dice = random.Random(f"{seed} {k}")
        with damage.damaged(folder, place) as copy:
            what = harm(copy, dice)
            result = damage.outcome(read, copy, intact)
        assert result in ("told", "unchanged"), f"number {k}: {what}: {result}"
        counts[result] += 1
    return counts


KINDS = {"flips": damage.flip, "structural": damage.mutate}


def test_every_file_of_a_folder_is_attacked(run_folder: Path, detector_folder: Path) -> None:
    names = {path.name for path in damage.files_of(run_folder)}
    assert names == {
        "config.json",
        "data.json",
        "lock",
        "metrics.jsonl",
        "metrics.seal",
        "resume.json",
        "resume.safetensors",
        "weights.safetensors",
    }
    found = {path.name for path in damage.files_of(detector_folder)}
    assert found == {"detector.json", "detector.safetensors"}


@pytest.mark.parametrize(("harm", "times"), [("flips", 30), ("structural", 40)])
def test_damage_to_a_run_is_told(run_folder: Path, tmp_path: Path, harm: str, times: int) -> None:
    counts = attack(read_run, run_folder, tmp_path / "copy", KINDS[harm], times, seed=1)
    assert counts["told"] > times // 4


@pytest.mark.parametrize(("harm", "times"), [("flips", 60), ("structural", 40)])
def test_damage_to_a_detector_is_told(
    detector_folder: Path, tmp_path: Path, harm: str, times: int
) -> None:
    counts = attack(read_detector, detector_folder, tmp_path / "copy", KINDS[harm], times, seed=2)
    assert counts["told"] > times // 2


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "times"), [("flips", 1500), ("structural", 150)])
@pytest.mark.parametrize("what", ["run", "detector"])
def test_much_damage_is_told(
    run_folder: Path, detector_folder: Path, tmp_path: Path, what: str, harm: str, times: int
) -> None:
    read, folder = (read_run, run_folder) if what == "run" else (read_detector, detector_folder)
    counts = attack(read, folder, tmp_path / "copy", KINDS[harm], times, seed=3)
    print(what, harm, dict(counts))


@pytest.mark.parametrize("what", ["run", "detector"])
def test_forged_documents_are_one_sentence_or_read(
    run_folder: Path, detector_folder: Path, tmp_path: Path, what: str
) -> None:
    """Under a seal that fits, other values may be read; they may not fail in another way."""
    read, folder = (read_run, run_folder) if what == "run" else (read_detector, detector_folder)
    intact = read(folder)
    for k in range(20):
        with damage.damaged(folder, tmp_path / "copy") as copy:
            said = damage.forge(copy, random.Random(k))
            result = damage.outcome(read, copy, intact)
        assert result in ("told", "unchanged", "SILENT"), f"number {k}: {said}: {result}"


def test_past_failures_stay_away(run_folder: Path, detector_folder: Path, tmp_path: Path) -> None:
    folders = {"run": (run_folder, read_run), "detector": (detector_folder, read_detector)}
    intact = {name: read(folder) for name, (folder, read) in folders.items()}
    for past in targets.corpus():
        folder, read = folders[past["target"]]
        with damage.damaged(folder, tmp_path / "copy") as copy:
            targets.HARMS[past["harm"]](copy, random.Random(past["seed"]))
            result = damage.outcome(read, copy, intact[past["target"]])
        assert targets.allowed(past["harm"], result), (past, result)


@pytest.mark.parametrize("number", range(9))
def test_damaged_files_of_images_and_weights_are_one_sentence(tmp_path: Path, number: int) -> None:
    path = targets.make_files(tmp_path / "files")[number]
    whole = path.read_bytes()
    for k in range(15):
        path.write_bytes(whole)
        damage.flip_file(path, random.Random(k))
        result = damage.outcome(targets.read_file, path, None)
        assert not result.startswith(("RAW", "HANG")), (path.name, k, result)


def test_settings_of_nonsense_are_one_sentence() -> None:
    for k in range(100):
        targets.read_words(random.Random(k))


def test_a_signing_key_refuses_what_others_wrote(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [tmp_path / "ours", tmp_path / "theirs"]
    for n, key in enumerate(keys):
        key.write_bytes(bytes([65 + n]) * 32)
    monkeypatch.setenv("DAMC_SIGNING_KEY", str(keys[0]))
    with pytest.raises(BadInput, match="must be signed with the key of .*, it is not"):
        Run.open(run_folder)
    run = Run.create(tmp_path / "run", {"a": 1})
    run.save(1, {"w": torch.ones(2)}, {})
    assert Run.open(run.path).load().iteration == 1
    monkeypatch.setenv("DAMC_SIGNING_KEY", str(keys[1]))
    with pytest.raises(BadInput, match="must be signed .*, got another's"):
        Run.open(run.path)
    Run.create(tmp_path / "other", {"a": 1}).save(1, {"w": torch.zeros(2)}, {})
    for file in (tmp_path / "other" / "checkpoints" / "00000001").iterdir():
        file.rename(run.path / "checkpoints" / "00000001" / file.name)
    monkeypatch.setenv("DAMC_SIGNING_KEY", str(keys[0]))
    with (
        pytest.warns(UserWarning, match="another's"),
        pytest.raises(BadInput, match="only damaged"),
    ):
        Run.open(run.path).load()
    monkeypatch.delenv("DAMC_SIGNING_KEY")  # without a key, digests are what counts
    assert Run.open(run.path).load().weights["w"].sum() == 0
    (tmp_path / "short").write_text("abc")
    monkeypatch.setenv("DAMC_SIGNING_KEY", str(tmp_path / "short"))
    with pytest.raises(BadInput, match="at least 16 bytes, got 3"):
        Run.open(run.path)


def test_a_lost_newest_checkpoint_is_told(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"a": 1})
    for k in (1, 2):
        run.save(k, {"w": torch.ones(2)}, {})
    (run.path / "checkpoints" / "00000002").rename(tmp_path / "gone")
    with pytest.warns(UserWarning, match="checkpoint 2 .* is missing; the one before it is used"):
        assert run.load().iteration == 1
    (run.path / "checkpoints" / "00000001").rename(tmp_path / "gone too")
    with pytest.raises(BadInput, match="must have its checkpoint 2, which is missing"):
        run.begun()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = (Run.create(tmp_path / name, {"name": name}) for name in ("one", "other"))
    for run in (one, other):
        run.save(1, {"w": torch.ones(2)}, {})
    (one.path / "checkpoints" / "00000001").rename(other.path / "checkpoints" / "00000002")
    with pytest.warns(UserWarning, match="it holds iteration 1"):
        assert other.load().iteration == 1
    (other.path / "checkpoints" / "00000001").rename(tmp_path / "away")
    (other.path / "checkpoints" / "00000002").rename(other.path / "checkpoints" / "00000001")
    with pytest.raises(BadInput, match="belongs to a run with other settings"):
        other.load(1)
