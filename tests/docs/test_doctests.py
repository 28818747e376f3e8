"""Examples in docstrings run, each module under its import name."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.strict_types import LINKED, ROOT


def _modules() -> list[str]:
    found: list[str] = []
    for folder in ("tidewheel", *LINKED):
        for path in (ROOT / folder).rglob("*.py"):
            linked = any(up.is_symlink() for up in path.parents)
            if not linked and path.name != "__main__.py" and ">>> " in path.read_text(encoding="utf-8"):
                found.append(_name(path))
    return sorted(found)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "tidewheel" else ("tidewheel", *parts)).removesuffix(".__init__")


MODULES = [*_modules(), "tests.docs.pages"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
