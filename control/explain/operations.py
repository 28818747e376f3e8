"""Reads of a job on its time axis: its timeline, coming occurrences, past ones, explanations.

A timeline has runs, skips, pauses and versions. Up to `MAX_RUNS` runs are shown one by one. More are counted from the
newest `LOOKED_AT` of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypeAlias, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import AfterValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.explain.explain import Unfired, explain, unfired_between
from tidewheel.control.explain.explanation import MISFIRE_AFTER, Explanation
from tidewheel.control.explain.month import JobCalendar, job_calendar
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.job_position import JobPosition, read_job_position
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.resuming import Resumption, preview_resume
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Instant
from tidewheel.nouns.jobs.operations import JOB
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.operation import InDoors, Noun, operation
from tidewheel.nouns.runs.model import STATUSES
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, Cause

MAX_NEXT = 100
"""The most next occurrences of one call: some tens of milliseconds on a thread of the API, which no time ends."""
MOST_DAYS = 800
"""The longest time of a timeline: counts by day are kept for two years."""
_FIRST_YEAR, _LAST_YEAR = 1971, 2198
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)

_SQL = Statements("tidewheel.control")

MAX_RUNS = 400
LOOKED_AT = 20_000
_MAX_SKIPS = 20
_PauseEntry: TypeAlias = tuple[datetime, bool, str]


@dataclass(frozen=True, slots=True)
class TimelineRun:
    """A run of a timeline; `attempt` is the last one that began.

    Args:
        state: Its state, or `scheduled`.
        reason: The reason of a skip or a cancellation, or the timeout that fired.
    """

    run_id: UUID
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    state: Annotated[str, one_of(STATUSES)]
    cause: Annotated[str, one_of(Cause)]
    attempt: int
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True)
class TimelineBin:
    """The numbers of runs of a part of the time, whose end does not belong to it, by state.

    Args:
        open: Runs that have not ended.
        longest: The longest time of a last attempt.
    """

    at: datetime
    until: datetime
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    skipped: int = 0
    open: int = 0
    longest: timedelta | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """The numbers of runs by their end, in words."""
        return {
            "succeeded": self.succeeded, "failed": self.failed, "timed out": self.timed_out,
            "cancelled": self.cancelled, "skipped": self.skipped, "open": self.open,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the job; `until` is None if it has no end yet."""

    since: datetime
    until: datetime | None
    by: str | None


@dataclass(frozen=True, slots=True)
class VersionTick:
    """A version that came into force."""

    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """The timeline of a job.

    Args:
        until: The end of the time range, which does not belong to it.
        mode: `runs` if the runs are shown one by one, the newest first; else `bins`.
        complete_since: The time from which all runs are counted; None if all of the time is.
        skips: The occurrences that did not fire, the newest first, at most 20.
        pauses: The pauses that the audit log still has, and the present one.
        took_p95: The time that 95 % of its latest successes do not exceed; None without one.
    """

    key: str
    now: datetime
    since: datetime
    until: datetime
    mode: Literal["runs", "bins"]
    runs: tuple[TimelineRun, ...]
    bins: tuple[TimelineBin, ...]
    complete_since: datetime | None
    skips: tuple[Unfired, ...]
    more_skips: bool
    pauses: tuple[Pause, ...]
    versions: tuple[VersionTick, ...]
    took_p95: timedelta | None


class BinCount(NamedTuple):
    """The runs of one state in a bin."""

    bin: int
    state: str
    runs: int
    longest: timedelta | None
    first_at: datetime


def equal_edges(since: datetime, until: datetime, bins: int) -> list[datetime]:
    """Return the edges of bins of one length.

    >>> [f"{edge:%H:%M}" for edge in equal_edges(datetime(2026, 1, 1, 9), datetime(2026, 1, 1, 10), 4)]
    ['09:00', '09:15', '09:30', '09:45', '10:00']
    """
    return [since + (until - since) * at / bins for at in range(bins)] + [until]


