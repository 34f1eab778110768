"""`damc app`: what it says before it serves anything."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest

from damc.cli import main


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec

    def missing(name: str, package: str | None = None) -> Any:
        return None if name == "gradio" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert main(["app"]) == 2
    assert capsys.readouterr().err == (
        "damc: damc app needs gradio, which is not installed: pip install 'damc[app]'\n"
    )


def test_a_folder_that_is_no_run_is_refused_before_the_page_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    monkeypatch.setattr("damc.cli.app.importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("damc.app.models.packaged", dict)
    assert main(["app", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    assert main(["app", "--port", "99999"]) == 2
    assert "port must lie between 1 and 65535, got 99999" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """No such name; and an address kept for documents."""
    monkeypatch.setattr("damc.cli.app.importlib.util.find_spec", lambda name: object())
    assert main(["app", "--host", host]) == 2
    assert f"could not listen at {host}: " in capsys.readouterr().err


def test_a_port_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("damc.cli.app.importlib.util.find_spec", lambda name: object())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["app", "--port", str(port)]) == 2
    assert f"could not listen at 127.0.0.1, port {port}: " in capsys.readouterr().err
