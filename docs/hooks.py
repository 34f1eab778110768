"""What mkdocs does beside building pages: files that stand outside docs/.

Links such as ``../damc/density.py`` hold in the repository; on the site they lead to the repository
if mkdocs.yml names one (`repo_url`), and else are their words alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the changelog, which stands at the root."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text))
    return files


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
    return LINK.sub(rewritten, markdown)