def job_timeline(
    connection: Conn,
    tenant: str,
    key: str,
    edges: Sequence[datetime],
    *,
    misfire_after: timedelta = MISFIRE_AFTER,
    explained: bool = True,
) -> JobTimeline:
    """Return the timeline of a job; ascending edges begin its bins, and the last one ends them.

    Args:
        explained: False for skips without their sentences, 400 beside runs.
    """
    job = read_job_position(connection, tenant, key)
    since, until = edges[0], edges[-1]
    columns = {"job_id": job.job_id, "since": since, "until": until}
    runs = read_rows(connection, class_row(TimelineRun), _SQL["find_timeline_runs"], {**columns, "limit": MAX_RUNS + 1})
    bins, complete_since = ((), None) if len(runs) <= MAX_RUNS else _bins(connection, job, edges)
    versions = _versions(connection, columns)
    took = connection.execute(_SQL["read_took_p95"], {"job_id": job.job_id}, binary=True).fetchone()
    last = min(until, job.now)
    most = _MAX_SKIPS if explained or bins else MAX_RUNS
    skips, more = unfired_between(
        connection, job, since, last, limit=most, misfire_after=misfire_after, explained=explained
    )
    return JobTimeline(
        key=key, now=job.now, since=since, until=until, mode="bins" if bins else "runs",
        runs=() if bins else tuple(runs), bins=bins, complete_since=complete_since, skips=tuple(skips),
        more_skips=more, pauses=_pauses(connection, job, since, until), versions=tuple(versions),
        took_p95=cast("timedelta | None", took[0]) if took else None,
    )  # fmt: skip


def binned(edges: Sequence[datetime], counts: Sequence[BinCount]) -> tuple[TimelineBin, ...]:
    """Return bins with their counts; a state that is not final counts as open."""
    bins = [TimelineBin(at, until) for at, until in pairwise(edges)]
    for each in counts:
        name = each.state if each.state in FINAL else "open"
        before = bins[each.bin]
        longest = max((took for took in (before.longest, each.longest) if took is not None), default=None)
        bins[each.bin] = replace(before, longest=longest, **{name: getattr(before, name) + each.runs})
    return tuple(bins)


def _bins(
    connection: Conn, job: JobPosition, edges: Sequence[datetime]
) -> tuple[tuple[TimelineBin, ...], datetime | None]:
    columns = {"job_id": job.job_id, "since": edges[0], "until": edges[-1], "edges": list(edges), "look": LOOKED_AT}
    counts = read_rows(connection, class_row(BinCount), _SQL["count_timeline_runs"], columns)
    is_cut = sum(each.runs for each in counts) >= LOOKED_AT
    return binned(edges, counts), min(each.first_at for each in counts) if is_cut else None


def _pauses(connection: Conn, job: JobPosition, since: datetime, until: datetime) -> tuple[Pause, ...]:
    found = list(joined_pauses(_pause_entries(connection, job.tenant, job.key, min(until, job.now))))
    if job.paused and job.paused_at is not None:
        found = [each for each in found if each.since < job.paused_at]
        found.insert(0, Pause(job.paused_at, job.paused_until, job.paused_by))
    return tuple(each for each in found if each.since < until and (each.until is None or each.until > since))


def _pause_entries(connection: Conn, tenant: str, key: str, until: datetime) -> Sequence[_PauseEntry]:
    """Return pauses and resumes, the newest first: the instant, True for a pause, the author."""
    columns = {"tenant": tenant, "object": f"job/{key}", "until": until}
    return cast("Sequence[_PauseEntry]", connection.execute(_SQL["read_pauses"], columns, binary=True).fetchall())


def _versions(connection: Conn, columns: Mapping[str, object]) -> list[VersionTick]:
    return read_rows(connection, class_row(VersionTick), _SQL["read_versions_since"], columns)


