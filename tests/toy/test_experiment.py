from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from damc.errors import BadInput
from damc.kernels.langevin import Langevin
from damc.metrics.two_sample import c2st
from damc.toy.experiment import long_run, run_toy
from damc.toy.pictures import density_images, exact_points, histogram, most_divided
from damc.toy.problem import GridPosterior, ToyModel
from damc.toy.settings import ToySettings
from damc.toy.table import compare, table

TINY = ToySettings(
    iterations=3,
    batch=100,
    steps=5,
    updates=2,
    start_steps=3,
    embedding=16,
    widths=(16, 16, 16),
    solver_steps=4,
    heldout=4,
    samples=300,
    extra_steps=2,
    long_steps=45,
    snapshots=(1, 2, 50),
    shown=2,
    drawn=60,
    pooled=100,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def null_sd(samples: int, observations: int) -> float:
    """Standard deviation of a mean C2ST when both sets come from one distribution."""
    return 0.5 / math.sqrt(2 * samples * observations)


def doubled_noise(model: ToyModel) -> Any:
    """The model's posterior as a wrong likelihood sees it: sigma twice too large."""

    def log_prob(z: Tensor, x: Tensor) -> Tensor:
        return model.log_prior(z) + model.likelihood.log_prob(x, z) / 4

    return log_prob


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy") / "new" / "folder"


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    return run_toy(folder, seed=1, settings=TINY, progress=False)


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return ToyModel("pinwheel", seed=0)


@pytest.fixture(scope="module")
def observations(model: ToyModel) -> Tensor:
    return model.draw(4, seeded(1))[1]


@pytest.fixture(scope="module")
def posteriors(model: ToyModel, observations: Tensor) -> list[GridPosterior]:
    return model.grid_posteriors(observations)


def test_a_run_writes_its_files(folder: Path, result: dict[str, Any]) -> None:
    from PIL import Image

    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "history.json",
        "amortizer.json",
        "amortizer.safetensors",
        "posteriors.png",
        "pooled.png",
    }
    assert json.loads((folder / "results.json").read_text()) == json.loads(json.dumps(result))
    sizes = {}
    for name in ("posteriors", "pooled"):
        with Image.open(folder / f"{name}.png") as picture:
            sizes[name] = picture.size
            colors = picture.convert("RGB").getcolors(1 << 24)
            assert colors is not None and len(colors) > 200, "a picture of one color"
    # Iterations 1, 2 and 3, the long chains and the exact ones; the pooled picture adds the prior.
    columns = {name: round(width / (150 * 1.25)) for name, (width, _) in sizes.items()}
    assert columns == {"posteriors": 5, "pooled": 6}
    assert sizes["posteriors"][1] > 1.5 * sizes["pooled"][1]


def test_the_table_holds_every_kind_of_samples_and_its_cost(result: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in result["table"]}
    assert {name: row["gradients"] for name, row in rows.items()} == {
        "q(z|x)": 0,
        "q(z|x) + 2 steps": 5,  # one at the start, then two a move
        "Langevin, 45 steps": 45,
        "exact, a second set": 0,
    }
    assert result["gradient_calls"] == TINY.iterations * TINY.batch * (1 + 2 * TINY.steps)
    assert result["seed"] == 1 and result["settings"]["steps"] == TINY.steps
    for row in rows.values():
        each = torch.tensor(row["c2st_each"], dtype=torch.float64)
        assert row["c2st"] == pytest.approx(float(each.mean()))
        assert row["c2st_sd"] == pytest.approx(float(each.std()))
        assert len(each) == len(row["energy_each"]) == TINY.heldout


def test_two_exact_sets_cannot_be_told_apart_but_a_raw_sampler_can(result: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in result["table"]}
    exact, raw = rows["exact, a second set"], rows["q(z|x)"]
    assert abs(exact["c2st"] - 0.5) < 4 * null_sd(TINY.samples, TINY.heldout)
    assert raw["c2st"] > 0.5 + 20 * null_sd(TINY.samples, TINY.heldout)
    assert abs(exact["energy_distance"]) < raw["energy_distance"] / 20


def test_the_printed_table_is_aligned(result: dict[str, Any]) -> None:
    lines = table(result).splitlines()[2:7]
    assert len({len(line) for line in lines}) == 1
    assert [line[:26].strip() for line in lines[1:]] == [row["name"] for row in result["table"]]
    assert f"{result['table'][0]['c2st']:.3f}" in lines[1]


