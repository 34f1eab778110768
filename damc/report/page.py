"""A report as one HTML file: tables of settings and embedded pictures, without external files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from damc.disk import on_disk, write_atomically
from damc.errors import BadInput
from damc.report.words import in_words

__all__ = ["Section", "write_report"]


@dataclass(frozen=True)
class Section:
    """A part of a report; every text is plain text and is escaped.

    Attributes:
        title: its heading.
        text: a paragraph under the heading; blank lines separate several.
        settings: names and values, shown as a table; nested ones get dotted names.
        pictures: PNG files by caption.
        collapsed: shown only when its heading is opened.
        names: show the settings' own names beside those in words.
    """

    title: str
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str | Path] = field(default_factory=dict)
    collapsed: bool = False
    names: bool = False


def write_report(
    path: str | Path, title: str, sections: Sequence[Section], verdict: str = ""
) -> Path:
    """Write the report as one self-contained HTML file, atomically.

    Args:
        path: the HTML file to write.
        title: the page's heading.
        sections: what it shows, in order.
        verdict: a sentence under the heading, about everything below.
    """
    said = f'<p class="verdict">{escape(verdict)}</p>\n' if verdict else ""
    body = "\n".join(map(_section, sections))
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{said}{body}
</body>
</html>
"""
    return write_atomically(path, page.encode(errors="backslashreplace"))  # names may be no text


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       margin: 0; padding: 1rem clamp(1rem, 3vw, 4rem) 3rem; }
h1, h2 { line-height: 1.2; }
h2, summary { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
summary { font-size: 1.5rem; font-weight: 700; cursor: pointer; line-height: 1.2; }
p { max-width: 60rem; }
.verdict { font-size: 1.15rem; border-left: 0.3rem solid #0072b2; background: #f2f7fb;
           padding: 0.6rem 1rem; max-width: none; }
.pictures { display: grid; gap: 1.5rem; align-items: start;
            grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: 0.9rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; margin-top: 1rem; }
th, td { text-align: left; padding: 0.2rem 2rem 0.2rem 0; border-bottom: 1px solid #eee;
         vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; }
td.name { color: #777; font-family: ui-monospace, monospace; font-size: 0.8rem; }
"""

_PNG = b"\x89PNG\r\n\x1a\n"


def _section(section: Section) -> str:
    title = escape(section.title)
    parts = [f"<summary>{title}</summary>" if section.collapsed else f"<h2>{title}</h2>"]
    parts += [
        f"<p>{escape(part.strip())}</p>" for part in section.text.split("\n\n") if part.strip()
    ]
    if section.settings:
        rows = "\n".join(
            f"<tr><th>{escape(in_words(name) if section.names else name)}</th>"
            f"<td>{escape(value)}</td>"
            + (f'<td class="name">{escape(name)}</td>' if section.names else "")
            + "</tr>"
            for name, value in _flat(section.settings, digits=6 if section.names else 4)
        )
        parts.append(f'<div class="table"><table>\n{rows}\n</table></div>')
    if section.pictures:
        figures = [_figure(caption, Path(file)) for caption, file in section.pictures.items()]
        parts.append('<div class="pictures">\n' + "\n".join(figures) + "\n</div>")
    tag = "details" if section.collapsed else "section"
    return f"<{tag}>\n" + "\n".join(parts) + f"\n</{tag}>"


def _figure(caption: str, picture: Path) -> str:
    text = escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{_inline(picture)}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _flat(settings: Mapping[str, Any], prefix: str = "", digits: int = 6) -> list[tuple[str, str]]:
    """Dotted names and printed values."""
    rows = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.", digits)
        else:
            rows.append((f"{prefix}{name}", _shown(value, digits)))
    return rows


def _shown(value: Any, digits: int) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item, digits) for item in value)
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _inline(picture: Path) -> str:
    with on_disk("read", picture):
        data = picture.read_bytes()
    if not data.startswith(_PNG):
        raise BadInput(f"pictures of a report must be PNG files, got {picture}")
    return base64.b64encode(data).decode()
