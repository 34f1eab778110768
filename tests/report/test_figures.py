"""Figures: they show what they are given, are saved where asked, and leave pyplot alone."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import damc.report.figures
from damc import BadInput, History
from damc.report.figures import curves, images, pairs
from damc.report.history import TrainingHistory

RECORDS = [{"iteration": 10 * k, "mse": 1.0 / k, "seconds": k} for k in range(1, 60)]


def test_curves_draw_the_values_and_their_running_mean(tmp_path: Path) -> None:
    figure = curves(RECORDS, ["mse"], path=tmp_path / "new" / "c.png")
    assert isinstance(figure, Figure)
    raw, mean = figure.axes[0].get_lines()
    assert np.allclose(raw.get_ydata(), [1 / k for k in range(1, 60)])
    assert list(raw.get_xdata()) == [10.0 * k for k in range(1, 60)]
    assert len(mean.get_ydata()) == 59
    assert Image.open(tmp_path / "new" / "c.png").size[0] > 100


def test_the_running_mean_is_the_mean_of_what_is_there() -> None:
    y = np.random.default_rng(0).normal(size=31)
    wanted = [y[max(0, i - 3) : i + 4].mean() for i in range(31)]
    assert np.allclose(damc.report.figures._running_mean(y, 7), wanted, atol=1e-12)
    assert np.allclose(damc.report.figures._running_mean(np.full(9, 2.0), 4), 2.0)


def test_a_notebook_shows_the_figure() -> None:
    """IPython asks for `_repr_png_`; matplotlib's own figures have none before pyplot is loaded."""
    shown = curves(RECORDS)._repr_png_()  # type: ignore[attr-defined]
    assert Image.open(io.BytesIO(shown)).format == "PNG"


def test_images_are_drawn_in_order_and_clipped() -> None:
    x = torch.tensor([-1.0, 1.0, 3.0]).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    figure = images(x, columns=2, labels=["a", "b", "c"])
    tiles = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [int(np.asarray(tile).max()) for tile in tiles] == [0, 255, 255]
    assert [axes.get_title() for axes in figure.axes if axes.images] == ["a", "b", "c"]


def test_pairs_belong_together() -> None:
    x = torch.zeros(3, 3, 4, 6)
    figure = pairs(x, x + 1, names=("x", "y"))
    assert len(figure.axes) == 6
    assert (figure.axes[0].get_ylabel(), figure.axes[3].get_ylabel()) == ("x", "y")
    with pytest.raises(BadInput, match="must have the shape of those above"):
        pairs(x, x[:2])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: images(torch.zeros(2, 2, 4, 4)), r"images must have shape \(N, 1 or 3, H, W\)"),
        (lambda: images(torch.full((1, 1, 4, 4), torch.nan)), "images must be finite"),
        (lambda: images(torch.zeros(2, 1, 4, 4), labels=["a"]), "labels must be as many as the 2"),
        (lambda: images(torch.zeros(2, 1, 4, 4), columns=0), "columns must be at least 1"),
        (lambda: curves(RECORDS, ["lost"]), "keys must be among the numbers"),
    ],
)
def test_bad_input_is_one_sentence(call: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()  # type: ignore[operator]


def test_history_of_distill_plots_every_quantity(tmp_path: Path) -> None:
    history = History([3.0, 2.0], [-1.0, -0.5], [0.1, 0.2], [], 400)
    figure = history.plot(tmp_path / "h.png")
    assert [a.get_title() for a in figure.axes] == ["loss", "log prob", "displacement"]
    assert list(figure.axes[0].get_lines()[0].get_ydata()) == [3.0, 2.0]
    assert (tmp_path / "h.png").is_file()
    assert repr(history) == "History(2 iterations, last loss 2, 400 gradient calls)"
    with pytest.raises(BadInput, match="history must have an iteration to plot, got none"):
        History().plot()


def test_history_of_a_learner_plots_the_metrics_asked_for() -> None:
    history = TrainingHistory(RECORDS)
    assert [a.get_title() for a in history.plot().axes] == ["mse"]  # seconds are no metric
    assert history.values("mse")[:2] == [1.0, 0.5]
    with pytest.raises(BadInput, match=r"name must be a metric \(mse\), got 'loss'"):
        history.values("loss")
    with pytest.raises(BadInput, match="train the learner first"):
        TrainingHistory().plot()


def test_no_figure_loads_pyplot() -> None:
    import subprocess

    code = (
        "import sys, damc.report.figures; damc.report.figures.curves([{'a': 1.0}]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
