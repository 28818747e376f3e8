"""Promises of the templates and static files that their text alone can break."""

import re
from pathlib import Path

import pytest

from tidewheel.control.console.urls import PATHS
from tidewheel.control.console.words import symbol_of
from tidewheel.runs import SCHEDULED, AttemptOutcome, RunState

CONSOLE = Path(__file__).parents[3] / "control/console"
TEMPLATES = sorted(path for path in (CONSOLE / "templates").rglob("*") if path.is_file())
STYLES = [CONSOLE / "static" / name for name in ("console.css", "console.js")]
HEX = re.compile(r"#[0-9A-Fa-f]{3,8}\b")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_link_is_written_by_the_url_function(path: Path) -> None:
    text = path.read_text()
    for name in ("href", "src", "action"):
        for value in re.findall(rf'\b{name}="([^"]*)', text):
            assert value.startswith(("{{", "#")), value


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_needs_an_exception_of_the_content_security_policy(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\bstyle\s*=|<style|\son\w+\s*=|javascript:", text)
    assert all(re.fullmatch(r'<script src="{{[^>]*}}" defer>', tag) for tag in re.findall(r"<script[^>]*>", text))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_turns_escaping_off(path: Path) -> None:
    assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text())


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_colours_are_tokens_outside_of_tokens_css(path: Path) -> None:
    assert not HEX.findall(path.read_text())
    assert "://" not in path.read_text()


def test_every_state_and_outcome_has_a_mark() -> None:
    marks = set(re.findall(r'<symbol id="([^"]+)"', (CONSOLE / "templates/parts/icons.svg").read_text()))
    assert {symbol_of(status) for status in (*RunState, *AttemptOutcome, SCHEDULED)} <= marks
    assert symbol_of("timed_out") == "i-timed_out"


def test_every_place_is_below_the_base_path() -> None:
    assert all(path.startswith("/") for path in PATHS.values())
