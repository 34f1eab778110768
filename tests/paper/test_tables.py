"""The frame of `damc reproduce`: cells are done once, plans are kept, tables say what was found."""

from __future__ import annotations

import csv
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from damc import DAMC
from damc.data import load_images
from damc.errors import BadInput
from damc.kernels.underdamped import Underdamped
from damc.learn import METHODS
from damc.learn.damc import PaperDAMC
from damc.learn.lebm import LEBM
from damc.learn.presets import find_preset
from damc.paper import TABLES, find_table, training
from damc.paper.baselines import BASELINES
from damc.paper.scales import Capacity, Speedups, Steps
from damc.paper.show import show
from damc.paper.table import Cell, Measure, Options, Table, slug
from damc.paper.training import Budget, _first, _now, train
from damc.paper.work import run_cells
from damc.tasks.evaluate import evaluate_run
from damc.tasks.trained import Trained


class Squares(Table):
    """Cells that cost nothing: the square of the seed, plus a number for the row."""

    name: ClassVar[str] = "squares"
    about: ClassVar[str] = "for these tests"
    uses: ClassVar[frozenset[str]] = frozenset({"iterations"})
    measures: ClassVar[tuple[Measure, ...]] = (Measure("value", "a value"),)
    paper: ClassVar[dict[tuple[str, str, str], float]] = {("b", "x", "value"): 7.0}

    def __init__(self) -> None:
        self.done: list[str] = []

    def cells(self, options: Options) -> list[Cell]:
        plan = {"iterations": options.iterations}
        return [Cell(r, "x", s, plan) for s in options.seeds for r in ("a", "b")]

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        self.done.append(cell.name)
        if len(self.done) == 3 and options.iterations == 13:
            raise KeyboardInterrupt
        return {"value": float(cell.seed**2 + (cell.row == "b"))}


def test_a_finished_cell_is_not_done_again_and_more_seeds_are_added(tmp_path: Path) -> None:
    table = Squares()
    run_cells(table, Options(seeds=(1, 2)), tmp_path)
    assert len(table.done) == 4
    results = run_cells(table, Options(seeds=(1, 2, 3)), tmp_path)
    assert len(table.done) == 6
    assert [r.figures["value"] for r in results] == [1, 2, 4, 5, 9, 10]


def test_an_interruption_keeps_what_was_done(tmp_path: Path) -> None:
    table, options = Squares(), Options(seeds=(1, 2), iterations=13)
    with pytest.raises(KeyboardInterrupt):
        run_cells(table, options, tmp_path)
    results = run_cells(table, options, tmp_path)
    assert table.done.count("x--a--seed-1") == 1 and table.done.count("x--a--seed-2") == 2
    assert [r.figures["value"] for r in results] == [1, 2, 4, 5]


def test_a_folder_made_under_another_plan_is_refused(tmp_path: Path) -> None:
    run_cells(Squares(), Options(iterations=1), tmp_path)
    with pytest.raises(BadInput, match=r"iterations = 1, now it is 2.*--out"):
        run_cells(Squares(), Options(iterations=2), tmp_path)


def test_a_damaged_result_is_told(tmp_path: Path) -> None:
    run_cells(Squares(), Options(), tmp_path)
    (tmp_path / "cells" / "x--a--seed-0" / "result.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        run_cells(Squares(), Options(), tmp_path)


def test_options_that_a_table_does_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--digits"):
        run_cells(Squares(), Options(digits=(4,)), tmp_path)
    with pytest.raises(BadInput, match="either minutes or iterations must be given, got both"):
        find_table("generation").check(Options(minutes=1.0, iterations=5))
    with pytest.raises(BadInput, match="positive"):
        find_table("generation").check(Options(minutes=-1.0))


def test_the_table_shows_mean_spread_and_the_papers_figure(tmp_path: Path) -> None:
    table = Squares()
    results = run_cells(table, Options(seeds=(1, 2, 3)), tmp_path)
    shown, files = show(table, results, tmp_path, "damc reproduce squares", "a remark")
    row = dict(zip(shown[0].head, shown[0].rows[1], strict=True))
    spread = statistics.stdev([2, 5, 10])
    assert row == {"": "b", "a value": f"{17 / 3:.3g} ± {spread:.2g} (7)"}
    assert all(path.stat().st_size > 0 for path in files)
    with (tmp_path / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["value"]) for line in lines] == [1, 2, 4, 5, 9, 10]
    assert [line["paper"] for line in lines] == ["", "7.0"] * 3
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["command"] == "damc reproduce squares" and kept["note"] == "a remark"
    assert "a remark" in (tmp_path / "table.md").read_text()


