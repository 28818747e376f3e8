"""Promises of the templates and static files that their text alone can break."""

import re
from pathlib import Path

from tidewheel.control.console.urls import PATHS
from tidewheel.control.console.words import symbol_of
from tidewheel.runs import SCHEDULED, AttemptOutcome, RunState

CONSOLE = Path(__file__).parents[3] / "control/console"
TEMPLATES = sorted(path for path in (CONSOLE / "templates").rglob("*") if path.is_file())
STYLES = [CONSOLE / "static" / name for name in ("console.css", "console.js")]
HEX = re.compile(r"#[0-9A-Fa-f]{3,8}\b")


def test_templates_link_by_the_url_function_escape_and_need_no_exception_of_the_policy() -> None:
    assert len(TEMPLATES) > 20
    for path in TEMPLATES:
        text = path.read_text()
        for value in re.findall(r'\b(?:href|src|action)="([^"]*)', text):
            assert value.startswith(("{{", "#")), (path, value)
        assert not re.search(r"\bstyle\s*=|<style|\son\w+\s*=|javascript:", text), path
        for tag in re.findall(r"<script[^>]*>", text):
            assert re.fullmatch(r'<script src="{{[^>]*}}" defer>', tag), (path, tag)
        assert not re.search(r"\|\s*safe|autoescape|Markup", text), path


def test_colours_are_tokens_outside_of_tokens_css() -> None:
    for path in STYLES:
        assert not HEX.findall(path.read_text()), path
        assert "://" not in path.read_text(), path


def test_every_state_and_outcome_has_a_mark() -> None:
    marks = set(re.findall(r'<symbol id="([^"]+)"', (CONSOLE / "templates/parts/icons.svg").read_text()))
    assert {symbol_of(status) for status in (*RunState, *AttemptOutcome, SCHEDULED)} <= marks
    assert symbol_of("timed_out") == "i-timed_out"


def test_every_place_is_below_the_base_path() -> None:
    assert all(path.startswith("/") for path in PATHS.values())
