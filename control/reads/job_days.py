"""Read the counts of a job's runs by the day on which they ended.

Retention counts a day an hour after its end, and keeps the counts for years after the runs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from psycopg.rows import class_row

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
    """Quantiles of durations in seconds, each within 5 %; None without durations.

    Args:
        p50: The half of them is not longer.
        p90: Nine tenths of them are not longer.
        p99: Ninety-nine hundredths of them are not longer.
    """

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class LongestRun:
    """The run whose last attempt took the longest.

    Args:
        run_id: The run; it may be removed.
        took: The duration of that attempt, in seconds.
    """

    run_id: UUID
    took: float


@dataclass(frozen=True, slots=True)
class JobDay:
    """The runs of a job that ended on a day of UTC, or on several.

    Args:
        day: The day; the first one of a sum.
        succeeded: The number of runs that succeeded.
        failed: That failed.
        timed_out: That timed out.
        cancelled: That were cancelled.
        skipped: That were skipped.
        attempts: The number of their attempts.
        duration: Of their last attempts.
        lateness: From the time at which a last attempt might start to its start.
        longest: The longest run; None if no run started, or if a release before 0.2 counted the day.
    """

    day: date
    succeeded: int
    failed: int
    timed_out: int
    cancelled: int
    skipped: int
    attempts: int
    duration: Quantiles
    lateness: Quantiles
    longest: LongestRun | None


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """The counted days of a job.

    Args:
        key: The job's key.
        days: Days with runs, the newest first.
        total: All of them together; None without a day.
    """

    key: str
    days: tuple[JobDay, ...]
    total: JobDay | None


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
