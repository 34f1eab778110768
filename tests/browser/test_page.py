"""Every tab, used as a person would."""

from __future__ import annotations

import math
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.test_uploads import huge_png
from tests.browser.conftest import shoot

pytestmark = pytest.mark.browser


def _tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def _pictures(page: Any, label: str) -> Any:
    return page.get_by_role("tabpanel").locator(f"img[alt='{label}']:visible")


def _upload(page: Any, where: Any, files: Any) -> None:
    with page.expect_response(lambda answer: "/upload?" in answer.url):
        where.set_input_files(files)
    page.wait_for_timeout(1500)  # the page takes note of what the server has


def _source(page: Any, label: str) -> str:
    shown = _pictures(page, label)
    shown.wait_for()
    return str(shown.get_attribute("src"))


def test_generate_shows_both_sources_and_repeats_by_seed(page: Any) -> None:
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("16 by the amortizer and 16 by the energy").wait_for()
    first = _source(page, "Amortizer"), _source(page, "Energy")
    assert all(first)
    shoot(page, "app-generate")
    page.get_by_role("button", name="Walk along a chain").click()
    page.get_by_text("step 60 of 60 from N(0, I)").wait_for()
    # 60 steps from the same seed end at the very samples of the energy.
    page.wait_for_timeout(1000)
    assert _source(page, "Energy") == first[1]


def test_a_drawn_digit_is_reconstructed(page: Any) -> None:
    _tab(page, "Reconstruct")
    page.get_by_role("button", name="Reconstruct the drawing").click()
    page.get_by_text("a digit must be drawn first").first.wait_for()
    canvas = page.locator("canvas:visible").first
    canvas.wait_for()
    page.get_by_role("button", name="Brush").or_(page.get_by_label("Draw button")).first.click()
    box = canvas.bounding_box()
    middle, side = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), 80
    page.mouse.move(middle[0] + side, middle[1])
    page.mouse.down()
    for k in range(25):
        angle = 2 * math.pi * k / 24
        page.mouse.move(
            middle[0] + side * math.cos(angle), middle[1] + side * math.sin(angle), steps=2
        )
    page.mouse.up()
    page.wait_for_timeout(1000)
    page.get_by_role("button", name="Reconstruct the drawing").click()
    page.get_by_text("squared error of the mean").wait_for()
    assert _source(page, "Posterior samples")
    shoot(page, "app-reconstruct")


def test_a_folder_is_fitted_and_an_odd_picture_found(page: Any, tmp_path: Path) -> None:
    random, folder = np.random.default_rng(0), tmp_path / "normal"
    folder.mkdir()
    for k in range(24):
        pixels = random.normal(100, 5, (16, 16)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{k:02d}.png")
    odd = np.full((16, 16), 100, np.uint8)
    odd[6:10, 6:10] = 255
    Image.fromarray(odd).save(tmp_path / "odd.png")
    _tab(page, "Anomalies")
    inputs = page.locator("input[type=file]:not([disabled])")
    folder_input = page.locator("input[type=file][webkitdirectory]").first
    _upload(page, folder_input, str(folder))
    page.get_by_role("button", name="Fit a detector").click()
    page.get_by_text("fitted to 24 pictures of 1x16x16 numbers").wait_for()
    _upload(page, inputs.last, [str(tmp_path / "odd.png"), str(folder / "00.png")])
    page.get_by_role("button", name="Score").click()
    page.get_by_text("of 2 score above the threshold").wait_for()
    assert page.locator(".damc-table td").first.inner_text() == "odd.png"


def test_the_example_finds_digits_that_are_no_sevens(page: Any) -> None:
    _tab(page, "Anomalies")
    page.get_by_role("button", name="Example").click()
    page.get_by_text("of 12 score above the threshold").wait_for()
    assert _source(page, "Each picture above its heat map")
    shoot(page, "app-anomalies")


def test_a_density_is_sampled_in_every_way_and_can_be_stopped(page: Any) -> None:
    _tab(page, "Density")
    text = page.get_by_label("log p(x, y)")
    text.fill("logsumexp(-(x-2)^2 - y^2, -(x+2)^2 - y^2)")
    page.get_by_role("button", name="Sample it").click()
    page.get_by_text("Trusted: all checks passed").wait_for()
    page.get_by_text("log evidence on the grid: 1.8").wait_for()
    shoot(page, "app-density")
    page.get_by_role("button", name="Sample it").click()
    page.get_by_text("amortized sampler").first.wait_for()
    page.get_by_role("button", name="Stop").last.click()
    page.get_by_text("stopped").wait_for()
    page.wait_for_timeout(3000)
    assert page.get_by_text("Trusted: all checks passed").count() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('true')", "must be made of numbers"),
        ("__import__(x)", "functions must be among"),
        ("x.__class__", "must be made of numbers"),
        ("(" * 10_000 + "x" + ")" * 10_000, "at most 1,000 characters, got 20,001"),
        ("log(-x^2 - 1)", "log-density"),
    ],
)
def test_hostile_expressions_are_refused_in_words(page: Any, text: str, said: str) -> None:
    _tab(page, "Density")
    page.get_by_label("log p(x, y)").fill(text)
    page.get_by_role("button", name="Sample it").click()
    page.get_by_text(said).first.wait_for()
    page.get_by_label("log p(x, y)").fill("-x^2 - y^2")  # and the page goes on
    page.get_by_role("button", name="Sample it").click()
    page.get_by_text("annealing").first.wait_for()


