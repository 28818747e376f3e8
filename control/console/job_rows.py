"""The list of a job's occurrences: runs and skipped spans by time, with filters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from tidewheel.control.console.words import between, family_of, reason_words
from tidewheel.control.explain.job_timeline import JobTimeline, TimelineRun
from tidewheel.control.explain.recent import Unfired
from tidewheel.nouns.freezes.model import FreezeChange
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.runs import Cause

LATE = timedelta(seconds=1)
"""A run that begins so long after its instant is late."""

_AT_THEIR_TIME = {Cause.TIMER, Cause.TRIGGER}


class Show(StrEnum):
    """The filters of the list."""

    ALL = "all"
    FAILED = "failed"
    SKIPPED = "skipped"
    SLOW = "slow"
    RETRIED = "retried"


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or a span of occurrences that did not fire.

    Args:
        at: Its instant; of a span the first.
        state: The state of the run, or `skipped`.
        run_id: The run; None of a span.
        late: The time from its instant to the start of its first attempt, if it was written for that instant.
        took: The time of its last attempt.
        words: The error type, or the reason.
    """

    at: datetime
    state: str
    run_id: UUID | None = None
    attempt: int = 0
    late: timedelta | None = None
    took: timedelta | None = None
    words: str = ""
    span: Unfired | None = None


def row_of(run: TimelineRun | RunSummary) -> Row:
    """Return the row of a run."""
    shown = run.status if isinstance(run, RunSummary) else run.state
    # A retry has the instant of the run before it, a child that of its root, a backfill one of the past.
    is_own = run.attempt == 1 and run.cause in _AT_THEIR_TIME
    late = between(run.scheduled_at, run.started_at) if is_own else None
    words = run.error_type or reason_words(run.reason or "")
    return Row(run.scheduled_at, shown, run.run_id, run.attempt, late, between(run.started_at, run.finished_at), words)


def job_rows(runs: Iterable[TimelineRun | RunSummary], timeline: JobTimeline) -> list[Row]:
    """Return runs and skipped spans, the newest first; a skipped run is in its span."""
    spans = [Row(each.at, "skipped", words=each.words, span=each) for each in timeline.skips]
    covered = {each.at for each in timeline.skips if each.at == each.last_at}
    shown = [row_of(run) for run in runs]
    rows = [each for each in shown if each.state != "skipped" or each.at not in covered]
    return sorted([*rows, *spans], key=lambda row: row.at, reverse=True)


def frozen(rows: Iterable[Row], thaws: Sequence[FreezeChange]) -> set[UUID | None]:
    """Return the late runs that began after one of these thaws, before which they were due."""
    late = ((row, row.at + row.late) for row in rows if row.late is not None and row.late > LATE)
    return {row.run_id for row, began in late if any(row.at < thaw.at <= began for thaw in thaws)}


def filtered(rows: Sequence[Row], show: Show, took_p95: timedelta | None) -> list[Row]:
    """Return the rows of a filter."""
    return [row for row in rows if _FITS[show](row, took_p95)]


def counts(rows: Sequence[Row], took_p95: timedelta | None) -> Mapping[Show, int]:
    """Return the number of runs and occurrences of each filter."""
    return {
        show: sum(row.span.occurrences if row.span else 1 for row in filtered(rows, show, took_p95)) for show in Show
    }


_FITS: Mapping[Show, Callable[[Row, timedelta | None], bool]] = {
    Show.ALL: lambda row, p95: True,
    Show.FAILED: lambda row, p95: family_of(row.state) == "bad",
    Show.SKIPPED: lambda row, p95: row.state == "skipped",
    Show.SLOW: lambda row, p95: p95 is not None and row.took is not None and row.took > p95,
    Show.RETRIED: lambda row, p95: row.attempt > 1,
}
