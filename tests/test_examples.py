"""The documents are tested: Python blocks run, commands parse, links lead somewhere.

Each Python block of README.md runs alone. The blocks of one page of docs/ share a namespace and a
temporary folder, from top to bottom. A block with prompts must give the output it shows. The
comment `<!-- no-test -->` above a block skips it.
"""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest

from damc.cli import COMMANDS
from damc.cli.options import parse
from damc.errors import BadInput

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *DOCS]
WRITTEN = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([\w+-]*)")
SKIP = "<!-- no-test -->"


class Block(NamedTuple):
    """A Python block: its code, and how many lines of the page stand above it."""

    code: str
    lines_above: int


def python_blocks(text: str) -> list[Block]:
    """The blocks of a page that are to run, in order."""
    blocks: list[Block] = []
    lines = text.splitlines()
    row, last_words = 0, ""
    while row < len(lines):
        opening = FENCE.match(lines[row])
        row += 1
        if not opening:
            last_words = lines[row - 1].strip() or last_words
            continue
        indent, marks, language = opening.groups()
        start = row
        while row < len(lines) and not _closes(lines[row], marks):
            row += 1
        if row == len(lines):
            raise ValueError(f"the block that opens on line {start} never ends")
        if language == "python" and last_words != SKIP:
            code = "\n".join(line.removeprefix(indent) for line in lines[start:row])
            blocks.append(Block(code + "\n", start))
        last_words = ""
        row += 1
    return blocks


def run_blocks(page: str, blocks: list[Block]) -> None:
    """Runs the blocks in one namespace; errors point at the line of the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for code, lines_above in blocks:
        if re.search(r"^\s*>>> ", code, re.MULTILINE):
            parsed = doctest.DocTestParser().get_doctest(code, namespace, page, page, lines_above)
            runner = doctest.DebugRunner(optionflags=doctest.ELLIPSIS)
            runner.run(parsed, clear_globs=False)
            namespace.update(parsed.globs)
        else:
            exec(compile("\n" * lines_above + code, page, "exec"), namespace)


def _closes(line: str, marks: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(marks) and set(stripped) == {marks[0]}


SLOW = ("posteriors.md",)  # trains for a while


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.name in SLOW)) for p in DOCS],
    ids=[p.name for p in DOCS],
)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(str(page), python_blocks(_text(page)))


@pytest.mark.parametrize("number", range(3))
def test_each_example_of_the_readme_runs_alone(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(str(README), [python_blocks(_text(README))[number]])


def test_the_readme_has_three_examples() -> None:
    assert len(python_blocks(_text(README))) == 3


# Commands

COUNTS = {"N", "S", "K"}  # placeholders that stand for numbers


def commands(text: str) -> list[str]:
    """Every `damc ...` command of a page, in sh blocks and, with arguments, inline."""
    shell = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in shell for line in block.splitlines() if line.startswith("damc ")]
    inline = re.findall(
        r"`(damc\s[a-z-]+\s[^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    return [*lines, *(" ".join(code.split()) for code in inline)]


def parses(command: str) -> None:
    """Raises `BadInput` if the command has no such sub-command, option or choice."""
    words = shlex.split(command, comments=True)[1:]
    name, *rest = ("1" if word in COUNTS else word for word in words)
    if name not in COMMANDS:
        raise BadInput(f"there is no command {name!r}")
    module, _, kind = COMMANDS[name].place.partition(":")
    parse(getattr(importlib.import_module(module), kind), f"damc {name}", rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    for command in commands(_text(page)):
        parses(command)


def test_wrong_commands_are_found() -> None:
    page = "```sh\ndamc train mnist-small --iterations N  # why\n```\nor `damc toy\n--sed 1`\n"
    right, wrong = commands(page)
    parses(right)
    with pytest.raises(BadInput, match="--sed"):
        parses(wrong)
    with pytest.raises(BadInput, match="no command 'trian'"):
        parses("damc trian mnist-small")


# Links

LINK = re.compile(r"!?\[[^\]]*\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]*))?\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead to no file or no heading."""
    broken = []
    for place, anchor in LINK.findall(_text(page)):
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in anchors(_text(target))):
            broken.append(f"{place}#{anchor}" if anchor else place)
    return broken


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One: two\n[a](#one-two) [b](#three) [c](no.md) [d](https://e.org)\n")
    assert broken_links(page) == ["#three", "no.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_module_exists(page: Path) -> None:
    names = set(re.findall(r"`((?:damc|tests)/[a-z_0-9/]+\.py)`", _text(page)))
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []
    for name in set(re.findall(r"`(damc(?:\.(?!py`)\w+)+)`", _text(page))):
        assert _found(name), name


def _found(name: str) -> bool:
    """Whether a dotted name is a module or an attribute of one."""
    path = name.split(".")
    for cut in range(len(path), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(path[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in path[cut:]:
            if not hasattr(thing, attribute):
                return False
            thing = getattr(thing, attribute)
        return True
    return False


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# The tests of this file's own reader


PAGE = f"""# A page
```python
a = 1
```
1. indented
   ```python
   b = a + 1
   ```
```bash
exit 1
```
````markdown
```python
raise AssertionError("inside another block")
```
````
{SKIP}

```python
raise AssertionError("marked")
```
```python
>>> a + b
3
```
```python
assert (a, b) == (1, 2)
```
"""


def test_blocks_share_a_namespace_and_others_are_left_alone() -> None:
    blocks = python_blocks(PAGE)
    assert [block.code.splitlines()[0] for block in blocks] == [
        "a = 1",
        "b = a + 1",
        ">>> a + b",
        "assert (a, b) == (1, 2)",
    ]
    run_blocks("page.md", blocks)


def test_a_broken_block_fails_on_its_line() -> None:
    blocks = python_blocks(PAGE.replace("(1, 2)", "(1, 3)"))
    with pytest.raises(AssertionError) as caught:
        run_blocks("page.md", blocks)
    where = traceback.extract_tb(caught.tb)[-1]
    line = 1 + PAGE.splitlines().index("assert (a, b) == (1, 2)")
    assert (where.filename, where.lineno) == ("page.md", line)


def test_a_wrong_output_fails() -> None:
    with pytest.raises(doctest.DocTestFailure):
        run_blocks("page.md", python_blocks(PAGE.replace("\n3\n", "\n4\n")))


def test_a_block_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2 never ends"):
        python_blocks("words\n```python\na = 1\n")
