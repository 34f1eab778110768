"""What the page must withstand: hostile input, narrow screens, the keyboard alone, many tabs."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_uploads import huge_png
from tests.browser.actions import clear, open_tab, press, set_seed, source, upload
from tests.browser.conftest import WAIT, shoot, watch_errors

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('true')", "must be made of numbers"),
        ("__import__(x)", "functions must be among"),
        ("x.__class__", "must be made of numbers"),
        ("(" * 10_000 + "x" + ")" * 10_000, "at most 1,000 characters, got 20,001"),
        ("(" * 400 + "x" + ")" * 400, "nested at most 40 deep"),
        ("<img src=x onerror=alert(1)>", "must be made of numbers"),
        ("log(-x^2 - 1)", "log-density"),
    ],
    ids=["import", "call", "attribute", "brackets", "depth", "markup", "nowhere"],
)
def test_hostile_expressions_are_refused_in_words(page: Any, text: str, said: str) -> None:
    open_tab(page, "Density")
    page.get_by_label("log p(x, y)").fill(text)
    press(page, "Sample it")
    page.get_by_text(said).first.wait_for()
    page.get_by_label("log p(x, y)").fill("-x^2 - y^2")  # and the page goes on
    press(page, "Sample it")
    page.locator(".damc-table").get_by_text("annealing").wait_for()


def test_files_that_are_no_pictures_are_refused_in_words(page: Any, tmp_path: Path) -> None:
    open_tab(page, "Reconstruct")
    fake = tmp_path / "model.png"
    fake.write_bytes(pickle.dumps({"a": 1}))
    huge = huge_png(tmp_path / "huge.png")  # 50,000 pixels a side
    for path in (huge, fake):
        upload(page, "own-picture", str(path))
        press(page, "Reconstruct the picture")
        page.get_by_text(f"{path.name} is not a readable picture").last.wait_for()
        clear(page, "own-picture")
    open_tab(page, "Generate")
    press(page, "Generate")
    page.get_by_text("32 by the amortizer").wait_for()


def test_a_file_of_200_megabytes_is_refused_in_words(
    browser: Any, url: str, tmp_path: Path
) -> None:
    # The browser itself prints that a request was refused, so the console is not looked at.
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.goto(url)
    page.get_by_role("tab", name="Generate").wait_for()
    open_tab(page, "Reconstruct")
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    page.locator("#own-picture input[type=file]").set_input_files(str(large))
    page.get_by_text("exceed the maximum allowed size").first.wait_for()
    open_tab(page, "Generate")
    press(page, "Generate")
    page.get_by_text("32 by the amortizer").wait_for()
    context.close()


def test_it_fits_a_narrow_screen(phone: Any) -> None:
    width = "document.documentElement.scrollWidth"
    for name in ("Reconstruct", "Anomalies", "Density", "Generate"):
        open_tab(phone, name)
        assert phone.evaluate(width) <= 390, f"{name} is wider than the screen"
    press(phone, "Generate")
    phone.get_by_text("32 by the amortizer").wait_for()
    assert source(phone, "Amortizer") and phone.evaluate(width) <= 390
    shoot(phone, "app-phone-generate")
    open_tab(phone, "Anomalies")
    press(phone, "Example")
    phone.get_by_text("of 12 score above the threshold").wait_for()
    assert phone.evaluate(width) <= 390
    shoot(phone, "app-phone-anomalies")


def test_the_keyboard_is_enough(page: Any) -> None:
    page.get_by_role("tab", name="Generate").focus()
    _tab_to(page, "Generate")
    page.keyboard.press("Enter")
    page.get_by_text("32 by the amortizer").wait_for()
    page.get_by_role("tab", name="Generate").focus()
    _tab_to(page, "Density", role="tab")
    page.keyboard.press("Enter")
    page.get_by_label("log p(x, y)").wait_for()
    _tab_to(page, "Sample it")
    page.keyboard.press("Enter")
    _tab_to(page, "Stop")
    page.keyboard.press("Enter")
    page.get_by_text("stopped", exact=True).wait_for()


def _tab_to(page: Any, name: str, role: str | None = None) -> None:
    """Presses Tab until a button of that name and role has the focus."""
    reached = (
        "([name, role]) => { const at = document.activeElement; return at.tagName === 'BUTTON'"
        " && at.getAttribute('role') === role && at.innerText.trim() === name; }"
    )
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(reached, [name, role]):
            return
    raise AssertionError(f"{name} cannot be reached by the keyboard")


def test_eight_tabs_at_once_do_not_mix(browser: Any, url: str) -> None:
    """For a minute eight tabs of one browser generate: one seed, one picture, whoever asks."""
    context = browser.new_context()
    context.set_default_timeout(WAIT)
    pages, errors = [], []
    for seed in range(8):
        page = context.new_page()
        errors.append(watch_errors(page, url))
        page.goto(url)
        page.get_by_role("tab", name="Generate").wait_for()
        set_seed(page, seed % 4)
        pages.append(page)
    end, rounds, before = time.monotonic() + 60, 0, [""] * 8
    while time.monotonic() < end:
        for k, page in enumerate(pages):  # seeds differ between rounds, so pictures have to change
            set_seed(page, 10 * rounds + k % 4)
            press(page, "Generate")
        for k, page in enumerate(pages):
            page.wait_for_function(
                "old => { const shown = document.querySelector(\"img[alt='Amortizer']\");"
                " return shown && shown.src && shown.src !== old; }",
                arg=before[k],
            )
        before = [source(page, "Amortizer") for page in pages]
        found = [context.request.get(address).body() for address in before]
        for seed in range(4):  # two tabs of one seed agree, those of others differ
            assert found[seed] == found[seed + 4]
        assert len(set(found)) == 4
        rounds += 1
    assert rounds >= 2
    assert all(page.get_by_text("Error").count() == 0 for page in pages)
    assert errors == [[]] * 8
    context.close()
