"""Packages: made of runs, loaded by name, with samples that look like those of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import damc
from damc import BadInput
from damc.cli import main
from damc.data import load_images
from damc.hub.packaged import packaged_folder, packaged_names
from damc.hub.published import FILES, read_config
from damc.learn.damc import DAMC
from damc.tasks.package import package_run
from damc.tasks.trained import Trained
from damc.train.origin import Origin


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    learner = DAMC.from_preset(
        "digits-small", posterior_steps=2, prior_steps=2, updates=1, start_steps=2
    )
    origin = Origin("digits", (1, 8, 8))
    damc.fit(
        learner, origin.train(), iterations=2, run=folder, preset="digits-small",
        origin=origin.settings, progress=False,
    )  # fmt: skip
    origin.remember(folder)
    return folder


def test_a_package_samples_as_the_run_does_but_for_rounding(run: Path, tmp_path: Path) -> None:
    done = package_run(Trained.open(run), tmp_path / "p", limit=20)
    assert done.bits == 16 and done.bytes < 2.4e6
    assert done.results["mse, 16 bits"] == pytest.approx(done.results["mse, 32 bits"], rel=0.01)
    pair = [damc.load(folder) for folder in (run, tmp_path / "p")]
    drawn = [one.sample(8, generator=torch.Generator().manual_seed(0)) for one in pair]
    assert float((drawn[0] - drawn[1]).abs().mean()) < 0.01
    assert pair[1].iteration == 2
    command = pair[1].provenance["command"]
    assert command.startswith("damc train digits-small --iterations 2 --seed 0 --set ")
    assert {"posterior_steps=2", "prior_steps=2", "updates=1", "start_steps=2"} == {
        *command.partition("--set ")[2].split()
    }


def test_a_model_that_is_too_large_takes_8_bits_or_is_refused(run: Path, tmp_path: Path) -> None:
    done = package_run(Trained.open(run), tmp_path / "p", megabytes=1.4, limit=20)
    assert done.bits == 8 and done.bytes < 1.4e6
    with pytest.raises(BadInput, match=r"must have at most 0.1 MB without a loss"):
        package_run(Trained.open(run), tmp_path / "q", megabytes=0.1, limit=20)
    assert not (tmp_path / "q").exists()
    with pytest.raises(BadInput, match="folder must be new or hold a published model"):
        package_run(Trained.open(run), run, limit=20)


def test_packaged_models_are_there_and_small() -> None:
    names = packaged_names()
    assert "mnist-small" in names and len(names) >= 3
    for name in names:
        folder = packaged_folder(name)
        assert folder is not None
        assert sum((folder / file).stat().st_size for file in FILES) < 5e6
        assert {path.name for path in folder.iterdir()} == set(FILES)
        assert read_config(folder)["command"].startswith("damc train ")


@pytest.mark.parametrize("name", packaged_names())
def test_a_packaged_model_samples_and_reconstructs(name: str) -> None:
    model = damc.load(name)
    generator = torch.Generator().manual_seed(0)
    for source in ("amortizer", "energy"):
        images = model.sample(4, source=source, generator=generator)
        assert images.shape[0] == 4 and bool(torch.isfinite(images).all())
        assert float(images.std()) > 0.1  # something is to be seen
    assert model.reconstruct(images, generator=generator).shape == images.shape


def test_the_digits_model_reconstructs_unseen_digits() -> None:
    x = load_images("digits", split="test").batch(torch.arange(100))
    y = damc.load("digits-small").reconstruct(x, generator=torch.Generator().manual_seed(0))
    error, mean = (y - x).square().mean(), (x.mean(0) - x).square().mean()
    assert error < mean / 3


def test_damc_models_lists_them_with_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in packaged_names())
    assert main(["models", "digits-small"]) == 0
    card = capsys.readouterr().out
    assert "## Command" in card and read_config(packaged_folder("digits-small"))["sha256"] in card  # type: ignore[arg-type]
    assert main(["models", "digit"]) == 2
    assert "NAME must be a packaged model" in capsys.readouterr().err


def test_a_packaged_model_is_sampled_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "digits-small", "--n", "4"]) == 0
    assert (tmp_path / "samples" / "samples.npy").is_file()


def test_a_name_that_is_nothing_is_said() -> None:
    with pytest.raises(BadInput, match=r"no folder digits-smal: .*packaged model \(.*digits-small"):
        damc.load("digits-smal")
