"""The long description: README.md with links that hold outside the repository.

Everything else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def long_description(text: str, repository: str | None, version: str) -> str:
    """Relative links and pictures, made absolute.

    Args:
        text: Markdown.
        repository: the address, "Repository" of [project.urls]; without one, pictures are left out
            and links become their words, since an index can show neither.
        version: the tag that the links lead to.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, words, place = found.groups()
        if repository is None:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({repository.rstrip('/')}/{kind}/v{version}/{place})"

    return LINK.sub(absolute, text)


def main() -> None:
    """Builds the package."""
    root = Path(__file__).parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (root / "damc" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    if version is None:
        raise SystemExit("damc/__init__.py names no version")
    readme = (root / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=long_description(
            readme, project.get("urls", {}).get("Repository"), version[1]
        ),
        long_description_content_type="text/markdown",
    )


if __name__ == "__main__":
    main()
