"""The documentation site is built strictly, its links hold, and a page loads nothing from elsewhere."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.process
# Loaded with the page, unlike the href of a link.
_LOADED = {"audio", "embed", "iframe", "img", "input", "link", "object", "script", "source", "track", "video"}
_IMPORTED = re.compile(r"""url\(\s*["']?(?:https?:)?//|@import\s+["'](?:https?:)?//""")


@dataclass
class _Page(HTMLParser):
    """Links, ids and loaded addresses of a page."""

    links: list[str] = field(default_factory=list[str])
    ids: set[str] = field(default_factory=set[str])
    loaded: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value or "" for name, value in attrs}
        self.ids.add(held.get("id", ""))
        if tag == "a" and "href" in held:
            self.links.append(held["href"])
        if tag in _LOADED:
            self.loaded += [held[name] for name in ("src", "href", "srcset", "data", "poster") if name in held]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """Each page of the site, read; without the one for a server that finds no page."""
    found: dict[Path, _Page] = {}
    for path in sorted({*site.rglob("*.html")} - {site / "404.html"}):
        found[path] = _Page()
        found[path].feed(path.read_text(encoding="utf-8"))
    return found


def test_links_lead_to_files_and_headings(pages: dict[Path, _Page]) -> None:
    links = [(path, link) for path, page in pages.items() for link in page.links]
    assert len(links) > 1000
    assert [f"{path.name}: {link}" for path, link in links if not _leads(pages, path, link)] == []


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, _Page]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert loaded
    assert [address for address in loaded if urlsplit(address).scheme not in {"", "data"} or address[:2] == "//"] == []
    styles = [*site.rglob("*.css")]
    assert styles
    assert [path.name for path in styles if _IMPORTED.search(path.read_text(encoding="utf-8"))] == []


def test_no_page_lets_the_theme_fetch_a_library(pages: dict[Path, _Page]) -> None:
    """The theme fetches a library for each element of the class `mermaid`."""
    assert [path.name for path in pages if 'class="mermaid"' in path.read_text(encoding="utf-8")] == []


def test_lists_below_a_sentence_are_lists(site: Path) -> None:
    """CommonMark needs no blank line before them."""
    assert "<ul>" in (site / "guarantees.html").read_text(encoding="utf-8")
    assert [line for page in site.rglob("*.html") for line in _paragraphs_with_items(page)] == []


def _leads(pages: dict[Path, _Page], path: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in {"https", "http", "mailto"}
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    return target.exists() and (
        not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].ids
    )


def _paragraphs_with_items(page: Path) -> Iterator[str]:
    yield from re.findall(r"^<p>[^<]*\n- .*$|^<p>\|.*$|^<p>```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
