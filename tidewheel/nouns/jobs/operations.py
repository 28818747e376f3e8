"""`client.jobs`, the client's own methods that concern one job, and the counts of its runs by day.

Retention counts a day an hour after its end, and keeps the counts for years after the runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal, Unpack
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.activity import quantile, unpack
from tidewheel.api_keys import Scope
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.jobs.schedule import Interval
from tidewheel.jobs.values import IfVersion, Instant, OverlapPolicy, Reason
from tidewheel.nouns.jobs.model import (
    BackfillResult,
    Begin,
    Change,
    Job,
    JobDetail,
    JobFilter,
    JobPage,
    Version,
    backfill_of,
    job_of,
)
from tidewheel.nouns.jobs.reads import list_jobs, show_job
from tidewheel.nouns.operation import InDoors, Noun, Rows, operation
from tidewheel.nouns.works.operations import WORKS
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL

_SQL = Statements("tidewheel.control")

MAX_DAYS = 1000
"""The days of one answer; counts are kept for 730 days."""

JOBS = "/api/v1/jobs"
JOB = f"{JOBS}/{{key}}"

At = Annotated[Instant, Field(description="The occurrence's nominal instant.")]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of durations in seconds, each within 5 %; None without durations."""

    p50: Annotated[float | None, Field(description="Half of them are not longer.")]
    p90: Annotated[float | None, Field(description="Nine tenths of them are not longer.")]
    p99: Annotated[float | None, Field(description="Ninety-nine hundredths of them are not longer.")]


@dataclass(frozen=True, slots=True)
class LongestRun:
    """The run whose last attempt took the longest."""

    run_id: Annotated[UUID, Field(description="The run, which may have been removed.")]
    took: Annotated[float, Field(description="The duration of that attempt, in seconds.")]


@dataclass(frozen=True, slots=True)
class JobDay:
    """The runs of a job that ended on a day of UTC, or on several."""

    day: Annotated[date, Field(description="The day; the first one of a sum.")]
    succeeded: Annotated[int, Field(description="The number of runs that succeeded.")]
    failed: Annotated[int, Field(description="That failed.")]
    timed_out: Annotated[int, Field(description="That timed out.")]
    cancelled: Annotated[int, Field(description="That were cancelled.")]
    skipped: Annotated[int, Field(description="That were skipped.")]
    attempts: Annotated[int, Field(description="The number of their attempts.")]
    duration: Annotated[Quantiles, Field(description="The durations of their last attempts.")]
    lateness: Annotated[
        Quantiles,
        Field(description="The lateness of last attempts: from the time at which each could start to its start."),
    ]
    longest: Annotated[
        LongestRun | None,
        Field(description="The longest run; null if no run started, or if a release before 0.2 counted the day."),
    ]


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """The counted days of a job."""

    key: Annotated[str, Field(description="The job's key.")]
    days: Annotated[tuple[JobDay, ...], Field(description="Days with runs, newest first.")]
    total: Annotated[JobDay | None, Field(description="The sum of all days; null if there are none.")]


@dataclass(frozen=True, slots=True)
class CountedDay:
    """The row of a day; a bucket of durations or lateness is packed."""

    day: date
    succeeded: int
    failed: int
    timed_out: int
    cancelled: int
    skipped: int
    attempts: int
    durations: list[int]
    lateness: list[int]
    longest: float | None
    longest_run_id: UUID | None


def read_counted_days(connection: Conn, job: UUID, days: int) -> Sequence[CountedDay]:
    """Return the counted days of a job, up to so many before today, newest first."""
    return read_rows(connection, class_row(CountedDay), _SQL["read_job_days"], {"job_id": job, "days": days})