def test_every_table_has_cells_whose_names_and_methods_exist() -> None:
    for name in TABLES:
        table = find_table(name)
        table.check(Options())
        cells = table.cells(Options(seeds=(0, 1)))
        assert len({cell.name for cell in cells}) == len(cells) > 1
        assert {cell.seed for cell in cells} == {0, 1}
        for cell in cells:
            if "preset" in cell.plan:
                assert find_preset(cell.plan["preset"])
        if name in ("generation", "anomaly", "ablation", "latent-spaces"):
            assert {cell.row for cell in cells} <= {*METHODS, *BASELINES}


def test_likelihoods_are_estimated_only_if_asked_for(tmp_path: Path) -> None:
    asked = Options(methods=("vae",), data=("digits",), iterations=2, images=50, likelihood=True)
    with_it = run_cells(find_table("generation"), asked, tmp_path / "a")[0].figures
    without = run_cells(find_table("generation"), replace(asked, likelihood=False), tmp_path / "b")
    assert set(with_it) - set(without[0].figures) == {"log_prob"}


def test_the_run_of_a_cell_can_be_evaluated(tmp_path: Path) -> None:
    options = Options(methods=("vae",), data=("digits",), iterations=2, images=50)
    figures = run_cells(find_table("generation"), options, tmp_path)[0].figures
    run = next((tmp_path / "cells").glob("digits--vae--*/run"))
    found, _ = evaluate_run(Trained.open(run), features="pixel-pca", n=50, cache=tmp_path)
    assert found.reconstruction is not None
    assert float(found.reconstruction.mse.mean()) == pytest.approx(figures["mse"], rel=0.01)


def test_there_is_no_such_table() -> None:
    with pytest.raises(BadInput, match="did you mean 'generation'"):
        find_table("generatoin")


def test_capacity_and_steps_change_what_they_say() -> None:
    preset = find_preset("mnist-5k-small")
    quarter = Capacity().changed(preset, "f=1/4")
    assert quarter.networks.amortizer["capacity"] == preset.networks.amortizer["capacity"] / 4
    assert Steps().changed(preset, "T=50").recipe.posterior_steps == 50


def test_momentum_and_speedups_change_what_they_say() -> None:
    preset = find_preset("mnist-5k-small")
    short = DAMC.from_preset(Steps().changed(preset, "T=10, underdamped"))
    step_size = preset.recipe.damc["posterior_step_size"]
    assert short.posterior_chain.kernel == Underdamped(step_size, 10, friction=10.0)
    assert Steps().changed(preset, "T=10").recipe.posterior_kernel == "langevin"
    exact = Speedups().changed(preset, "exact").recipe
    assert (exact.start_solver, exact.start_steps, exact.posterior_steps) == ("ancestral", 100, 30)
    cheap = Speedups().changed(preset, "all three").recipe
    assert (cheap.start_steps, cheap.encoder_updates, cheap.posterior_steps) == (10, 1, 10)
    one = Speedups().changed(preset, "encoder in 1 of 6 updates").recipe
    assert replace(one, encoder_updates=None) == exact


def test_an_unknown_kernel_is_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="posterior_kernel must be 'langevin' or 'underdamped'"):
        replace(find_preset("mnist-5k-small").recipe, posterior_kernel="hmc")


def test_minutes_are_planned_once_and_kept(tmp_path: Path) -> None:
    preset, images = find_preset("digits-small"), load_images("digits")
    changes = {"posterior_steps": 1, "prior_steps": 1, "updates": 1, "start_steps": 1}
    budget = Budget(minutes=0.005)
    folder = tmp_path / "one"
    folder.mkdir()
    first, took = train(preset, "damc", images, folder, budget, batch=8, changes=changes)
    planned = json.loads((folder / "budget.json").read_text())
    expected = max(24, int(0.3 / (planned["products_each"] * planned["seconds"])))
    assert took["iterations"] == planned["iterations"] == expected
    assert first.settings.horizon == planned["iterations"]
    (folder / "budget.json").write_text(json.dumps({"iterations": planned["iterations"]}))
    again, _ = train(preset, "damc", images, folder, budget, batch=8, changes=changes)
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(BadInput, match="either"):
        Budget()


