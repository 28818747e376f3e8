"""The list of a job's occurrences: its rows, its filters, and equal neighbours in one row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from uuid import UUID

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.grid import WAITING
from tidewheel.control.console.job_line import ran_at, state_of, without_run
from tidewheel.control.console.view import or_else, part_of
from tidewheel.control.console.words import between, family_of, reason_words
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.operations import JobTimeline, TimelineRun
from tidewheel.control.reads.outcomes import ErrorLine, read_error_lines
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.runs import Cause, RunState

_AT_THEIR_TIME = {Cause.TIMER, Cause.TRIGGER}
_FEWEST = 3  # equal neighbours that become one row
_TURNS = 6  # groups of two kinds in turns that become one row
_SLOWEST = 20
_OPENED = 30  # equal neighbours that are opened at once


class Show(StrEnum):
    """The filters of the list."""

    ALL = "all"
    FAILED = "failed"
    SKIPPED = "skipped"
    SLOW = "slowest"
    RETRIED = "retried"


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or a span of occurrences that did not fire.

    Args:
        at: Its place: the instant, of a retry the time at which it ran, of a span the first instant.
        late: The time from its instant to the start of its first attempt, if it was written for that instant.
        words: The type and the message of the error, else the reason.
    """

    at: datetime
    state: str
    run_id: UUID | None = None
    attempt: int = 0
    late: timedelta | None = None
    took: timedelta | None = None
    words: str = ""
    span: Unfired | None = None
    is_retry: bool = False

    @property
    def until(self) -> datetime:
        """The last instant of a span, else its place."""
        return self.span.last_at if self.span is not None else self.at

    @property
    def occurrences(self) -> int:
        """The number of its runs or occurrences."""
        return self.span.occurrences if self.span is not None else 1

    @property
    def is_exact(self) -> bool:
        """False if a span has more occurrences than that."""
        return self.span is None or self.span.exact


def row_of(run: TimelineRun | RunSummary, message: str | None = None) -> Row:
    """Return the row of a run."""
    # A retry has the instant of the run before it, a child that of its root, a backfill one of the past.
    is_own = run.attempt == 1 and run.cause in _AT_THEIR_TIME
    late = between(run.scheduled_at, run.started_at) if is_own else None
    words = ": ".join(filter(None, (run.error_type, message))) or reason_words(run.reason or "")
    took = between(run.started_at, run.finished_at)
    return Row(
        ran_at(run), state_of(run), run.run_id, run.attempt, late, took, words, is_retry=run.cause == Cause.RETRY
    )


def error_lines(connection: Connection, runs: Sequence[TimelineRun | RunSummary]) -> Mapping[UUID, str]:
    """Return the first line of the error of each failed run, or nothing if they cannot be read."""
    failed = [run.run_id for run in runs if run.error_type]
    errors: Mapping[UUID, ErrorLine] = or_else(part_of(connection, read_error_lines, failed), {}) if failed else {}
    return {run_id: each.message for run_id, each in errors.items() if each.message}


def job_rows(
    runs: Sequence[TimelineRun | RunSummary], timeline: JobTimeline, messages: Mapping[UUID, str]
) -> list[Row]:
    """Return runs and skipped spans, the newest first; a skipped run is the row of its skip."""
    rows = [row_of(run, messages.get(run.run_id)) for run in runs]
    skips = without_run(timeline, runs)
    spans = [Row(each.at, RunState.SKIPPED, words=reason_words(each.reason), span=each) for each in skips]
    return sorted([*rows, *spans], key=lambda row: row.at, reverse=True)


def folded(rows: Sequence[Row], opened: datetime | None = None) -> list[Sequence[Row]]:
    """Return groups of equal neighbours, each one row of the page; no row is lost or moved.

    The newest of several runs that began stays by itself, for its page has the details of all.

    Args:
        opened: A place among equal neighbours: from there on, some of them stay by themselves.
    """
    found: list[Sequence[Row]] = []
    for _, equal in groupby(rows, key=lambda row: (row.state, row.words, row.is_retry)):
        group = tuple(equal)
        first, last = 0, 0 if group[0].state in {RunState.SKIPPED, *WAITING} else 1
        if len(group) < _FEWEST:
            last = len(group)
        elif opened is not None and group[-1].at <= opened <= group[0].at:
            first = sum(row.at > opened for row in group)
            last = first + _OPENED
        found += filter(None, (group[:first], *((row,) for row in group[first:last]), group[last:]))
    return found


def woven(folds: Sequence[Sequence[Row]], opened: datetime | None = None) -> list[Sequence[Row]]:
    """Return groups in which those of a job that runs and skips in turns are one."""
    found, kinds, at = list[Sequence[Row]](), [fold[0].state for fold in folds], 0
    while at < len(folds):
        alike = kinds[at] == kinds[-1 if at + 1 == len(folds) else at + 1]
        rest = range(at + 2, at + 2 if alike else len(folds))
        end = next((each for each in rest if kinds[each] != kinds[each - 2]), rest.stop)
        turns = tuple(row for fold in folds[at:end] for row in fold)
        is_opened = opened is not None and turns[-1].at <= opened <= turns[0].at
        if end - at < _TURNS or kinds[at] == kinds[at + 1]:
            end, turns = at + 1, tuple(folds[at])
        found += folds[at:end] if is_opened else [turns]
        at = end
    return found


def filtered(rows: Sequence[Row], show: Show) -> list[Row]:
    """Return the rows of a filter; of the slowest runs, the longest last attempt is first."""
    if show is not Show.SLOW:
        return [row for row in rows if _FITS[show](row)]
    took = [(row.took, row) for row in rows if row.took is not None]
    return [row for _, row in sorted(took, key=itemgetter(0), reverse=True)[:_SLOWEST]]


def counts(rows: Sequence[Row]) -> Mapping[Show, int]:
    """Return the number of runs and occurrences of each filter that leaves some out."""
    return {show: sum(row.occurrences for row in filtered(rows, show)) for show in _FITS}


_FITS: Mapping[Show, Callable[[Row], bool]] = {
    Show.ALL: lambda row: True,
    Show.FAILED: lambda row: family_of(row.state) == "bad",
    Show.SKIPPED: lambda row: row.state == RunState.SKIPPED,
    Show.RETRIED: lambda row: row.attempt > 1,
}
