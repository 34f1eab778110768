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

WAIT = 180_000  # milliseconds: two busy cores, and nothing is gained by giving up early
PICTURES = os.environ.get("DAMC_SCREENSHOTS")
"""Folder for the screenshots of the documentation, if they are wanted."""


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a page that `damc app` serves, with the packaged models; it stays up."""
    pytest.importorskip("gradio", reason="damc[app] is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "damc", "app", "--port", str(port), "--threads", "1"]
    server = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(address, timeout=5).read()
            break
        except OSError:
            assert server.poll() is None, "damc app ended by itself"
            time.sleep(1)
    else:
        server.kill()
        pytest.fail("damc app did not answer")
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
    """A page of the context; after the test its errors must be none."""
    context.set_default_timeout(WAIT)
    page = context.new_page()
    errors = watch_errors(page, url)
    page.goto(url)
    page.get_by_role("tab", name="Generate").wait_for()
    yield page
    page.wait_for_timeout(200)
    context.close()
    assert errors == []


def watch_errors(page: Any, url: str) -> list[str]:
    """Collects console errors, exceptions and requests to other hosts, as they come."""
    errors: list[str] = []

    def request(asked: Any) -> None:
        if not asked.url.startswith((url, "data:", "blob:")):
            errors.append(f"asks {asked.url}")

    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", request)
    return errors


def shoot(page: Any, name: str) -> None:
    """Keeps a screenshot, if they are wanted."""
    if PICTURES:
        page.mouse.move(0, 0)  # nothing is shown as pointed at
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)
