"""Restore missing timers, and release fixed_delay jobs that wait for a run that is not open.

No transaction of Tidewheel leaves such a job behind. A manual change, or a restore that missed a table, can. Each
repair is logged and counted, since it always has a cause that an operator must find.
"""

import logging
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import first_ids, job_range
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.simple import FixedDelay, Once

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_MISSING_TIMERS = _SQL["find_missing_timers"]
_LOCK_JOB_WITHOUT_TIMER = _SQL["lock_job_without_timer"]
_REPAIR_TIMER = _SQL["repair_timer"]
_RELEASE_HELD_CHAINS = _SQL["release_held_chains"]

_CHECK = "check for manual changes or a partial restore"


def repair_missing_timers(session: Session, shard: int, shards: int) -> int:
    """Restore the missing timers of one shard.

    Returns:
        The number of restored timers.
    """
    first, last = job_range(shard, shards)
    columns = {"first": first, "last": last}
    with session.transaction() as connection:
        jobs = [cast("UUID", job) for (job,) in connection.execute(_FIND_MISSING_TIMERS, columns, binary=True)]
    repaired = [job for job in jobs if _repair(session, job)]
    if repaired:
        metrics.count("timers_repaired", len(repaired))
        _LOG.error(
            "the scheduler restored the missing timers of %d jobs of shard %d: %s; %s",
            len(repaired),
            shard,
            first_ids(repaired),
            _CHECK,
        )
    return len(repaired)


def release_stuck_chains(session: Session) -> int:
    """Release fixed_delay jobs whose timers wait for the end of a run that is not open.

    Returns:
        The number of released jobs.
    """
    with session.transaction() as connection:
        released = [cast("UUID", job) for (job,) in connection.execute(_RELEASE_HELD_CHAINS, binary=True)]
    if released:
        metrics.count("timers_repaired", len(released))
        _LOG.error(
            "the scheduler released %d fixed_delay jobs that waited for runs that are not open: %s; %s",
            len(released),
            first_ids(released),
            _CHECK,
        )
    return len(released)


def _repair(session: Session, job_id: UUID) -> bool:
    with session.transaction() as connection:
        row = connection.execute(_LOCK_JOB_WITHOUT_TIMER, {"job_id": job_id}, binary=True).fetchone()
        if row is None:
            return False
        tenant, shard, version, schedule, last_at, updated_at, _ = row
        # From the last run that was created, so that occurrences since then are decided like any other downtime.
        known_until = max(cast("datetime", last_at or updated_at), cast("datetime", updated_at))
        try:
            known = schedule_from_text(str(schedule), job_id)
        except ScheduleRefused as error:
            _LOG.error(
                "job %s has no timer, and the scheduler cannot restore it: %s; submit the job with a valid schedule",
                job_id,
                error,
                extra={"job_id": str(job_id)},
            )
            return False
        following = _following(known, cast("datetime | None", last_at), known_until)
        if following is None:
            return False
        columns = {"job_id": job_id, "tenant": tenant, "shard": shard, "scheduled_at": following, "version": version}
        connection.execute(_REPAIR_TIMER, columns)
    return True


def _following(schedule: Schedule, last_at: datetime | None, known_until: datetime) -> datetime | None:
    if isinstance(schedule, Once):
        # A `once` always fires, even if its instant had passed when it was submitted.
        return schedule.at if last_at is None or last_at < schedule.at else None
    if isinstance(schedule, FixedDelay):
        return schedule.due(known_until, None)
    return schedule.after(known_until)
