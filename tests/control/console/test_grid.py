"""The grid of jobs and time: each run is in one bin, and no failure is hidden."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.control.console.axis import GRID, LIST, Window, axis
from tidewheel.control.console.grid import NAMES, NARROW, WIDE, Pitch, condition, level, strip
from tidewheel.control.explain.month import due_bins
from tidewheel.nouns.jobs.model import JobSummary, LastRun
from tidewheel.runs import SCHEDULED, RunState
from tidewheel.schedules.parse import parse_schedule

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
GOOD: str = RunState.SUCCEEDED
BAD: str = RunState.FAILED
OF_GRID = [Window.HOUR, Window.SIX_HOURS, Window.DAY, Window.WEEK]
ZONES = [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Asia/Kathmandu")]
windows, zones, pitches = st.sampled_from(OF_GRID), st.sampled_from(ZONES), st.sampled_from([NARROW, WIDE])
instants = st.datetimes(datetime(2026, 1, 2), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
bins = st.dictionaries(st.sampled_from(sorted(RunState)), st.integers(0, 10**6), max_size=4)


@given(windows, zones, instants, st.integers(0, 10**6 - 1))
def test_each_instant_of_a_window_is_in_one_bin(window: Window, zone: tzinfo, now: datetime, share: int) -> None:
    along = axis(window, now, zone, windows=GRID)
    assert along.edges[along.behind - 1] <= now < along.until
    at = along.begin + share * (along.end - along.begin) / 10**6
    holding = [place for place, (begin, end) in enumerate(pairwise(along.edges)) if begin <= at < end]
    assert holding == [along.bin_of(at)]


@given(windows, zones, instants, st.sampled_from([6, 12]))
def test_edges_are_round_times_and_have_ticks(window: Window, zone: tzinfo, now: datetime, ahead: int) -> None:
    along = axis(window, now, zone, windows={6: LIST, 12: GRID}[ahead])
    assert len(along.edges) - along.behind - 1 == ahead
    assert len(list(along.ticks())) >= 3
    if window is not Window.WEEK:  # its bins are parts of local days
        [step] = {later - earlier for earlier, later in pairwise(along.edges)}
        offset = now.astimezone(zone).utcoffset() or timedelta(0)
        assert (along.until - datetime(1970, 1, 1, tzinfo=UTC) + offset) % step == timedelta(0)


@given(st.integers(0, 10**9), st.integers(2, 10**9))
def test_levels_are_1_to_3_and_0_is_no_run(runs: int, most: int) -> None:
    assert level(runs, most) in ({0} if runs == 0 else {1, 2, 3})
    assert level(most, most) == 3
    assert level(runs, most) <= level(runs + 1, most)


def test_one_failure_beside_ten_thousand_successes_has_a_bar() -> None:
    drawn = strip([{GOOD: 10_000}, {GOOD: 9_000, BAD: 1}], (), WIDE)
    assert dict(drawn.paths) == {"g3": "M1.5 9h23", "b1": "M14.5 15.5h10"}


@given(st.lists(bins, max_size=60), st.lists(st.booleans(), max_size=12), pitches)
def test_each_run_is_in_the_text_and_each_cell_in_a_shape(
    row: list[dict[str, int]], due: list[bool], pitch: Pitch
) -> None:
    drawn = strip(row, due, pitch)
    texts = [text for each in drawn.cells.split(" ") if each for text in _repeated(each)]
    cells = [{letter: int(runs) for letter, runs in re.findall(r"([a-z])(\d+)", text)} for text in texts]
    assert [sum(cell.values()) for cell in cells] == [*(sum(each.values()) for each in row), *map(int, due)]
    assert drawn.total == sum((Counter(cell) for cell in cells[: len(row)]), Counter[str]())
    for letter in "gb":
        bars = [d for name, d in drawn.paths if re.fullmatch(rf"{letter}[123]", name)]
        painted = sorted(at for d in bars for at in _painted(d, pitch))
        assert painted == [at for at, cell in enumerate(cells) if letter in cell]
    marks = {name: d.count("M") for name, d in drawn.paths if len(name) == 1}
    assert marks == Counter(letter for cell in cells for letter in cell if letter not in "gb")


def _repeated(text: str) -> list[str]:
    cell, _, times = text.partition("*")
    return [cell] * int(times or 1)


def _painted(d: str, pitch: Pitch) -> list[int]:
    """Return the cells that the dashes of a path paint; neighbours of one height are one segment."""
    found: list[int] = []
    for x, length in re.findall(r"M([\d.]+) [\d.]+h(\d+)", d):
        first, many = int(float(x) // pitch.width), (int(length) + pitch.gap) // pitch.width
        assert not found or first > found[-1] + 1, "equal neighbours are joined"
        found += range(first, first + many)
    return found


def test_a_run_that_runs_has_a_bar_up_to_now_from_its_start_or_from_the_edge() -> None:
    since_before = strip([dict[str, int]()] * 5, [False], WIDE, 0)
    assert (since_before.words, since_before.paths) == ("running since before", [("w", "M0 8H65")])
    here = strip([{}, {RunState.RUNNING: 1}, {}], (), WIDE, 1)
    assert (here.words, dict(here.paths)["w"]) == ("1 running", "M13 8H39")


def test_words_name_each_outcome_and_an_unread_row_has_none() -> None:
    row: list[Mapping[str, int]] = [{GOOD: 1_200, RunState.TIMED_OUT: 1}, {BAD: 1, RunState.SKIPPED: 0}]
    assert strip(row, [False, True], NARROW).words == "1,200 succeeded, 2 failed, upcoming"
    assert strip([{}], (), NARROW).words == "no run"
    ahead = strip([{SCHEDULED: 2, RunState.QUEUED: 1}], (), NARROW)
    assert (ahead.words, ahead.total["a"]) == ("1 waiting, 2 scheduled", 1), "a scheduled run does not wait"
    assert strip((), (), NARROW).words == "no figures"
    assert set(strip([dict.fromkeys(RunState, 1)], (), NARROW).total) == set(NAMES), "each state has a letter"


def test_a_job_is_due_in_each_bin_ahead_that_its_schedule_meets() -> None:
    along = axis(Window.HOUR, NOW, windows=GRID)
    ahead = along.edges[along.behind :]
    every_five = parse_schedule({"kind": "cron", "expressions": ["*/5 * * * *"]})
    first = every_five.after(NOW)
    assert [at for at, due in enumerate(due_bins(first, every_five, ahead)) if due] == [3, 8]
    assert sum(due_bins(first, None, ahead)) == 1, "a job that leaves occurrences out"
    assert not any(due_bins(None, every_five, ahead)), "a job on hold"
    second = parse_schedule({"kind": "cron", "expressions": ["* * * * * *"]})
    assert all(due_bins(NOW, second, ahead))


@pytest.mark.parametrize(
    ("last", "age", "total", "expected"),
    [
        (BAD, 0, {}, "failing"),
        (GOOD, 0, {"g": 90, "b": 10}, "failing intermittently"),
        (GOOD, 0, {"g": 9_000, "b": 10}, "failing intermittently"),
        (GOOD, 0, {"g": 1, "b": 1}, "failing intermittently"),
        (RunState.QUEUED, 1, {"g": 99, "a": 1}, "waiting"),
        (RunState.QUEUED, 0, {"g": 99, "a": 1}, "well"),
        (RunState.RUNNING, 0, {"a": 16, "m": 1}, "waiting"),
        (RunState.SKIPPED, 0, {"g": 3, "k": 3}, "skipping"),
        (RunState.RETRYING, 0, {"g": 99, "t": 1}, "retrying"),
        (None, 0, {}, "well"),
    ],
)
def test_condition_is_that_of_the_last_run_or_of_many(
    last: RunState | None, age: int, total: Mapping[str, int], expected: str
) -> None:
    at = NOW - age * MINUTE
    run = None if last is None else LastRun(UUID(int=1), last, at, None, None, None, None, None)
    job = JobSummary(
        "job", UUID(int=2), 1, "manual", {}, None, {}, paused=False, paused_until=None, finished_at=None,
        hold_reason=None, next_at=None, postponed_until=None, last_run=run,
    )  # fmt: skip
    assert condition(job, Counter(total), NOW) == expected
    if expected == "failing intermittently":
        assert condition(job, Counter(total), NOW, is_unwell=False) == "recovered", (
            "the last ten runs decide where known"
        )
