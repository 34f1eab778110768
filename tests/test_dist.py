"""What a package index shows: a long description without links that lead nowhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

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