@pytest.mark.filterwarnings("ignore:iteration.*reconstructions are worse")  # nothing is learned
def test_minutes_are_those_of_the_tables_first_cell(tmp_path: Path) -> None:
    """A machine that has become a thousand times slower since then gives no fewer iterations."""
    preset, images = find_preset("digits-small"), load_images("digits")
    changes = {"posterior_steps": 1, "prior_steps": 1, "updates": 1, "start_steps": 1}
    (tmp_path / "product.json").write_text("1e-6")
    folder = tmp_path / "one"
    folder.mkdir()
    budget = Budget(minutes=0.000001)
    train(preset, "damc-paper", images, folder, budget, batch=8, changes=changes)
    planned = json.loads((folder / "budget.json").read_text())
    assert planned["seconds"] == 1e-6
    assert planned["iterations"] == max(24, int(0.00006 / (planned["products_each"] * 1e-6)))
    assert planned["iterations"] > 24


def test_the_first_of_several_values_stays(tmp_path: Path) -> None:
    path = tmp_path / "product.json"
    assert [_first(path, value) for value in (0.25, 0.5)] == [0.25, 0.25]
    assert [file.name for file in tmp_path.iterdir()] == ["product.json"]


def test_rows_of_chain_lengths_come_before_what_damc_does_of_its_own() -> None:
    preset = find_preset("svhn-small")
    assert DAMC.from_preset(preset).settings.posterior_steps == 5
    assert PaperDAMC.from_preset(preset).settings.posterior_steps == 10
    assert LEBM.from_preset(preset).settings.posterior_steps == 20
    assert DAMC.from_preset(preset, posterior_steps=7).settings.posterior_steps == 7
    changed = DAMC.from_preset(Steps().changed(preset, "T=50"))
    assert changed.settings.posterior_steps == 50 and changed.settings.decoder_updates == 2
    exact = PaperDAMC.from_preset(Speedups().changed(preset, "exact"))
    assert exact.settings.posterior_steps == 30 and exact.settings.encoder_updates is None


@pytest.mark.parametrize("name", ["svhn-small", "mnist-5k-small", "svhn"])
def test_speedups_are_those_of_the_paper_s_algorithm(name: str) -> None:
    """On small presets damc has other chains and updates, and a q(z) beside the amortizer."""
    preset = find_preset(name)
    for row in Speedups.values:
        changed = Speedups().changed(preset, row)
        settings = METHODS[Speedups.method].settings_from(changed.recipe)
        assert settings.updates == 6, row  # of "encoder in 1 of 6 updates"
        assert settings.posterior_steps == (10 if row[-4:] in ("oves", "hree") else 30), row
        assert not (settings.warm_up or settings.centered), row
    assert METHODS[Capacity.method].settings_from(preset.recipe).store == 0


def test_other_processes_cost_a_cell_no_iterations() -> None:
    """On a CPU the time of a budget is that of the process: waiting does not count."""
    before = _now(torch.device("cpu"))
    time.sleep(0.3)
    assert _now(torch.device("cpu")) - before < 0.1


@pytest.mark.parametrize(
    ("budget", "grows"),
    [(1.0, 0.0), (1e9, 0.0), (1e9, 3.0)],
)
def test_what_is_done_once_costs_a_cell_no_iterations(
    budget: float, grows: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 2 seconds, one of a minute in the middle of every schedule, one of an hour ever.

    The minute may grow with the first 30 iterations before it: then only long pilots are right.
    """
    clock = [0.0]
    hours = [3600.0]

    class Once:
        def __init__(self, horizon: int) -> None:
            self.iteration, self.horizon = 0, horizon

        def to(self, device: torch.device) -> None:
            pass

        def step(self, *_: object) -> None:
            middle = self.iteration == self.horizon // 2
            clock[0] += 60.0 + grows * min(self.iteration, 30) if middle else 2.0
            if middle and hours:
                clock[0] += hours.pop()
            self.iteration += 1

    def now(_: torch.device) -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(training, "_now", now)
    images = load_images(torch.rand(40, 1, 8, 8) * 2 - 1)
    each, product = training._worth(Once, images, 8, 0, budget)  # type: ignore[arg-type]
    assert product == 1 / 4  # a tick for four products
    assert each * product == pytest.approx(2 + 1)


def test_slug() -> None:
    assert slug("damc's defaults, f=1/4") == "damc-s-defaults-f=1-4"
