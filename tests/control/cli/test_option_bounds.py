"""Every option and argument of every command, at and beyond every bound: no traceback."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.cli.command import NO_DATABASE, tidewheel
from tests.fixtures.bounds import BOUNDS, SAMPLES
from tests.fixtures.examples import examples
from tidewheel.control.cli.commands import Command, every_command
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.parser import real_command

STARTS = frozenset({"dev", "local", "connect", "admin", "archive", "recovery", "services"})
"""Modules whose commands start, move or read more than a database: their options are only parsed."""
LONGEST = 100_000  # bytes of an argument; Linux has 131,072
TEXTS = [text.replace("\ud800", "\udcff") for text in BOUNDS  # as Python reads an argument that is not UTF-8
         if isinstance(text, str) and "\0" not in text and len(text) < LONGEST]  # fmt: skip
NO_NUMBERS = ("1_000", "\uff11", "0x10", "1e400", "NaN", " 1", "1\n")  # most of which Python reads as one
_EACH = 2  # texts of every option, beside those that are drawn


@dataclass(frozen=True)
class Place:
    """An option or an argument of a command."""

    words: str
    command: Command
    parameter: Any

    def holding(self, text: str) -> list[str]:
        """Return the command line with this text; the arguments that must be there are valid."""
        line: list[str] = []
        for each in real_command(self.words, self.command).params:
            is_own = each.name == self.parameter.name
            if each.param_type_name == "argument":
                line += ["--", text] if is_own else ["--", _sample(each)] if each.required else []
            elif is_own:
                line = [f"{max(each.opts, key=len)}={text}", *line]
        return [each for at, each in enumerate(line) if each != "--" or "--" not in line[:at]]

    def __str__(self) -> str:
        return f"{self.words} {self.parameter.name}"


def _sample(parameter: Any) -> str:  # noqa: ANN401 - click's own types are private
    kind = parameter.type_descriptor.annotation
    if kind in (UUID, list[UUID]):
        return str(SAMPLES["run_id"])
    return str(SAMPLES.get(parameter.name, 1 if kind in (int, list[int]) else "job"))


def _places() -> Iterator[Place]:
    for words, command in every_command():
        for each in real_command(words, command).params:
            if each.name != "help" and not getattr(each, "is_flag", False):
                yield Place(words, command, each)


PLACES = list(_places())
NUMBERS = [each for each in PLACES if each.parameter.type_descriptor.annotation in (int, float, list[int])]
INVOKED = [each for each in PLACES if each.command.path.rpartition(".")[2] not in STARTS]
PARSED = [each for each in PLACES if each not in INVOKED]


def parse(place: Place, text: str) -> None:
    """Parse a command line as its command does; pass over a refusal."""
    with real_command(place.words, place.command).make_context("x", place.holding(text)):
        pass


def test_every_command_is_tried() -> None:
    assert len(PLACES) > 600
    assert {each.words for each in PLACES} >= {words for words, _ in every_command()} - {"down"}
    assert {each.command.path.rpartition(".")[2] for each in PARSED} >= STARTS


@pytest.mark.parametrize("place", NUMBERS, ids=str)
def test_text_that_only_python_reads_as_a_number_is_refused(place: Place) -> None:
    """`-n 1_0` was 10, and so was the same in the digits of any script."""
    for text in NO_NUMBERS:
        with pytest.raises(Exception, match="is not a number"):
            parse(place, text)


@pytest.mark.slow
def test_text_at_any_bound_ends_no_command_with_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of 70,000 characters did so in `apply`. No database answers here."""
    monkeypatch.chdir(tmp_path)
    known = {*ExitCode, 0, 1, 2}
    faults: dict[str, tuple[str, str]] = {}

    def judge(place: Place, text: str) -> None:
        try:
            done = tidewheel(NO_DATABASE, *place.words.split(), *place.holding(text))
        except Exception as error:  # noqa: BLE001 - each is a traceback on the terminal
            faults.setdefault(str(place), (ascii(text)[:60], repr(error)[:200]))
            return
        if done.code not in known or (done.code and not done.err and not done.out):
            faults.setdefault(str(place), (ascii(text)[:60], str(done)[:200]))

    texts = cycle(TEXTS)
    for place in INVOKED:
        for text in islice(texts, _EACH):
            judge(place, text)

    @examples(3000)
    @given(st.sampled_from(INVOKED), st.sampled_from(TEXTS))
    def vary(place: Place, text: str) -> None:
        judge(place, text)

    vary()
    assert faults == {}