def joined_pauses(entries: Sequence[_PauseEntry]) -> Iterator[Pause]:
    """Yield the pauses that a resume has ended, the newest first."""
    end: datetime | None = None
    begin: tuple[datetime, str] | None = None
    for at, begins, by in (*entries, (datetime.min.replace(tzinfo=UTC), False, "")):
        if begins:
            begin = (at, by)  # the first of several in a row counts
            continue
        if begin is not None and end is not None:
            yield Pause(begin[0], end, begin[1])
        begin, end = None, at


def _month(text: str) -> str:
    if not _MONTH.fullmatch(text) or not _FIRST_YEAR <= int(text[:4]) <= _LAST_YEAR:
        remedy = f"write it as YYYY-MM, from {_FIRST_YEAR} to {_LAST_YEAR}"
        raise InvalidValue(problem=f"{shown(text)} is not a month", remedy=remedy)
    return text


Month = Annotated[str, AfterValidator(_month)]


def first_day(month: str) -> date:
    """Return the first day of a month."""
    return date(int(month[:4]), int(month[5:]), 1)


class Occurrences(Noun):
    """Occurrences of one job."""

    @operation(f"GET {JOB}/next", "list_next_occurrences", scope=Scope.READ)
    def next(
        self,
        key: str,
        n: Annotated[
            int, Field(ge=1, le=MAX_NEXT, description="The maximum number of results."), InDoors("limit")
        ] = 10,
    ) -> Upcoming:
        """Show a job's next occurrences, also skipped and moved ones."""
        late = self._call.installation.misfire_after
        return self._read(upcoming, key, n, misfire_after=late)

    @operation(f"GET {JOB}:explain", "explain_job", scope=Scope.READ)
    def explain(self, key: str, at: Annotated[Instant, Field(description="The instant.")]) -> Explanation:
        """Explain what happened, or will happen, to a job at an instant."""
        late = self._call.installation.misfire_after
        return self._read(explain, key, at, misfire_after=late)


class JobTimes(Noun):
    """The time axis of a job, which REST alone has beside the console."""

    @operation(f"GET {JOB}/timeline", "get_job_timeline", scope=Scope.READ)
    def timeline(
        self,
        key: str,
        from_at: Annotated[Instant, Field(description="Its start."), InDoors("from")],
        to_at: Annotated[Instant, Field(description="Its end, exclusive."), InDoors("to")],
        *,
        bins: Annotated[
            int, Field(ge=1, le=400, description="The number of bins to use for more than 400 runs.")
        ] = 120,
    ) -> JobTimeline:
        """Return a job's runs in a time range, one by one or counted by bin, with skips, pauses and versions."""
        if to_at <= from_at:
            refuse("to", "is not after from", "write a later time")
        if to_at - from_at > timedelta(days=MOST_DAYS):
            refuse("to", "the range is too long", f"write at most {MOST_DAYS} days")
        edges, late = equal_edges(from_at, to_at, bins), self._call.installation.misfire_after
        return self._read(job_timeline, key, edges, misfire_after=late)

    @operation(f"GET {JOB}/calendar", "get_job_calendar", scope=Scope.READ)
    def calendar(
        self,
        key: str,
        *,
        month: Annotated[
            Month | None,
            Field(description="The month as YYYY-MM, in the job's time zone; by default the current month."),
        ] = None,
    ) -> JobCalendar:
        """Return a job's occurrences in a month by day, with clock changes, calendars, skips and moves."""
        return self._read(job_calendar, key, first_day(month) if month else None)

    @operation(f"GET {JOB}/resume-preview", "preview_resume", scope=Scope.READ)
    def preview_resume(self, key: str) -> Resumption:
        """Return which occurrences of a job's pause a resume would fire, and which it would skip."""
        with self._call.snapshot() as connection:
            job = show_job(connection, self._call.tenant, key).summary
            return preview_resume(connection, self._call.tenant, [job.job_id])