def _day(rows: Sequence[CountedDay]) -> JobDay:
    durations, lateness = Counter[int](), Counter[int]()
    for row in rows:
        durations += unpack(row.durations)
        lateness += unpack(row.lateness)
    ran = [
        LongestRun(row.longest_run_id, row.longest) for row in rows if row.longest_run_id and row.longest is not None
    ]
    return JobDay(
        day=rows[-1].day,
        duration=_quantiles(durations),
        lateness=_quantiles(lateness),
        longest=max(ran, key=lambda each: each.took, default=None),
        **{name: sum(getattr(row, name) for row in rows) for name in (*FINAL, "attempts")},
    )


def _quantiles(counts: Mapping[int, int]) -> Quantiles:
    return Quantiles(quantile(counts, 0.5), quantile(counts, 0.9), quantile(counts, 0.99))


class Jobs(Noun):
    """Reads of jobs; `Client.submit`, `patch` and `delete` change them."""

    @operation(f"GET {JOBS}", "list_jobs", scope=Scope.READ)
    def list(self, *, after: Begin = "", limit: Rows = 50, **filters: Unpack[JobFilter]) -> JobPage:
        """List jobs by key, each with its next occurrence and last run."""
        return self._read(list_jobs, after=after, limit=limit, **filters)

    @operation(f"GET {JOB}", "get_job", scope=Scope.READ)
    def get(self, key: str) -> JobDetail:
        """Show a job: its spec, state, pause and last run."""
        return self._read(show_job, key)


