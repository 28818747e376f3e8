"""The shapes of a job's timeline and its list: nothing is lost, and nothing lies outside."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.control.console.axis import Window, axis, axis_between
from tidewheel.control.console.job_line import (
    SIZE,
    Line,
    job_line,
    most_at_once,
    sentence,
)
from tidewheel.control.console.runs import Show, counts, filtered, job_rows
from tidewheel.control.console.urls import Urls
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.job_timeline import JobTimeline, Pause, TimelineBin, TimelineRun, VersionTick
from tidewheel.control.explain.month import Counted
from tidewheel.runs import RunState

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
    state = draw(st.sampled_from(sorted(RunState)))
    return TimelineRun(
        UUID(int=draw(st.integers(0, 9))), at, started, ended, state, "timer", draw(st.integers(0, 9)), None, None
    )


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
    skip = skipped(min(since, until), max(since, until), 3)
    along = axis(window, NOW)
    line = job_line(along, timeline(shown, [skip], [pause]), [Counted(1, exact=True)], (), URLS, address=ADDRESS)
    assert inside(line)
    assert sum(mark.href is not None for mark in line.marks) == len(shown)
    assert "3 occurrences did not fire; 1 occurrence to come" in line.words


def test_runs_at_once_are_counted_and_one_after_another_are_not() -> None:
    def run(begin: int, end: int | None) -> TimelineRun:
        until = None if end is None else NOW + end * SECOND
        return TimelineRun(UUID(int=1), NOW, NOW + begin * SECOND, until, "running", "timer", 1, None, None)

    assert most_at_once([], NOW) == 0
    assert most_at_once([run(-9, -5), run(-5, -3)], NOW) == 1
    overlapping = [run(-9, -5), run(-8, -3), run(-6, None)]
    assert most_at_once(overlapping, NOW) == 3
    along = axis(Window.HOUR, NOW)
    assert "up to 3 at once" in job_line(along, timeline(overlapping), (), (), URLS, address=ADDRESS).words


def test_sentence_counts_the_runs_that_were_skipped() -> None:
    def words(*states: str, cause: str = "workflow") -> str:
        shown = [TimelineRun(UUID(int=1), NOW, None, NOW, each, cause, 0, None, None) for each in states]
        return sentence(axis(Window.HOUR, NOW), timeline(shown), ()).partition(": ")[2]

    assert words(*["skipped"] * 4) == "no run started, and 4 were skipped."
    assert words("skipped", "queued") == "none succeeded or failed, 1 open, 1 skipped."
    assert words("failed", "skipped") == "none succeeded, 1 failed, 1 skipped."
    assert words("skipped", cause="timer") == "no run ended.", "the skips have those of the timer"


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
def test_list_has_each_run_and_each_skip_once_in_the_order_of_time(
    shown: list[TimelineRun], instants_skipped: list[datetime]
) -> None:
    skips = [skipped(at, at, 1) for at in instants_skipped]
    rows = job_rows(shown, timeline(shown, skips))
    assert [row.at for row in rows] == sorted((row.at for row in rows), reverse=True)
    hidden = sum(run.state == "skipped" and run.scheduled_at in instants_skipped for run in shown)
    assert len(rows) == len(shown) + len(skips) - hidden
    assert counts(rows, SECOND)[Show.ALL] == len(rows)
    assert all(row in rows for show in Show for row in filtered(rows, show, SECOND))
