"""A report as one HTML file: tables of settings and embedded pictures, without external files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from damc.errors import BadInput
from damc.files import on_disk, write_atomically

__all__ = ["Section", "write_report"]


@dataclass(frozen=True)
class Section:
    """A part of a report; every text is plain text and is escaped.

    Attributes:
        title: its heading.
        text: a paragraph under the heading; blank lines separate several.
        settings: names and values, shown as a table; nested ones get dotted names.
        pictures: PNG files by caption.
    """

    title: str
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str | Path] = field(default_factory=dict)


def write_report(path: str | Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the report as one self-contained HTML file, atomically.

    Args:
        path: the HTML file to write.
        title: the page's heading.
        sections: what it shows, in order.
    """
    body = "\n".join(map(_section, sections))
    return write_atomically(
        path,
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
""",
    )


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: 0.9rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.2rem 1rem 0.2rem 0; border-bottom: 1px solid #eee;
         vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; }
"""

_PNG = b"\x89PNG\r\n\x1a\n"


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [
        f"<p>{escape(part.strip())}</p>" for part in section.text.split("\n\n") if part.strip()
    ]
    if section.settings:
        rows = "\n".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in _flat(section.settings)
        )
        parts.append(f'<div class="table"><table>\n{rows}\n</table></div>')
    for caption, picture in section.pictures.items():
        text = escape(caption)
        parts.append(
            f'<figure><img alt="{text}" src="data:image/png;base64,{_inline(Path(picture))}">'
            f"<figcaption>{text}</figcaption></figure>"
        )
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and printed values."""
    rows = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            rows.append((f"{prefix}{name}", shown))
    return rows


def _inline(picture: Path) -> str:
    with on_disk("read", picture):
        data = picture.read_bytes()
    if not data.startswith(_PNG):
        raise BadInput(f"pictures of a report must be PNG files, got {picture}")
    return base64.b64encode(data).decode()
