"""What a person does on the page."""

from __future__ import annotations

from typing import Any


def open_tab(page: Any, name: str) -> None:
    """Goes to a tab, by the menu of further tabs where the screen is too narrow for all."""
    tab = page.get_by_role("tab", name=name)
    if not tab.is_visible():
        page.locator(".overflow-menu button").first.click()
        tab = page.locator(".overflow-dropdown").get_by_text(name)
    tab.click()
    page.wait_for_timeout(300)


def press(page: Any, name: str) -> None:
    """Presses a button of the open tab."""
    panel = page.get_by_role("tabpanel").filter(visible=True)
    panel.get_by_role("button", name=name, exact=True).click()


def upload(page: Any, place: str, files: str | list[str]) -> None:
    """Gives files to one of the places for them, and waits until the page lists them."""
    with page.expect_response(lambda answer: "/upload?" in answer.url):
        page.locator(f"#{place} input[type=file]").set_input_files(files)
    page.locator(f"#{place} table").wait_for()


def clear(page: Any, place: str) -> None:
    """Takes the files back."""
    page.locator(f"#{place}").get_by_label("Clear").click()
    page.locator(f"#{place} input[type=file]").wait_for(state="attached")


def source(page: Any, label: str) -> str:
    """The address of the picture with that label, once it is there."""
    shown = page.locator(f"img[alt='{label}']:visible")
    shown.wait_for()
    return str(shown.get_attribute("src"))


def set_seed(page: Any, seed: int) -> None:
    """Sets the seed of the open tab."""
    field = page.get_by_label("number input for Seed").filter(visible=True)
    field.fill(str(seed))
    field.press("Enter")
