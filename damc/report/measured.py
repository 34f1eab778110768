"""Measurements of a run, kept inside its folder as sections for its report."""

from __future__ import annotations

__all__ = ["keep", "kept"]

import json
from dataclasses import asdict, replace
from pathlib import Path

from damc.disk import on_disk, write_atomically
from damc.errors import BadInput
from damc.report.page import Section

_FILE = "section.json"


def keep(folder: str | Path, iteration: int, section: Section) -> Path:
    """Writes a section into `folder`, inside the run folder; its pictures must be there too.

    Args:
        folder: of the measurement's files.
        iteration: of the weights that were measured.
        section: of the report.
    """
    folder = Path(folder)
    names = {text: str(Path(p).relative_to(folder)) for text, p in section.pictures.items()}
    record = {"iteration": iteration, **asdict(replace(section, pictures=names))}
    return write_atomically(folder / _FILE, json.dumps(record, indent=2) + "\n")


def kept(run: str | Path, iteration: int) -> list[Section]:
    """The sections kept inside a run folder, sorted by the names of their folders.

    Those of other iterations are left out, as they are about other weights than the report.
    """
    sections = []
    for path in sorted(Path(run).rglob(_FILE)):
        with on_disk("read", path):
            text = path.read_bytes()
        try:
            record = json.loads(text)
            measured = record.pop("iteration")
            pictures = {key: path.parent / name for key, name in record.pop("pictures").items()}
            section = Section(**record, pictures=pictures)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"{path} is damaged: remove it, or measure again") from error
        if measured == iteration:
            sections.append(section)
    return sections
