"""The shapes of a job's timeline and its list: nothing is lost, and nothing lies outside."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.control.console.axis import Window, axis, axis_between
from tidewheel.control.console.job_line import SIZE, Line, job_line
from tidewheel.control.console.job_rows import Row, Show, counts, filtered, folded, job_rows, woven
from tidewheel.control.console.urls import Urls
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.month import Counted
from tidewheel.control.explain.operations import JobTimeline, Pause, TimelineBin, TimelineRun, VersionTick
from tidewheel.ids import first_run_id
from tidewheel.runs import Cause, RunState

NOW = datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC)
URLS = Urls("", {})
ADDRESS = partial(URLS.job, "job", UUID(int=1))
SECOND = timedelta(seconds=1)

instants = st.integers(-200 * 86_400, 20 * 86_400).map(lambda seconds: NOW + timedelta(seconds=seconds))
spans = st.none() | st.integers(0, 10**6).map(lambda seconds: timedelta(seconds=seconds))


@st.composite
def runs(draw: st.DrawFn) -> TimelineRun:
    at, wait, took = draw(instants), draw(spans), draw(spans)
    started = None if wait is None else at + wait
    ended = None if started is None or took is None else started + took
    state, cause = draw(st.sampled_from(sorted(RunState))), draw(st.sampled_from([Cause.TIMER, Cause.RETRY]))
    requested = first_run_id(at + (draw(spans) or timedelta(0)))
    return TimelineRun(requested, at, started, ended, state, cause, draw(st.integers(0, 9)), None, None)


def timeline(shown: Sequence[TimelineRun], skips: Sequence[Unfired] = (), pauses: Sequence[Pause] = ()) -> JobTimeline:
    return JobTimeline(
        "job", NOW, NOW, NOW, "runs", tuple(shown), (), None, tuple(skips), more_skips=False,
        pauses=tuple(pauses), versions=(VersionTick(1, NOW),), took_p95=timedelta(seconds=5),
    )  # fmt: skip


def skipped(first: datetime, last: datetime, occurrences: int) -> Unfired:
    return Unfired(first, last, occurrences, exact=True, reason="paused", words="It came due during a pause.")


def inside(line: Line) -> bool:
    bars = [mark.bar for mark in line.marks if mark.bar] + [bar for bar, _ in line.pauses]
    wide = all(0 <= bar.x <= 100 and bar.x + bar.width <= 100.5 for bar in bars)
    return wide and all(bar.y >= 0 and bar.y + bar.height <= SIZE.height for bar in bars)


@given(st.lists(runs(), max_size=20), st.sampled_from(Window), instants, instants)
def test_every_run_has_a_mark_within_the_drawing(
    shown: list[TimelineRun], window: Window, since: datetime, until: datetime
) -> None:
    pause = Pause(min(since, until), max(since, until), "anna")
    skip = skipped(min(since, until), max(since, until) + SECOND, 3)
    along = axis(window, NOW)
    line = job_line(along, timeline(shown, [skip], [pause]), [Counted(1, exact=True)], (), URLS, address=ADDRESS)
    assert inside(line)
    assert sum(mark.href is not None for mark in line.marks) == len(shown)
    assert any("3 occurrences not fired" in mark.words for mark in line.marks)


def test_bins_lead_to_their_time() -> None:
    along = axis(Window.HOUR, NOW)
    at = along.edges[4]
    found = TimelineBin(
        at, along.edges[5], succeeded=3, failed=1, timed_out=0, cancelled=0, skipped=0, open=0, longest=SECOND
    )
    line = job_line(along, replace(timeline([]), mode="bins", bins=(found,)), (), (), URLS, address=ADDRESS)
    assert {mark.href for mark in line.marks} == {
        ADDRESS(**{"from": "2026-11-21T21:18:30Z", "to": "2026-11-21T21:20:30Z"})
    }


@given(instants, st.integers(1, 200 * 86_400))
def test_axis_of_a_time_holds_it_on_few_bins(begin: datetime, seconds: int) -> None:
    end = begin + timedelta(seconds=seconds)
    along = axis_between(begin, end, NOW)
    assert along.begin <= begin < end <= along.end
    assert len(along.edges) <= 250
    assert list(along.edges) == sorted(set(along.edges))
    assert 0 <= along.behind < len(along.edges)
    if along.begin <= NOW < along.end:
        assert along.edges[along.behind - 1] <= NOW < along.edges[along.behind]


@given(st.lists(runs(), max_size=20), st.lists(instants, max_size=4, unique=True))
def test_list_has_each_run_and_skip_once_in_order(shown: list[TimelineRun], instants_skipped: list[datetime]) -> None:
    skips = [skipped(at, at, 1) for at in instants_skipped]
    rows = job_rows(shown, timeline(shown, skips), {})
    assert [row.at for row in rows] == sorted((row.at for row in rows), reverse=True)
    occurrences = {run.scheduled_at for run in shown if run.state == "skipped" and run.cause == Cause.TIMER}
    assert len(rows) == len(shown) + len(set(instants_skipped) - occurrences)
    assert counts(rows)[Show.ALL] == len(rows)
    assert all(row in rows for show in Show for row in filtered(rows, show))


@st.composite
def lists(draw: st.DrawFn) -> list[Row]:
    """Rows in the order of a list: long stretches of equal ones, some of them spans."""
    alike = st.tuples(st.sampled_from(["failed", "skipped"]), st.sampled_from(["", "E"]), st.booleans())
    ages = iter(sorted(draw(st.lists(st.integers(0, 60), min_size=320, max_size=320))))
    rows: list[Row] = []
    for (state, words, is_retry), many in draw(st.lists(st.tuples(alike, st.integers(1, 40)), max_size=8)):
        for _ in range(many):
            at = NOW - next(ages) * SECOND
            span = skipped(at, at, draw(st.integers(1, 9))) if state == "skipped" and draw(st.booleans()) else None
            rows.append(Row(at, state, UUID(int=len(rows)), words=words, span=span, is_retry=is_retry))
    return rows


@given(lists(), st.sampled_from(Show), st.none() | st.integers(-1, 61).map(lambda age: NOW - age * SECOND))
def test_unfolded_list_has_the_same_rows_in_order(rows: list[Row], show: Show, opened: datetime | None) -> None:
    shown = filtered(rows, show)
    folds = folded(shown, opened)
    assert [row for fold in folds for row in fold] == shown
    assert all(len({(row.state, row.words, row.is_retry) for row in fold}) == 1 for fold in folds)
    assert sum(row.occurrences for fold in folds for row in fold) == sum(row.occurrences for row in shown)


@given(lists(), st.none() | st.integers(-1, 61).map(lambda age: NOW - age * SECOND))
def test_runs_and_skips_in_turns_lose_no_row(rows: list[Row], opened: datetime | None) -> None:
    assert [row for fold in woven(folded(rows, opened), opened) for row in fold] == rows


def test_runs_and_skips_in_turns_are_one_row_until_they_are_opened() -> None:
    states = ["running", *["skipped", "skipped", "skipped", "succeeded"] * 5, "failed"]
    rows = [Row(NOW - at * SECOND, state, UUID(int=at)) for at, state in enumerate(states)]
    assert [len(fold) for fold in woven(folded(rows))] == [1, 20, 1]
    assert [len(fold) for fold in woven(folded(rows, rows[4].at), rows[4].at)] == [1, *[3, 1] * 5, 1]


def test_equal_neighbours_are_one_row_until_they_are_opened() -> None:
    def row(at: int, state: str) -> Row:
        return Row(NOW - at * SECOND, state, UUID(int=at), words="E")

    rows = [*(row(at, "failed") for at in range(40)), row(40, "succeeded")]
    rows += [row(at, "skipped") for at in range(41, 66)]
    assert [len(fold) for fold in folded(rows)] == [1, 39, 1, 25], "the newest failure can be opened"
    opened = folded(rows, rows[1].at)
    assert [len(fold) for fold in opened] == [1] * 31 + [9, 1, 25], "30 at once"
    further = folded(rows, opened[31][0].at)
    assert [len(fold) for fold in further] == [31, *[1] * 9, 1, 25]
