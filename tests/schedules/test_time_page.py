"""docs/time.md says what the library does: its example runs, its table's own column is computed anew."""

import doctest
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.schedules.brute_force import pinned_zone
from tidewheel.schedules.parse import parse_schedule

PAGE = Path(__file__).parents[2] / "docs" / "time.md"
ROW = re.compile(r"^\| (\S+/\S+) (\d{4}-\d\d-\d\d) (\d\d:\d\d)→[^|]*\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_doctest_examples_run() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


def test_every_row_is_checked() -> None:
    assert len(ROWS) == 15


@pytest.mark.parametrize(("name", "day", "time", "expression", "said"), ROWS)
def test_row_equals_the_librarys_result(name: str, day: str, time: str, expression: str, said: str) -> None:
    zone = pinned_zone(name)
    last_second_before = (datetime.fromisoformat(f"{day}T{time}") - timedelta(seconds=1)).replace(tzinfo=zone)
    moment = last_second_before.astimezone(UTC) + timedelta(seconds=1)
    schedule = parse_schedule({"kind": "cron", "expressions": [expression], "timezone": name})
    around = timedelta(hours=2)
    found = [at.astimezone(zone) for at in schedule.between(moment - around, moment + around)]
    times = [word for word in said.replace("none", "").split(", ") if word.strip()]
    assert len(found) == len(times)
    for at, text in zip(found, times, strict=True):
        clock, _, abbreviation = text.partition(" ")
        assert f"{at:%H:%M}" == clock
        assert not abbreviation or abbreviation.startswith(f"{at:%Z}")