def test_a_seed_repeats_whatever_is_drawn(
    tmp_path: Path, folder: Path, result: dict[str, Any]
) -> None:
    before = torch.get_rng_state()
    other = replace(TINY, snapshots=(), drawn=10)
    again = run_toy(tmp_path, seed=1, settings=other, progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [path / "amortizer.safetensors" for path in (tmp_path, folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for new, old in zip(again["table"], result["table"], strict=True):
        assert new["c2st_each"] == old["c2st_each"] and new["energy_each"] == old["energy_each"]


def test_chains_with_a_wrong_target_are_found_out(
    model: ToyModel, observations: Tensor, posteriors: list[GridPosterior]
) -> None:
    """From exact points, right chains stay exact up to the bias of s; wrong ones drift away."""
    n, generator = 300, seeded(2)
    exact = torch.stack([p.sample(n, generator) for p in posteriors])
    start = torch.cat([p.sample(n, generator) for p in posteriors]).float()
    x = observations.repeat_interleave(n, 0)
    values = []
    for target in (model.log_prob, doubled_noise(model)):
        end, _ = Langevin(0.05, 200).run(start, lambda z, f=target: f(z, x), seeded(3))
        values.append(compare("chains", end.z.view(len(exact), n, 2), exact, seeded(4)).c2st)
    sd = null_sd(n, len(exact))
    assert abs(values[0] - 0.5) < 4 * sd
    assert values[1] > 0.5 + 8 * sd


def test_long_chains_make_every_move_and_start_at_noise() -> None:
    """On N(x, I) unadjusted Langevin has a closed form after any number of moves."""
    s, steps = 0.3, 23
    settings = replace(TINY, long_step_size=s, long_steps=steps)
    x = torch.tensor([2.0, -1.0]).expand(20_000, 2)
    z = long_run(lambda z, x: -(z - x).square().sum(1) / 2, x, settings, seeded())
    keep = 1 - s**2 / 2
    variance = keep ** (2 * steps) + s**2 * (1 - keep ** (2 * steps)) / (1 - keep**2)
    error = math.sqrt(variance / len(z))
    assert torch.allclose(z.mean(0), (1 - keep**steps) * x[0], atol=4 * error)
    assert z.var(0).tolist() == pytest.approx([variance] * 2, rel=4 * math.sqrt(2 / len(z)))
    # A single move too few or too many would shift the mean by more than the error bar.
    assert 2 * (keep ** (steps - 1) - keep**steps) > 4 * error


def test_sampled_and_exact_images_agree_in_scale_and_direction(
    posteriors: list[GridPosterior],
) -> None:
    images = density_images(posteriors)
    pixel = (7 / 100) ** 2
    for image, posterior in zip(images, posteriors, strict=True):
        z = posterior.sample(200_000, seeded())
        inside = float((z.abs() < 3.5).all(1).double().mean())
        assert float(image.sum()) * pixel == pytest.approx(inside, abs=0.02)
        distance = float((histogram(z) - image).abs().sum()) * pixel / 2
        turned = float((histogram(z.flip(1)) - image).abs().sum()) * pixel / 2
        assert distance < 0.05 < 0.3 < turned


def test_the_most_divided_densities_come_first() -> None:
    images = torch.zeros(4, 100, 100, dtype=torch.float64)
    images[:, 10:20, 10:20] = 1  # one part
    images[1, 60:70, 60:70] = 1  # two equal parts
    images[2, 60:70, 60:70] = 0.15  # a faint second part
    images[3, 60:70, 60:70] = images[3, 80:90, 10:20] = 1  # three
    assert most_divided(images, 3) == [3, 1, 2]
    assert most_divided(images, 9) == [3, 1, 2, 0]


def test_pooled_exact_points_follow_the_joint_law(model: ToyModel) -> None:
    """With x from the model, (posterior draw, x) has the law of (generating point, x)."""
    n = 2000
    z, x = model.draw(n, seeded(5))
    drawn = exact_points(model, x, seeded(6))
    # Each x was drawn once more from its own posterior: compared as pairs, in four dimensions.
    first, second = slice(None, n // 2), slice(n // 2, None)
    pairs = torch.cat([drawn, x], 1)[first], torch.cat([z, x], 1)[second]
    sd = null_sd(n // 2, 1)
    assert abs(c2st(*pairs, generator=seeded(7)) - 0.5) < 4 * sd
    mixed = torch.cat([drawn.roll(1, 0), x], 1)[first]
    assert c2st(mixed, pairs[1], generator=seeded(7)) > 0.5 + 8 * sd


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kernel": "hmc"}, "kernel must be independence, langevin or mala, got 'hmc'"),
        ({"heldout": 0}, "heldout must be at least 1, got 0"),
        ({"samples": 4}, "samples must be at least 5, got 4"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
    ],
)
def test_bad_settings_get_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        replace(TINY, **change)


def test_bad_arguments_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="seed must be 0 or more, got -1"):
        run_toy(tmp_path, seed=-1, settings=TINY, progress=False)
    with pytest.raises(BadInput, match="prior must be .*got 'flat'"):
        run_toy(tmp_path, prior="flat", settings=TINY, progress=False)  # type: ignore[arg-type]
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(BadInput, match="could not write in"):
        run_toy(file, settings=TINY, progress=False)
    assert file.read_text() == "kept"


@pytest.mark.slow
def test_a_sampler_of_a_wrong_target_is_found_out(tmp_path: Path) -> None:
    """The same job twice, once with chains that believe in twice the noise."""
    settings = ToySettings(
        iterations=80,
        start_steps=10,
        solver_steps=10,
        embedding=64,
        widths=(64, 64, 64),
        learning_rate=2e-3,
        heldout=8,
        samples=1000,
        long_steps=20,
        snapshots=(),
        drawn=10,
        pooled=10,
    )
    each = []
    for name in ("right", "wrong"):
        target = doubled_noise(ToyModel("pinwheel", 0)) if name == "wrong" else None
        ran = run_toy(tmp_path / name, settings=settings, target=target, progress=False)
        each.append(torch.tensor(ran["table"][1]["c2st_each"]))
    excess = each[1] - each[0]
    assert float(excess.mean()) > 3 * float(excess.std()) / math.sqrt(len(excess))
