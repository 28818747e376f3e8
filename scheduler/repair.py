"""Finds jobs that should have a timer and have none, and gives it back; and chains that wait for nothing.

No transaction of Tidewheel's leaves such a job behind; a person with psql, or a restore that missed a table, can. What
is found is logged and counted, because it is always a sign of something.
"""

import logging
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import job_range
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.simple import FixedDelay, Once

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_LOST_TIMERS = _SQL["find_lost_timers"]
_LOCK_JOB_WITHOUT_TIMER = _SQL["lock_job_without_timer"]
_MEND_TIMER = _SQL["mend_timer"]
_RELEASE_HELD_CHAINS = _SQL["release_held_chains"]


def mend_shard(session: Session, shard: int, shards: int) -> int:
    """Mend the jobs of one shard.

    Returns:
        How many timers were given back.

    Raises:
        Unavailable: The database does not answer.
    """
    first, last = job_range(shard, shards)
    columns = {"first": first, "last": last}
    with session.transaction() as connection:
        jobs = [cast("UUID", job) for (job,) in connection.execute(_FIND_LOST_TIMERS, columns, binary=True)]
    mended = sum(_mend(session, job) for job in jobs)
    if mended:
        metrics.count("timers_repaired", mended)
        _LOG.error("%d jobs of shard %d had lost their timers; mended", mended, shard)
    return mended


def release_chains(session: Session) -> int:
    """Let go of fixed_delay jobs whose timers wait for the end of a run that is not open.

    Returns:
        How many there were.

    Raises:
        Unavailable: The database does not answer.
    """
    with session.transaction() as connection:
        released = connection.execute(_RELEASE_HELD_CHAINS).rowcount
    if released:
        metrics.count("timers_repaired", released)
        _LOG.error("%d fixed_delay jobs waited for runs that are over; mended", released)
    return released


def _mend(session: Session, job_id: UUID) -> bool:
    with session.transaction() as connection:
        row = connection.execute(_LOCK_JOB_WITHOUT_TIMER, {"job_id": job_id}, binary=True).fetchone()
        if row is None:
            return False
        tenant, shard, version, schedule, last_at, updated_at, _ = row
        # From the last run that was made, so that what was due since then is decided as any other downtime is.
        known_until = max(cast("datetime", last_at or updated_at), cast("datetime", updated_at))
        try:
            known = schedule_from_text(str(schedule), job_id)
        except ScheduleRefused as error:
            _LOG.error(
                "job %s has lost its timer and cannot be mended: %s", job_id, error, extra={"job_id": str(job_id)}
            )
            return False
        following = _following(known, cast("datetime | None", last_at), known_until)
        if following is None:
            return False
        columns = {"job_id": job_id, "tenant": tenant, "shard": shard, "scheduled_at": following, "version": version}
        connection.execute(_MEND_TIMER, columns)
    return True


def _following(schedule: Schedule, last_at: datetime | None, known_until: datetime) -> datetime | None:
    if isinstance(schedule, Once):
        # It always fires, also when its instant had passed before it was submitted.
        return schedule.at if last_at is None or last_at < schedule.at else None
    if isinstance(schedule, FixedDelay):
        return schedule.due(known_until, None)
    return schedule.after(known_until)
