"""Lock jobs for a change, and rows that a user's transaction may hold.

Timers are locked first, then job rows, each in job_id order, as firing does. The holder of a timer's lock sees each
firing of the job before or after its change, never half of one.

A user's own transaction holds the row of a run that it completes, and the keys of the jobs that it triggers. It can do
so for hours, and no other request may wait for it. A request takes such a row if it is free. Otherwise it waits for
200 ms, long enough for a claim or an end under way, and then goes on without the row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, cast
from uuid import UUID

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.ids import JobId
from tidewheel.intake.request import ReceivedRequest
from tidewheel.intake.timers import decide_frozen, lift_ended_pauses, read_locked_timers
from tidewheel.intake.writing import Writing
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import HoldReason
from tidewheel.schemas.generated.records import RequestOrigin
from tidewheel.transitions.timers import LockedTimer

_SQL = Statements("tidewheel.intake")

_LOCK_TIMEOUT = "200ms"  # below deadlock_timeout (1 s): a wait out of lock order aborts no other transaction


class RowLocked(Unavailable):
    """Another transaction has held a row that a request needs for longer than 200 ms; nothing was written."""

    def __init__(self, what: str, requests: Iterable[ReceivedRequest]) -> None:
        super().__init__(f"{what} is locked by an open transaction; send the request again")
        self.origins: tuple[RequestOrigin, ...] = tuple(each.origin for each in requests if each.origin is not None)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's locked row with its schedule and policy in force."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int
    created_at: datetime
    spec_hash: bytes | None = None
    interval_anchor: datetime | None = None
    interval_us: int | None = None
    paused: bool = False
    paused_until: datetime | None = None
    consecutive_failures: int = 0
    pause_on_failure: int | None = None
    finished_at: datetime | None = None
    deleted_at: datetime | None = None
    root_job_id: UUID | None = None
    schedule_json: str | None = None
    policy_json: str | None = None

    @property
    def exists(self) -> bool:
        """True if the job exists: it has a version and is not deleted."""
        return self.version > 0 and self.deleted_at is None


def absent_job(job: JobId, tenant: str, key: str, now: datetime) -> JobRow:
    """Return the row of a job that does not exist yet."""
    return JobRow(job, tenant, key, shard=0, version=0, created_at=now)


@dataclass(frozen=True, slots=True)
class Locked:
    """Jobs that are locked for a change; `now` was read after the locks were acquired."""

    now: datetime
    jobs: Mapping[UUID, JobRow]
    timers: Mapping[UUID, LockedTimer]

    @property
    def quarantined(self) -> set[UUID]:
        """The jobs whose timers are quarantined."""
        return {job for job, timer in self.timers.items() if timer.hold_reason == HoldReason.QUARANTINED}

    def existing(self, batch: Sequence[ReceivedRequest]) -> list[JobRow]:
        """Return the jobs of a batch that exist, each once."""
        found = map(self.jobs.get, dict.fromkeys(received.job_id for received in batch))
        return [job for job in found if job is not None and job.exists]


def lock_jobs(writing: Writing, batch: Sequence[ReceivedRequest]) -> Locked:
    """Lock the jobs of these requests, and end the pauses whose time has passed."""
    return lock_jobs_by_id(writing, {received.job_id for received in batch})


def lock_jobs_to_delete(writing: Writing, batch: Sequence[ReceivedRequest]) -> Locked:
    """Lock jobs with their keys, which excludes triggers; every other change lets triggers go on.

    Raises:
        RowLocked: A user's own transaction has triggered one of the jobs: roll back and try again.
    """
    ids = sorted({received.job_id for received in batch})
    writing.execute(_SQL["lock_timers"], job_ids=ids)
    lock_each(
        writing.connection,
        _SQL["lock_jobs_to_delete"],
        batch,
        columns=lambda some: {"job_ids": sorted({received.job_id for received in some})},
        what=lambda received: f"job {received.key!r}",
    )
    return lock_jobs_by_id(writing, ids)


def lock_jobs_by_id(writing: Writing, job_ids: Iterable[UUID]) -> Locked:
    """Lock these jobs as `lock_jobs` does."""
    ids = sorted(job_ids)
    writing.execute(_SQL["lock_timers"], job_ids=ids)
    writing.execute(_SQL["lock_jobs"], job_ids=ids)
    # Again: the transaction that the jobs' locks waited for may have written a job's first timer.
    writing.execute(_SQL["lock_timers"], job_ids=ids)
    locked = _read_locked(writing, ids)
    if lift_ended_pauses(writing, locked.jobs, locked.timers, locked.now):
        locked = _read_locked(writing, ids)
    frozen = decide_frozen(writing, locked.timers, ids, locked.now)
    return _read_locked(writing, ids) if frozen else locked


def _read_locked(writing: Writing, ids: Sequence[UUID]) -> Locked:
    timers = read_locked_timers(writing, ids)
    jobs = {job.job_id: job for job in writing.read_as(JobRow, _SQL["read_locked_jobs"], job_ids=ids)}
    return Locked(writing.now(), jobs, timers)


def try_lock(connection: Conn, statement: LiteralString, columns: dict[str, object]) -> bool:
    """Run a locking statement that waits for 200 ms at most; return True if its rows are locked now."""
    row = connection.execute(_SQL["read_lock_timeout"]).fetchone()
    previous = cast("tuple[str]", row)[0]
    try:
        with connection.transaction():
            connection.execute(_SQL["set_lock_timeout"], {"lock_timeout": _LOCK_TIMEOUT})
            connection.execute(statement, columns)
            connection.execute(_SQL["set_lock_timeout"], {"lock_timeout": previous})
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


def lock_each(
    connection: Conn,
    statement: LiteralString,
    batch: Sequence[ReceivedRequest],
    *,
    columns: Callable[[Sequence[ReceivedRequest]], dict[str, object]],
    what: Callable[[ReceivedRequest], str],
) -> None:
    """Lock the rows of requests, or raise RowLocked with the first that stays locked for 200 ms."""
    if try_lock(connection, statement, columns(batch)):
        return
    for received in batch:
        # Find the first locked row: one at a time in the order of the batch, and wait for 200 ms at most for each.
        if not try_lock(connection, statement, columns([received])):
            raise RowLocked(what(received), [received])


def try_lock_runs(connection: Conn, run_ids: Iterable[UUID]) -> bool:
    """Wait for 200 ms at most for open runs; return True if those that are still open are locked now."""
    return try_lock(connection, _SQL["wait_for_runs"], {"run_ids": uuids(run_ids)})


def still_open(connection: Conn, run_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the last committed states of those runs that are open."""
    ids = list(run_ids)
    if not ids:
        return {}
    rows = connection.execute(_SQL["read_open_states"], {"run_ids": uuids(ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))
