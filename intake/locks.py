"""Locking jobs for a change: their timers first, then their rows, each in job_id order, as firing does.

Whoever holds a timer's lock sees every firing of the job before or after its change, never half of one. What is overdue
is settled by the version in force, and the runs whose instant is still ahead are taken back, before anything changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.db import Conn
from tidewheel.errors import ScheduleRefused
from tidewheel.ids import job_id
from tidewheel.intake.incoming import Incoming
from tidewheel.occurrences import Decision
from tidewheel.scheduler.recurrence.due import decide, passed_over
from tidewheel.scheduler.recurrence.memo import schedule_from_text
from tidewheel.scheduler.recurrence.once import Once
from tidewheel.sql import Statements
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, take_back

_SQL = Statements("tidewheel.intake")
_LOCK_TIMERS = _SQL["lock_timers"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]
_LOCK_JOBS = _SQL["lock_jobs"]
_LOCK_JOBS_TO_DELETE = _SQL["lock_jobs_to_delete"]
_READ_LOCKED_JOBS = _SQL["read_locked_jobs"]
_READ_NOW = _SQL["read_now"]


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's row, locked, with the schedule in force; `set_aside` when its version could not be fired."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int
    spec_hash: bytes | None
    anchor: datetime | None
    every_us: int | None
    paused: bool
    finished_at: datetime | None
    deleted_at: datetime | None
    schedule: str | None
    set_aside: bool

    @property
    def exists(self) -> bool:
        """Whether there is such a job: not a mere place for a new one, nor a tombstone."""
        return self.version > 0 and self.deleted_at is None


@dataclass(frozen=True, slots=True)
class Locked:
    """Jobs locked for a change.

    Args:
        now: The database's clock, read after the locks were taken.
        jobs: Their rows, by id.
        timers: The timers of those that have one, by id.
    """

    now: datetime
    jobs: Mapping[UUID, JobRow]
    timers: Mapping[UUID, LockedTimer]


def lock_jobs(connection: Conn, batch: Sequence[Incoming], *, to_delete: bool = False) -> Locked:
    """Lock the jobs that these requests concern, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        batch: The requests.
        to_delete: Also against triggers, which go on beside every other change.
    """
    ids = sorted({job_id_of(incoming) for incoming in batch})
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    connection.execute(_LOCK_JOBS_TO_DELETE if to_delete else _LOCK_JOBS, {"job_ids": ids})
    # Once more: what the jobs' locks waited for may have given a job its first timer.
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        timers = {timer.job_id: timer for timer in cursor.execute(_READ_LOCKED_TIMERS, {"job_ids": ids})}
    with connection.cursor(row_factory=class_row(JobRow), binary=True) as cursor:
        jobs = {job.job_id: job for job in cursor.execute(_READ_LOCKED_JOBS, {"job_ids": ids})}
    return Locked(read_now(connection), jobs, timers)


def settle(
    connection: Conn, installation: Installation, locked: Locked, job_ids: Sequence[UUID]
) -> dict[UUID, datetime]:
    """Fire what is overdue of these jobs by the version in force, and take back what is still ahead.

    What was set aside could not be fired by that version and is not tried again: a new version goes on from now.

    Returns:
        The next instant of each job whose timer is left, or whose run was taken back: what the version in force would
        fire next.
    """
    due = [locked.timers[job] for job in job_ids if job in locked.timers]
    due = [timer for timer in due if timer.scheduled_at <= locked.now]
    overdue = [timer for timer in due if _fires(locked.jobs[timer.job_id])]
    # What a pause has passed over so far is written down before the version that says what it was is replaced.
    paused = [timer for timer in due if locked.jobs[timer.job_id].paused and not locked.jobs[timer.job_id].set_aside]
    advance_timers(connection, installation, paused, lambda timer: after_pause(timer, locked.now), now=locked.now)
    decisions = advance_timers(
        connection,
        installation,
        overdue,
        lambda timer: _decide(timer, locked.now, installation.misfire_after),
        now=locked.now,
        repeats=True,
    )
    following = {job: locked.timers[job].scheduled_at for job in job_ids if job in locked.timers}
    for timer, decision in zip(overdue, decisions, strict=True):
        if decision.next_at is None:
            del following[timer.job_id]
        else:
            following[timer.job_id] = decision.next_at
    for job, earliest in take_back(connection, job_ids, now=locked.now).items():
        following[job] = min(earliest, following.get(job, earliest))
    return following


def after_pause(timer: LockedTimer, now: datetime) -> Decision:
    """What becomes of a timer when its job's pause ends: the instants in it are passed over, but a `once` fires."""
    try:
        schedule = schedule_from_text(timer.schedule, timer.job_id)
    except ScheduleRefused:
        # Set aside before the pause: firing will find it so again, and say it again.
        return Decision(next_at=timer.scheduled_at)
    if timer.scheduled_at > now or isinstance(schedule, Once):
        return Decision(next_at=timer.scheduled_at)
    skips = passed_over(schedule, timer.scheduled_at, now, reason="paused")
    return Decision(skips=skips, next_at=schedule.after(now))


def read_now(connection: Conn) -> datetime:
    """The database's clock."""
    row = connection.execute(_READ_NOW, binary=True).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return cast("datetime", row[0])


def job_id_of(incoming: Incoming) -> UUID:
    """The id of the job that a request concerns."""
    return job_id(incoming.tenant, incoming.key or "")


def _fires(job: JobRow) -> bool:
    return not job.paused and not job.set_aside


def _decide(timer: LockedTimer, now: datetime, misfire_after: timedelta) -> Decision:
    try:
        schedule = schedule_from_text(timer.schedule, timer.job_id)
    except ScheduleRefused:
        # Nothing can be said about it: firing will set it aside, or the change makes an end of it.
        return Decision(next_at=timer.scheduled_at)
    # What is younger than misfire_after, at one a second at most, is more than firing takes at once: a change leaves
    # nothing overdue behind it.
    most = int(misfire_after.total_seconds()) + 2
    return decide(schedule, timer.scheduled_at, now=now, horizon=now, misfire_after=misfire_after, most=most)
