"""What a package index shows, and that settings of tools name files and packages that exist."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import damc

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("damc_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = "[a](docs/a.md#b) ![c](docs/c.png) [d](https://d.org/e.md) [f](#g) [h](mailto:h@i.org)"


def test_links_become_absolute(build: ModuleType) -> None:
    assert build.long_description(TEXT, "https://x.org/damc/", "1.2") == (
        "[a](https://x.org/damc/blob/v1.2/docs/a.md#b) "
        "![c](https://x.org/damc/raw/v1.2/docs/c.png) "
        "[d](https://d.org/e.md) [f](#g) [h](mailto:h@i.org)"
    )


def test_without_an_address_no_link_leads_nowhere(build: ModuleType) -> None:
    said = build.long_description(TEXT, None, "1.2")
    assert said == "a  [d](https://d.org/e.md) [f](#g) [h](mailto:h@i.org)"


@pytest.mark.parametrize("address", [None, "https://x.org/damc"])
def test_the_readme_leads_nowhere_else(build: ModuleType, address: str | None) -> None:
    said = build.long_description((ROOT / "README.md").read_text(), address, damc.__version__)
    assert said.startswith("# damc")
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", said)


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {damc.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def settings() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def test_every_exception_of_the_linter_has_files() -> None:
    for pattern in settings()["tool"]["ruff"]["lint"]["per-file-ignores"]:
        assert any(ROOT.glob(pattern)), pattern


def test_packages_that_types_are_not_asked_of_are_imported() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "damc").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
    # Loaded by name, so that a missing extra is told in a sentence.
    imported |= set(re.findall(r"import_module\(\"(\w+)", text))
    for override in settings()["tool"]["mypy"]["overrides"]:
        for module in override["module"]:
            assert module.removesuffix(".*") in imported, module


def test_every_extra_is_named_in_the_readme_or_for_contributors() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "Makefile").read_text()
    for extra in settings()["project"]["optional-dependencies"]:
        assert re.search(rf"\b{extra}\b", text), extra
