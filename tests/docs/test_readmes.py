"""The README of each code folder names the folder's modules and rooms, and its tables name real files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.strict_types import FOLDERS, ROOT

_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w.*/<>-]+\.(?:py|sql|avsc|sha256)|[\w-]+/")


def _readmes() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("README.md"))
    return sorted(path for path in found if not any(up.is_symlink() for up in path.parents))


def _named(text: str) -> set[str]:
    return {name for span in _CODE.findall(text) for name in span.split()}


def _in_tables(page: Path) -> Iterator[str]:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return (name for name in sorted(_named("\n".join(rows))) if _FILE.fullmatch(name))


@pytest.mark.parametrize("page", _readmes(), ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_files_of_a_readmes_tables_exist(page: Path) -> None:
    assert [name for name in _in_tables(page) if not any(page.parent.rglob(name))] == []


@pytest.mark.parametrize("page", _readmes(), ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_modules_and_rooms_are_in_their_readme(page: Path) -> None:
    named = _named(page.read_text(encoding="utf-8"))
    stems = {name.partition(".")[0] for name in named if "." in name}
    modules = {path.stem for glob in ("*.py", "0*.sql") for path in page.parent.glob(glob)} - {"__init__"}
    rooms = {f"{path.parent.name}/" for path in page.parent.glob("*/__init__.py") if not path.parent.is_symlink()}
    assert sorted(modules - stems) == []
    assert sorted(rooms - named) == []
