"""Outcomes of a job's runs: failures since the last success, messages, durations, what retries repeat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.nouns.runs.model import RunSummary
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_READ_ANCESTORS = Statements("tidewheel.transitions")["read_ancestors"]

_TIMED = 20_000  # runs of all jobs of one answer: some tens of milliseconds
_MOST_TIMED = 20  # jobs
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Streak:
    """The failures of a job since its last success.

    Args:
        since: The end of the first one.
        first_version: The lowest version of the job among them.
        run_id: The newest one.
        good_version: The highest version that succeeded; None if no success is among the runs that were read.
        at_least: True if there may be more failures, before `since`.
    """

    failures: int
    since: datetime
    first_version: int
    last_version: int
    run_id: UUID
    error_type: str | None
    message: str | None
    good_version: int | None
    at_least: bool

    @property
    def since_version(self) -> int | None:
        """The version that fails where earlier ones succeeded; None if a success has this version too."""
        is_apart = self.good_version is not None and self.good_version < self.first_version
        return self.first_version if is_apart else None


def read_streak(connection: Conn, job_id: UUID) -> Streak | None:
    """Return the failures since the last success, among the newest 1,000 ended runs; None without."""
    return read_row(connection, class_row(Streak), _SQL["read_streak"], {"job_id": job_id})


class ErrorLine(NamedTuple):
    """The type of an error, and the first line of its message."""

    error_type: str | None
    message: str | None

    @property
    def text(self) -> str:
        """Both, as far as they are known."""
        return ": ".join(each for each in self if each)


def read_error_lines(connection: Conn, run_ids: Sequence[UUID]) -> Mapping[UUID, ErrorLine]:
    """Return the error of each of these runs that failed."""
    return _errors(connection, _SQL["read_error_lines"], {"run_ids": list(run_ids)})


def read_newest_errors(connection: Conn, job_ids: Sequence[UUID]) -> Mapping[UUID, ErrorLine]:
    """Return the error of the newest dead letter of each of these jobs."""
    return _errors(connection, _SQL["read_newest_errors"], {"job_ids": list(job_ids)})


def _errors(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> Mapping[UUID, ErrorLine]:
    found = connection.execute(statement, columns, binary=True).fetchall()
    return {each: ErrorLine(*line) for each, *line in cast("list[tuple[UUID, str | None, str | None]]", found)}


@dataclass(frozen=True, slots=True)
class JobTimes:
    """The last attempts of a job's runs that ended in a time.

    Args:
        at_least: True if the job has more, older ones.
        share: The part of the time of all jobs of the answer that these took.
    """

    key: str
    job_id: UUID
    attempts: int
    at_least: bool
    p50: timedelta
    p99: timedelta
    share: float


@dataclass(frozen=True, slots=True)
class _Times:
    job_id: UUID
    runs: int
    attempts: int
    p50: timedelta
    p99: timedelta
    total: timedelta
    first_at: datetime


def read_job_times(conn: Conn, runs: Sequence[RunSummary], since: datetime, now: datetime) -> Sequence[JobTimes]:
    """Return the durations of the first 20 jobs of these runs, the largest share first.

    Of a job with very many runs, the newest ones count for the whole time.
    """
    keys = dict(list({run.job_id: run.key for run in runs}.items())[:_MOST_TIMED])
    if not keys:
        return ()
    look = _TIMED // len(keys)
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)  # a partition has the ends of a day
    columns = {"job_ids": uuids(list(keys)), "day": day, "since": since, "look": look}
    times = read_rows(conn, class_row(_Times), _SQL["read_job_times"], columns)
    # Of each second of the time that its runs cover, a job took so much.
    busy = [each.total / max(now - (each.first_at if each.runs >= look else since), _SECOND) for each in times]
    whole = sum(busy) or 1.0
    found = [
        JobTimes(keys[each.job_id], each.job_id, each.attempts, each.runs >= look, each.p50, each.p99, part / whole)
        for each, part in zip(times, busy, strict=True)
    ]
    return sorted(found, key=lambda each: (-each.share, each.key))


def read_repeated(connection: Conn, run_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
    """Return the run that each of these retries repeats."""
    found = connection.execute(_READ_ANCESTORS, {"run_ids": list(run_ids)}, binary=True).fetchall()
    rows = cast("list[tuple[UUID, UUID | None, UUID | None]]", found)
    return {run_id: parent for run_id, parent, _ in rows if parent is not None}
