"""Every Python block of README.md and docs/*.md runs, as a reader would run it.

The blocks of one file share a namespace and a temporary folder, from top to bottom. A block with
prompts is held to the output it shows. The comment `<!-- no-test -->` above a block skips it.
"""

from __future__ import annotations

import doctest
import re
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(str(page), python_blocks(page.read_text(encoding="utf-8")))


def test_readme_shows_code_that_runs() -> None:
    assert python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))


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