def test_hostile_uploads_are_refused_in_words(page: Any, tmp_path: Path) -> None:
    _tab(page, "Reconstruct")
    fake, large = tmp_path / "model.png", tmp_path / "large.png"
    fake.write_bytes(pickle.dumps({"a": 1}))
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    huge = huge_png(tmp_path / "huge.png")
    for path, said in (
        (huge, "huge.png is not a readable picture"),
        (fake, "model.png is not a readable picture"),
    ):
        chosen = page.get_by_role("tabpanel").locator("input[type=file]:not([webkitdirectory])")
        _upload(page, chosen.last, str(path))
        page.get_by_role("button", name="Reconstruct the picture").click()
        page.get_by_text(said).last.wait_for()
        page.get_by_label("Clear").or_(page.get_by_label("Remove this file")).first.click()
    chosen = page.get_by_role("tabpanel").locator("input[type=file]:not([webkitdirectory])")
    chosen.last.set_input_files(str(large))
    page.get_by_text("exceeds").first.wait_for()
    _tab(page, "Generate")
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("16 by the amortizer").wait_for()


def test_it_fits_a_narrow_screen(phone: Any) -> None:
    width = "document.documentElement.scrollWidth"
    for name in ("Reconstruct", "Anomalies", "Density", "Generate"):
        tab = phone.get_by_role("tab", name=name)
        if not tab.is_visible():  # behind the menu of further tabs
            phone.locator(".overflow-menu button").first.click()
            tab = phone.locator(".overflow-dropdown").get_by_text(name)
        tab.click()
        phone.wait_for_timeout(300)
        assert phone.evaluate(width) <= 390, f"{name} is wider than the screen"
        shoot(phone, f"app-phone-{name.lower()}")


def test_the_keyboard_is_enough(page: Any) -> None:
    page.get_by_role("tab", name="Generate").focus()
    page.keyboard.press("Tab")
    for _ in range(60):
        focused = page.evaluate("document.activeElement.innerText")
        if focused and focused.strip() == "Generate" and _is_button(page):
            break
        page.keyboard.press("Tab")
    else:
        raise AssertionError("the button cannot be reached by the keyboard")
    page.keyboard.press("Enter")
    page.get_by_text("16 by the amortizer").wait_for()


def _is_button(page: Any) -> bool:
    return bool(
        page.evaluate(
            "document.activeElement.tagName === 'BUTTON' && "
            "document.activeElement.getAttribute('role') !== 'tab'"
        )
    )


def test_eight_tabs_at_once_do_not_mix(browser: Any, url: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(240_000)
    pages = []
    for seed in range(8):
        page = context.new_page()
        page.goto(url)
        page.get_by_role("tab", name="Generate").wait_for()
        page.get_by_label("Seed").first.fill(str(seed % 4))
        pages.append(page)
    end, rounds = time.monotonic() + 60, 0
    while time.monotonic() < end or rounds < 1:
        before = [page.locator("img[alt='Amortizer']").count() for page in pages]
        assert len(set(before)) == 1
        for page in pages:
            page.get_by_role("button", name="Generate").click()
        for page in pages:
            page.get_by_text("16 by the amortizer").wait_for()
        rounds += 1
    found = [_bytes(page, _source(page, "Amortizer")) for page in pages]
    for seed in range(4):  # two tabs of one seed agree, those of others differ
        assert found[seed] == found[seed + 4]
    assert len(set(found)) == 4
    assert all(page.get_by_text("Error").count() == 0 for page in pages)
    context.close()


def _bytes(page: Any, address: str) -> bytes:
    return bytes(page.context.request.get(address).body())
