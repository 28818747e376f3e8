"""Compare what users see with the golden files of this folder, or write it there."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
WRITE = "WRITE_GOLDEN_FILES"
_REMEDY = "If these changes are meant: run `python -m tests.golden`, read `git diff tests/golden`, and commit it."
_LINES, _COLUMNS = 40, 240  # of the differences of one file


def check(texts: Mapping[str, str]) -> None:
    """Fail with the differences between some texts and the golden files of their names.

    A text without a file fails, and so does a file in the same folder without a text. With the variable `WRITE` the
    files are written and those without a text deleted.
    """
    kinds = {(FOLDER / name).parent: Path(name).suffix for name in texts}
    unknown = {
        str(file.relative_to(FOLDER))
        for folder, suffix in kinds.items()
        if folder != FOLDER
        for file in folder.glob(f"*{suffix}")
    } - set(texts)
    if os.environ.get(WRITE):
        for name, text in texts.items():
            (FOLDER / name).parent.mkdir(exist_ok=True)
            (FOLDER / name).write_text(text, encoding="utf-8")
        for name in unknown:
            (FOLDER / name).unlink()
        return
    found = [difference for name, text in texts.items() if (difference := _difference(name, text))]
    found += [f"tests/golden/{name}: nothing writes this file any more" for name in sorted(unknown)]
    if found:
        pytest.fail("\n\n".join([*found, _REMEDY]), pytrace=False)


def _difference(name: str, text: str) -> str:
    """Return a unified diff of a golden file and a text; empty if they are equal."""
    file, shown = FOLDER / name, f"tests/golden/{name}"
    if not file.exists():
        return f"{shown}: the file is missing"
    kept = file.read_text(encoding="utf-8")
    if kept == text:
        return ""
    lines = [
        line if len(line) <= _COLUMNS else f"{line[:_COLUMNS]}…"
        for line in difflib.unified_diff(kept.split("\n"), text.split("\n"), shown, f"{shown}, now", lineterm="", n=1)
    ]
    more = len(lines) - _LINES
    return "\n".join([*lines[:_LINES], *([f"… {more} further lines"] if more > 0 else [])])
