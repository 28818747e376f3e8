"""Relative links of pages lead to files and headings that exist."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.strict_types import FOLDERS, ROOT

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)
_WORDS = re.compile(r"[^\w\- ]")


def all_pages() -> list[Path]:
    """Return every Markdown file of the project; links between folders are not followed."""
    found = [*ROOT.glob("*.md")]
    for folder in (*FOLDERS, "docs", "compose", "examples", "sdk"):
        real = (path for path in (ROOT / folder).rglob("*.md") if not any(up.is_symlink() for up in path.parents))
        found += real
    return sorted(set(found))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from the headings."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {_WORDS.sub("", found["title"].lower()).replace(" ", "-") for found in _HEADING.finditer(text)}


def links(page: Path) -> list[str]:
    """Return the relative links of a page, without code."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    targets = (found["target"] for found in _LINK.finditer(text))
    return [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    for target in links(page):
        path, _, anchor = unquote(target).partition("#")
        led_to = (page.parent / path).resolve() if path else page
        assert led_to.exists(), f"{target} does not exist"
        assert led_to.is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor and led_to.suffix == ".md":  # of a picture it names the theme that shows it
            assert anchor in anchors(led_to), f"{target}: no such heading"
