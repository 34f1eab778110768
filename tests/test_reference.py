"""The reference has every public name, each with an example that runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import damc

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path: path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")}


@pytest.mark.parametrize("name", damc.__all__)
def test_every_public_name_has_its_entry_and_an_example(name: str) -> None:
    value = getattr(damc, name)
    entry = re.compile(
        rf"^::: {re.escape(value.__module__)}\.{name}$(.*?)(?=^::: |\Z)", re.M | re.S
    )
    found = [match for text in PAGES.values() for match in entry.finditer(text)]
    assert len(found) == 1, f"docs/reference must have ::: {value.__module__}.{name} once"
    assert value.__doc__ and value.__doc__.strip()
    assert ">>>" in value.__doc__ or f"damc.{name}" in found[0][1] or _called(value, found[0][1])


def _called(value: object, text: str) -> bool:
    """Whether an example uses what a name makes, or what makes it."""
    members = [name for name in dir(value) if not name.startswith("_")]
    return "```python" in text and any(f".{name}" in text for name in members)


def test_the_index_lists_every_public_name() -> None:
    text = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", text)) >= set(damc.__all__)
