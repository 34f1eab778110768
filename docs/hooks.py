"""What mkdocs does beside building pages: the notebooks, and files that stand outside docs/.

Links such as ``../damc/density.py`` hold in the repository; on the site they lead to the repository
if mkdocs.yml names one (`repo_url`), and else are their words alone. The notebooks of
docs/tutorials become pages in notebooks/, with the outputs of the run that `make docs` wrote to
build/notebooks, or those that are stored in them if there was none.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+)([^)\s#]+)(#[^)\s]*)?\)")

NOTEBOOK = re.compile(r"\]\(((?:\.\./)*)tutorials/([\w-]+)\.ipynb")


def on_files(files: Any, config: Any) -> Any:
    """Adds the changelog, which stands at the root, and the notebooks with their figures."""
    from mkdocs.structure.files import File

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        executed = ROOT / "build" / "notebooks" / path.name
        content = (executed if executed.exists() else path).read_text(encoding="utf-8")
        page, figures = notebook_page(json.loads(content), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, picture in figures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page of Markdown, and its figures by their file names."""
    figures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        code = "\n".join(line for line in source.split("\n") if not line.startswith("%"))
        parts.append(f"```python\n{code}\n```")
        for output in cell["outputs"]:
            parts += _shown(output, stem, figures)
    note = f"*This page is a notebook: [{stem}.ipynb](../tutorials/{stem}.ipynb).*"
    title, rest = parts[0].split("\n", 1)
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n", figures


def _shown(output: dict[str, Any], stem: str, figures: dict[str, bytes]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}-{len(figures) + 1}.png"
        figures[name] = base64.b64decode(data["image/png"])
        yield f"![Figure {len(figures)} of the notebook]({name})"
        return
    text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
    if text:
        yield f'```text title="output"\n{text}\n```'


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites links that leave docs/."""
    depth = page.file.src_uri.count("/") + 1

    def rewritten(found: re.Match[str]) -> str:
        words, up, place, anchor = found.groups()
        if up.count("../") < depth:
            return found[0]  # it stays inside
        if place == "CHANGELOG.md":
            return f"[{words}]({'../' * (depth - 1)}changelog.md)"
        if not config.repo_url:
            return words
        return f"[{words}]({config.repo_url.rstrip('/')}/blob/main/{place}{anchor or ''})"

    if page.file.src_uri == "changelog.md":
        # At the root its links start at docs/.
        return markdown.replace("](docs/", "](")
    if not page.file.src_uri.startswith("notebooks/"):
        markdown = NOTEBOOK.sub(r"](\1notebooks/\2.md", markdown)
    return LINK.sub(rewritten, markdown)
