"""Lock jobs for a change: timers first, then job rows, each in job_id order, as firing does.

The holder of a timer's lock sees each firing of the job before or after its change, never half of one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId
from tidewheel.intake.lock_wait import RowLocked, try_lock
from tidewheel.intake.overdue import decide_frozen, lift_ended_pauses, read_locked_timers
from tidewheel.intake.request import ReceivedRequest
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import HoldReason
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer

_SQL = Statements("tidewheel.intake")
_LOCK_TIMERS = _SQL["lock_timers"]
_LOCK_JOBS = _SQL["lock_jobs"]
_LOCK_JOBS_TO_DELETE = _SQL["lock_jobs_to_delete"]
_READ_LOCKED_JOBS = _SQL["read_locked_jobs"]


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's locked row with its schedule and policy in force."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int
    spec_hash: bytes | None
    interval_anchor: datetime | None
    interval_us: int | None
    paused: bool
    paused_until: datetime | None
    consecutive_failures: int
    pause_on_failure: int | None
    created_at: datetime
    finished_at: datetime | None
    deleted_at: datetime | None
    root_job_id: UUID | None
    schedule_json: str | None
    policy_json: str | None

    @property
    def exists(self) -> bool:
        """True if the job exists: it has a version and is not deleted."""
        return self.version > 0 and self.deleted_at is None


def absent_job(job: JobId, tenant: str, key: str, now: datetime) -> JobRow:
    """Return the row of a job that does not exist yet."""
    return JobRow(
        job_id=job,
        tenant=tenant,
        key=key,
        shard=0,
        version=0,
        spec_hash=None,
        interval_anchor=None,
        interval_us=None,
        paused=False,
        paused_until=None,
        consecutive_failures=0,
        pause_on_failure=None,
        created_at=now,
        finished_at=None,
        deleted_at=None,
        root_job_id=None,
        schedule_json=None,
        policy_json=None,
    )


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


def lock_jobs(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, to_delete: bool = False
) -> Locked:
    """Lock the jobs of these requests, and end the pauses whose time has passed.

    Args:
        to_delete: Lock the keys too, which excludes triggers; every other change lets triggers go on.

    Raises:
        RowLocked: A user's own transaction has triggered a job that is to be deleted: roll back and try again.
    """
    ids = {received.job_id for received in batch}
    if to_delete:
        _lock_keys(connection, batch)
    return lock_jobs_by_id(connection, installation, ids)


def _lock_keys(connection: Conn, batch: Sequence[ReceivedRequest]) -> None:
    ids = sorted({received.job_id for received in batch})
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    if try_lock(connection, _LOCK_JOBS_TO_DELETE, {"job_ids": ids}):
        return
    for received in batch:
        # Find the first locked job: lock one at a time in the order of the batch, and wait for 200 ms at most for each.
        if not try_lock(connection, _LOCK_JOBS_TO_DELETE, {"job_ids": [received.job_id]}):
            what = f"job {received.key!r}"
            raise RowLocked(what, [received])


def lock_jobs_by_id(connection: Conn, installation: Installation, job_ids: Iterable[UUID]) -> Locked:
    """Lock these jobs as `lock_jobs` does."""
    ids = sorted(job_ids)
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    connection.execute(_LOCK_JOBS, {"job_ids": ids})
    # Again: the transaction that the jobs' locks waited for may have written a job's first timer.
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    locked = _read_locked(connection, ids)
    if lift_ended_pauses(connection, installation, locked.jobs, locked.timers, locked.now):
        locked = _read_locked(connection, ids)
    frozen = decide_frozen(connection, installation, locked.timers, ids, locked.now)
    return _read_locked(connection, ids) if frozen else locked


def _read_locked(connection: Conn, ids: Sequence[UUID]) -> Locked:
    timers = read_locked_timers(connection, ids)
    with connection.cursor(row_factory=class_row(JobRow), binary=True) as cursor:
        jobs = {job.job_id: job for job in cursor.execute(_READ_LOCKED_JOBS, {"job_ids": ids})}
    return Locked(read_now(connection), jobs, timers)
