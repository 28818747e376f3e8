"""Read the counts of a job's runs by the day on which they ended.

Retention counts a day an hour after its end, and keeps the counts for years after the runs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.activity import quantile, unpack
from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_READ_JOB_DAYS = _SQL["read_job_days"]
_READ_JOB_POSITION = _SQL["read_job_position"]

MAX_DAYS = 1000
"""The days of one answer; counts are kept for 730 days."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of durations in seconds, each within 5 %; None without durations."""

    p50: Annotated[float | None, Field(description="The half of them is not longer.")]
    p90: Annotated[float | None, Field(description="Nine tenths of them are not longer.")]
    p99: Annotated[float | None, Field(description="Ninety-nine hundredths of them are not longer.")]


@dataclass(frozen=True, slots=True)
class LongestRun:
    """The run whose last attempt took the longest."""

    run_id: Annotated[UUID, Field(description="The run; it may be removed.")]
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
    duration: Annotated[Quantiles, Field(description="Of their last attempts.")]
    lateness: Annotated[Quantiles, Field(description="From the time at which a last attempt might start to its start.")]
    longest: Annotated[
        LongestRun | None,
        Field(description="The longest run; null if no run started, or if a release before 0.2 counted the day."),
    ]


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """The counted days of a job."""

    key: Annotated[str, Field(description="The job's key.")]
    days: Annotated[tuple[JobDay, ...], Field(description="Days with runs, the newest first.")]
    total: Annotated[JobDay | None, Field(description="All of them together; null without a day.")]


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


def job_statistics(connection: Conn, tenant: str, key: str, days: int = 30) -> JobStatistics:
    """Return the counts of a job, also a removed one, for so many days before today."""
    job = job_id(tenant, key)
    rows = read_counted_days(connection, job, days)
    if not rows and not _is_known(connection, job):
        raise UnknownJob(tenant, key)
    shown = tuple(_day([row]) for row in rows)
    return JobStatistics(key, shown, _day(rows) if rows else None)


def read_counted_days(connection: Conn, job: UUID, days: int) -> Sequence[CountedDay]:
    """Return the counted days of a job, up to so many before today, the newest first."""
    with connection.cursor(row_factory=class_row(CountedDay), binary=True) as cursor:
        return cursor.execute(_READ_JOB_DAYS, {"job_id": job, "days": days}).fetchall()


def _day(rows: Sequence[CountedDay]) -> JobDay:
    """Return the sum of rows, the newest of which is first."""
    durations, lateness = Counter[int](), Counter[int]()
    for row in rows:
        durations += unpack(row.durations)
        lateness += unpack(row.lateness)
    return JobDay(
        day=rows[-1].day,
        succeeded=sum(row.succeeded for row in rows),
        failed=sum(row.failed for row in rows),
        timed_out=sum(row.timed_out for row in rows),
        cancelled=sum(row.cancelled for row in rows),
        skipped=sum(row.skipped for row in rows),
        attempts=sum(row.attempts for row in rows),
        duration=_quantiles(durations),
        lateness=_quantiles(lateness),
        longest=max(_longest(rows), key=lambda each: each.took, default=None),
    )


def _longest(rows: Sequence[CountedDay]) -> Iterator[LongestRun]:
    for row in rows:
        if row.longest is not None and row.longest_run_id is not None:
            yield LongestRun(row.longest_run_id, row.longest)


def _quantiles(counts: Mapping[int, int]) -> Quantiles:
    return Quantiles(quantile(counts, 0.5), quantile(counts, 0.9), quantile(counts, 0.99))


def _is_known(connection: Conn, job: UUID) -> bool:
    return connection.execute(_READ_JOB_POSITION, {"job_id": job}).fetchone() is not None