class OneJob(Noun):
    """Calls about one job."""

    @operation(f"POST {JOB}:pause", "pause_job", scope=Scope.OPERATE, sent={"reason": "maintenance"})
    def pause(
        self,
        key: str,
        *,
        until: Annotated[Instant | None, Field(description="Resume the job automatically at this time.")] = None,
        reason: Reason | None = None,
        request_id: str | None = None,
    ) -> Job:
        """Pause a job's schedule; triggers still run."""
        return self._change("job.pause", key, request_id, until=until, reason=reason)

    @operation(f"POST {JOB}:resume", "resume_job", scope=Scope.OPERATE)
    def resume(self, key: str, *, reason: Reason | None = None, request_id: str | None = None) -> Job:
        """Resume a paused job."""
        return self._change("job.resume", key, request_id, reason=reason)

    @operation(f"DELETE {JOB}", "delete_job", scope=Scope.WRITE)
    def delete(
        self,
        key: str,
        *,
        if_version: IfVersion | None = None,
        reason: Reason | None = None,
        request_id: str | None = None,
    ) -> Job:
        """Delete a job; started runs finish, the rest are cancelled."""
        return self._change("job.delete", key, request_id, if_version=if_version, reason=reason)

    @operation(
        f"POST {JOB}:backfill", "backfill_job", scope=Scope.OPERATE, starts=WORKS,
        sent={"from": "2026-11-01T00:00:00Z", "to": "2026-11-08T00:00:00Z", "versions": "current"},
    )  # fmt: skip
    def backfill(
        self,
        key: str,
        from_at: Annotated[Instant, Field(description="The first instant of the range."), InDoors("from")],
        to_at: Annotated[Instant, Field(description="The last instant of the range."), InDoors("to")],
        *,
        what: Annotated[
            Literal["missing_only", "all"], Field(description="The occurrences that did not fire, or all.")
        ] = "missing_only",
        versions: Annotated[
            Literal["as_of", "current"],
            Field(description="The version in force at each instant, or the current one throughout."),
        ] = "as_of",
        overlap: Annotated[OverlapPolicy | None, Field(description="Replaces the job's policy.")] = None,
        max_concurrent: Annotated[
            int, Field(ge=1, le=1000, description="The limit on open runs of this backfill.")
        ] = 10,
        order: Annotated[
            Literal["oldest_first", "newest_first"], Field(description="The end of the range to start with.")
        ] = "oldest_first",
        dry_run: Annotated[bool, Field(description="Only count the runs.")] = False,
        reason: Reason | None = None,
        request_id: str | None = None,
    ) -> BackfillResult:
        """Run the occurrences of a past range, both ends included."""
        document: dict[str, object] = {
            "type": "job.backfill", "key": key, "from": from_at, "to": to_at, "what": what, "versions": versions,
            "overlap": overlap, "max_concurrent": max_concurrent, "order": order, "dry_run": dry_run, "reason": reason,
        }  # fmt: skip
        return backfill_of(self._call.request(document, request_id))

    @operation(f"POST {JOB}:rollback", "roll_back_job", scope=Scope.WRITE)
    def rollback(self, key: str, version: Number, *, if_version: IfVersion | None = None) -> Job:
        """Restore the spec of an earlier version, as a new version."""
        return self._change("job.rollback", key, version=version, if_version=if_version)

    @operation(f"POST {JOB}:skip", "skip_occurrence", scope=Scope.OPERATE)
    def skip(self, key: str, at: At, *, reason: Reason | None = None) -> Job:
        """Skip one future occurrence of a job."""
        return self._change("job.skip", key, at=at, reason=reason)

    @operation(f"POST {JOB}:move", "move_occurrence", scope=Scope.OPERATE)
    def move(
        self,
        key: str,
        at: At,
        to: Annotated[Instant, Field(description="New time of the occurrence.")],
        *,
        reason: Reason | None = None,
    ) -> Job:
        """Move one future occurrence of a job to another time."""
        return self._change("job.move", key, at=at, to=to, reason=reason)

    @operation(f"POST {JOB}:unskip", "unskip_occurrence", scope=Scope.OPERATE)
    def unskip(self, key: str, at: At) -> Job:
        """Undo a skip or a move of a future occurrence."""
        return self._change("job.unskip", key, at=at)

    @operation(
        f"POST {JOB}:reschedule", "reschedule_job", scope=Scope.OPERATE,
        sent={"next_in": "30s", "reason": "orders are waiting"},
    )  # fmt: skip
    def reschedule(
        self,
        key: str,
        next_in: Annotated[
            Interval,
            Field(description="Time from the end of its last run, within `min` and `max` of its `fixed_delay`."),
        ],
        *,
        reason: Reason | None = None,
    ) -> Job:
        """Set when a fixed_delay job runs next; later intervals are its own again."""
        return self._change("job.reschedule", key, next_in=next_in, reason=reason)

    @operation(f"GET {JOB}/statistics", "get_job_statistics", scope=Scope.READ)
    def statistics(
        self,
        key: str,
        days: Annotated[int, Field(ge=1, le=MAX_DAYS, description="How many days to look back.")] = 30,
    ) -> JobStatistics:
        """Show a job's runs by day: counts, durations and lateness.

        The counts are kept for two years.
        """
        job = job_id(self._call.tenant, key)
        with self._call.snapshot() as connection:
            rows = read_counted_days(connection, job, days)
            if not rows and connection.execute(_SQL["read_job_position"], {"job_id": job}).fetchone() is None:
                raise UnknownJob(self._call.tenant, key)
        return JobStatistics(key, tuple(_day([row]) for row in rows), _day(rows) if rows else None)

    @operation(f"GET {JOB}/versions", "list_job_versions", scope=Scope.READ)
    def versions(self, key: str, *, limit: Rows = 20, before: Number | None = None) -> list[Version]:
        """List a job's versions, newest first, each with its changes."""
        from tidewheel.nouns.jobs.versions import versions  # here and below: a list of jobs needs no codec

        return self._read(versions, key, limit=limit, before=before)

    @operation(f"GET {JOB}/diff", "compare_job_versions", scope=Scope.READ)
    def diff(self, key: str, a: Number, b: Number) -> list[Change]:
        """Compare version `b` of a job with version `a`."""
        from tidewheel.nouns.jobs.versions import diff

        return self._read(diff, key, a, b)

    def _change(self, kind: str, key: str, request_id: str | None = None, **fields: object) -> Job:
        return job_of(self._call.request({"type": kind, "key": key, **fields}, request_id))
