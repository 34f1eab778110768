"""Every tab, used as a person would."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.browser.actions import clear, open_tab, press, set_seed, source, upload
from tests.browser.conftest import shoot

pytestmark = pytest.mark.browser


def test_generate_shows_both_sources_and_repeats_by_seed(page: Any) -> None:
    press(page, "Generate")
    page.get_by_text("32 by the amortizer and 32 by the energy").wait_for()
    first = source(page, "Amortizer"), source(page, "Energy")
    shoot(page, "app-generate")
    press(page, "Walk along a chain")
    page.get_by_text("step 60 of 60 from N(0, I)").wait_for()
    page.wait_for_timeout(1000)
    # 60 steps from the same seed end at the very samples of the energy.
    assert source(page, "Energy") == first[1]
    set_seed(page, 1)
    press(page, "Generate")
    page.get_by_text("32 by the amortizer and 32 by the energy").wait_for()
    page.wait_for_timeout(1000)
    assert source(page, "Amortizer") != first[0] and source(page, "Energy") != first[1]


def test_another_model_is_chosen(page: Any) -> None:
    page.get_by_label("Model").first.click()
    page.get_by_role("option", name="digits-small").click()
    press(page, "Generate")
    page.get_by_text("32 by the amortizer").wait_for()
    assert source(page, "Amortizer")


def test_a_drawn_digit_is_reconstructed(page: Any) -> None:
    open_tab(page, "Reconstruct")
    press(page, "Reconstruct the drawing")
    page.get_by_text("a digit must be drawn first").first.wait_for()
    page.get_by_label("Close").first.click()
    canvas = page.locator("#drawing canvas").first
    canvas.wait_for()
    page.locator("#drawing").get_by_label("Brush").click()
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(middle[0] + 50, middle[1])
    page.mouse.down()
    for k in range(25):
        angle = 2 * math.pi * k / 24
        page.mouse.move(middle[0] + 50 * math.cos(angle), middle[1] + 80 * math.sin(angle), steps=2)
    page.mouse.up()
    page.wait_for_timeout(1000)
    press(page, "Reconstruct the drawing")
    said = page.get_by_text("squared error of the mean")
    said.wait_for()
    assert float(said.inner_text().split()[5]) < 0.2  # an empty image is at about 0.35
    assert source(page, "Posterior samples")
    shoot(page, "app-reconstruct")


def test_a_picture_of_ones_own_is_reconstructed(page: Any, tmp_path: Path) -> None:
    pixels = np.full((64, 64), 255, np.uint8)
    pixels[12:52, 28:36] = 0  # a one, dark on light
    Image.fromarray(pixels).save(tmp_path / "one.png")
    open_tab(page, "Reconstruct")
    upload(page, "own-picture", str(tmp_path / "one.png"))
    page.get_by_label("Invert: take light for dark").check()
    press(page, "Reconstruct the picture")
    said = page.get_by_text("squared error of the mean")
    said.wait_for()
    assert float(said.inner_text().split()[5]) < 0.2


def test_a_folder_is_fitted_and_an_odd_picture_found(page: Any, tmp_path: Path) -> None:
    random, folder = np.random.default_rng(0), tmp_path / "normal"
    folder.mkdir()
    for k in range(120):
        x, y = random.integers(2, 6, 2)
        pixels = random.normal(60, 6, (24, 24))
        pixels[y : y + 14, x : x + 14] += 120  # plates that lie in different places
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{k:03d}.png")
    scratched = pixels.copy()
    scratched[8:12, 6:16] = 0
    Image.fromarray(scratched.clip(0, 255).astype(np.uint8)).save(tmp_path / "scratched.png")
    open_tab(page, "Anomalies")
    upload(page, "normal-pictures", str(folder))
    press(page, "Fit")
    page.locator("progress").first.wait_for()
    page.get_by_text("fitted to 120 pictures of 1x24x24 numbers").wait_for()
    files = [str(tmp_path / "scratched.png"), *(str(folder / f"{k:03d}.png") for k in range(7))]
    upload(page, "other-pictures", files)
    press(page, "Score")
    page.get_by_text("of 8 score above the threshold").wait_for()
    first = page.locator(".damc-table tr").nth(1).locator("td").all_inner_texts()
    assert first[0] == "scratched.png" and first[3] == "yes"
    assert source(page, "Each picture above its heat map")
    shoot(page, "app-anomalies")
    clear(page, "other-pictures")
    press(page, "Score")
    page.get_by_text("pictures must be given, got none").first.wait_for()


def test_the_example_finds_digits_that_are_no_sevens(page: Any) -> None:
    open_tab(page, "Anomalies")
    press(page, "Score")
    page.get_by_text("a detector must be fitted first").first.wait_for()
    press(page, "Example")
    page.get_by_text("of 12 score above the threshold").wait_for()
    rows = page.locator(".damc-table tr").all_inner_texts()[1:]
    assert all(row.startswith("digit 7") == row.endswith("no") for row in rows)


def test_a_density_is_sampled_in_every_way(page: Any) -> None:
    open_tab(page, "Density")
    page.get_by_label("log p(x, y)").fill("logsumexp(-(x-2)^2 - y^2, -(x+2)^2 - y^2)")
    press(page, "Sample it")
    page.get_by_text("Trusted: all checks passed").wait_for()
    page.get_by_text("log evidence on the grid: 1.8").wait_for()
    assert page.locator(".damc-table tr").count() == 6  # a head and five ways
    shoot(page, "app-density")


def test_an_example_of_a_density_is_picked(page: Any) -> None:
    open_tab(page, "Density")
    page.get_by_label("Example").filter(visible=True).click()
    page.get_by_role("option", name="ring").click()
    text = page.get_by_label("log p(x, y)")
    page.wait_for_function("t => t.value.includes('sqrt')", arg=text.element_handle())
    press(page, "Sample it")
    page.get_by_text("exact draws").wait_for()


def test_a_long_job_is_stopped_and_another_one_runs(page: Any) -> None:
    open_tab(page, "Density")
    press(page, "Stop")
    page.get_by_text("nothing runs").wait_for()
    press(page, "Sample it")
    page.locator(".damc-table").get_by_text("annealing").wait_for()
    press(page, "Stop")
    page.get_by_text("stopped", exact=True).wait_for()
    page.wait_for_timeout(3000)  # and it says nothing more
    assert page.get_by_text("stopped", exact=True).is_visible()
    assert page.get_by_text("log evidence by damc.sample").count() == 0
    page.get_by_label("log p(x, y)").fill("-x^2 - y^2")
    press(page, "Sample it")
    page.get_by_text("Trusted: all checks passed").wait_for()
