from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from damc.errors import BadInput
from damc.report.page import Section, write_report
from damc.report.plots import image_grid


class Page(HTMLParser):
    """What a browser would see: texts, and the tags with their attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def test_a_report_holds_everything_in_one_file(tmp_path: Path) -> None:
    picture = image_grid(torch.zeros(2, 1, 8, 8), tmp_path / "grid.png")
    settings = {"preset": "digits-small", "model": {"dim": 8, "net": {"sigma": 0.1 + 0.2}}}
    sections = [
        Section("Settings", "First.\n\nSecond.", settings=settings),
        Section("Samples", pictures={"the amortizer's": picture}),
    ]
    page = Page(write_report(tmp_path / "report.html", "A run", sections))
    assert page.open == []
    for text in ("A run", "First.", "Second.", "model.dim", "8", "model.net.sigma", "0.3"):
        assert text in page.texts
    (image,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert image["alt"] == "the amortizer's"
    kind, _, data = (image["src"] or "").partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data) == picture.read_bytes()
    assert ("viewport" in [attributes.get("name") for _, attributes in page.tags]) is True


def test_a_page_has_a_verdict_words_for_settings_and_parts_that_open(tmp_path: Path) -> None:
    settings = {"config": {"settings": {"sigma": 0.3, "some_new": None, "noise_negatives": True}}}
    sections = [Section("Settings", settings=settings, collapsed=True, names=True)]
    path = write_report(tmp_path / "report.html", "A run", sections, "Learned: <all> of it.")
    page = Page(path)
    assert page.open == [] and "Learned: <all> of it." in page.texts
    tags = [tag for tag, _ in page.tags]
    assert tags.count("details") == 1 and tags.count("summary") == 1 and "open" not in tags
    for text in ("sigma, standard deviation of the likelihood", "config.settings.sigma"):
        assert text in page.texts
    for text in ("some new", "none", "prior chains from N(0, I) too", "yes"):
        assert text in page.texts
    assert "max-width: 60rem; margin: 0 auto" not in path.read_text()  # the whole window


def test_no_text_can_become_markup_or_fetch_anything(tmp_path: Path) -> None:
    evil = "<script src='http://example.org/x.js'></script>\"'&amp;"
    picture = image_grid(torch.zeros(1, 1, 8, 8), tmp_path / "grid.png")
    section = Section(evil, evil, settings={evil: evil}, pictures={evil: picture})
    path = write_report(tmp_path / "report.html", evil, [section])
    page = Page(path)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe"})
    assert page.texts.count(evil) == 7  # title, h1, h2, paragraph, two cells, caption
    links = [attributes.get("src") or attributes.get("href") for _, attributes in page.tags]
    assert all(link.startswith("data:image/png;base64,") for link in links if link)
    style = re.search("<style>(.*?)</style>", path.read_text(), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_a_missing_or_foreign_picture_is_refused_and_the_old_report_stays(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", "old", [])
    foreign = tmp_path / "picture.png"
    foreign.write_bytes(b"GIF89a")
    for picture, message in [
        (foreign, "must be PNG files, got"),
        (tmp_path / "absent.png", "could not read"),
    ]:
        with pytest.raises(BadInput, match=message):
            write_report(path, "new", [Section("s", pictures={"p": picture})])
    assert "old" in Page(path).texts
