"""Each row of the page of formats names its reader, which reads the format and refuses what is none."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.strict_types import ROOT
from tidewheel.errors import FieldError, TidewheelError

PAGE = (ROOT / "docs/formats.md").read_text("utf-8").partition("## A crontab")[0]
ROWS = [[cell.strip(" |") for cell in line.split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")][2:]
READERS = [(cells[0], *re.findall(r"`([\w/]+)\.py:(\w+)`", cells[-1])) for cells in ROWS]

Read = Callable[[Any, str, Path], object]
READS: Mapping[str, tuple[Read, str, str]] = {
    "parse_cron": (lambda reader, text, _: reader(text), "0 3 * * *", "0 3 * *"),
    "read_pasted": (lambda reader, text, _: reader(text), "0 3 * * * /srv/x", "every full moon"),
    "read_cron_job": (
        lambda reader, text, _: reader({"kind": "CronJob", "spec": {"schedule": text}}), "0 3 * * *", "",
    ),
    "days_of": (
        lambda reader, text, _: reader(f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{text}END:VCALENDAR\r\n".encode(), "x.ics",
                                       today=date(2026, 11, 20), years=1),
        "BEGIN:VEVENT\r\nUID:u\r\nDTSTART;VALUE=DATE:20261225\r\nEND:VEVENT\r\n",
        "BEGIN:VEVENT\r\nUID:u\r\nDTSTART;VALUE=DATE:20260230\r\nEND:VEVENT\r\n",
    ),
    "read_jobs": (lambda reader, text, path: _content(reader, text, path), "key: a", "key: [a"),
    "read_object": (lambda reader, text, _: reader(text.encode()), '{"a": 1}', '{"a": 1'),
    "parse_timestamp": (lambda reader, text, _: reader(text), "2026-11-27T08:00:00Z", "2026-11-27T23:59:60Z"),
    "parse_duration": (lambda reader, text, _: reader(text), "1h30m", "P1M"),
    "retry_after": (lambda reader, text, _: reader({"retry-after": text}), "90", "inf"),
}  # fmt: skip
"""By the name of a reader: how it is called, a text that it reads, and one that it refuses."""

ELSEWHERE = {"outcome_of_response": "tests/executor/test_http_hostile.py"}
"""Readers of what only a server can send, with their tests."""


def _content(reader: Any, text: str, path: Path) -> object:  # noqa: ANN401 - as imported
    path.write_text(text)
    [read] = reader(str(path))
    return None if isinstance(read.content, FieldError) else read.content


def test_each_row_names_a_reader() -> None:
    assert [row[0] for row in READERS if len(row) != 2] == []
    assert {names[1] for _, names in READERS} == {*READS, *ELSEWHERE}
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


@pytest.mark.parametrize("row", READERS, ids=lambda row: row[0])
def test_reader_of_a_row_reads_its_format_and_refuses_another(row: Any, tmp_path: Path) -> None:  # noqa: ANN401
    module, name = row[1]
    reader = getattr(import_module(f"tidewheel.{module.removeprefix('tidewheel/').replace('/', '.')}"), name)
    if name in ELSEWHERE:
        return
    read, accepted, refused = READS[name]
    assert read(reader, accepted, tmp_path / "job.yaml") is not None
    with suppress(TidewheelError, ValueError):
        assert read(reader, refused, tmp_path / "job.yaml") is None
