"""The page in Debian's Chromium, headless: served once, a fresh browser context for each test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import damc
from damc.randomness import global_seed

WAIT = 240_000  # milliseconds: two busy cores, and nothing is gained by giving up early
PICTURES = os.environ.get("DAMC_SCREENSHOTS")
"""Folder for the screenshots of the documentation, if they are wanted."""


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of 8x8 digits; DAMC_BROWSER_RUN names a better one."""
    given = os.environ.get("DAMC_BROWSER_RUN")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("browser") / "digits"
    with global_seed(0):
        learner = damc.DAMC.from_preset("digits-small")
    damc.fit(learner, "digits", iterations=20, batch=64, run=folder, progress=False)
    return folder


@pytest.fixture(scope="session")
def url(run_folder: Path) -> Iterator[str]:
    """The address of a page that `damc app` serves; it must be up to the end."""
    pytest.importorskip("gradio", reason="damc[app] is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "damc", "app", str(run_folder), "--port", str(port)]
    server = subprocess.Popen([*command, "--threads", "1"])
    address = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(address, timeout=5).read()
            break
        except OSError:
            assert server.poll() is None, "damc app ended by itself"
            time.sleep(1)
    yield address
    alive = server.poll() is None
    server.terminate()
    server.wait(30)
    assert alive, "the page went down"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page, open; a console error or a request to another host fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 1000})
    yield from opened(context, url)


@pytest.fixture
def phone(browser: Any, url: str) -> Iterator[Any]:
    """The same on a narrow screen."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    yield from opened(context, url)


def opened(context: Any, url: str) -> Iterator[Any]:
    context.set_default_timeout(WAIT)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: errors.append(f"asks {r.url}") if _outside(r.url, url) else None)
    page.goto(url)
    page.get_by_role("tab", name="Generate").wait_for()
    yield page
    page.wait_for_timeout(200)
    context.close()
    refused = "413"  # what the browser itself prints for a file that is too large
    assert [error for error in errors if refused not in error] == []


def _outside(asked: str, url: str) -> bool:
    return not asked.startswith((url, "data:", "blob:"))


def shoot(page: Any, name: str) -> None:
    """Keeps a screenshot, if they are wanted."""
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)
