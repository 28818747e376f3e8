"""Quarantine a job that cannot be fired, postpone it, or free it once its error is common.

Each is one transaction. The timer's position stays, so no occurrence is lost. Killed before its commit: the timer is
due and fails again, or the job stays quarantined until a submit or `tidewheel job release`.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from tidewheel.outbox import append
from tidewheel.postgres.faults import kind_of
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.scheduler.job_faults import describe
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.release import release_quarantined
from tidewheel.transitions.timers import LockedTimer

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_QUARANTINE_TIMER = _SQL["quarantine_timer"]
_POSTPONE_TIMER = _SQL["postpone_timer"]
_QUARANTINE_JOB = _SQL["quarantine_job"]
_READ_KEY = _SQL["read_key"]
_LOCK_QUARANTINED_TIMERS = _SQL["lock_quarantined_timers"]


def postpone(session: Session, timer: LockedTimer, until: datetime) -> None:
    """Try a timer again later."""
    columns = {
        "job_id": timer.job_id,
        "version": timer.version,
        "scheduled_at": timer.scheduled_at,
        "due_at": timer.due_at,
        "until": until,
    }
    with session.transaction() as connection:
        connection.execute(_POSTPONE_TIMER, columns)


def quarantine(
    session: Session, installation: Installation, timer: LockedTimer, error: BaseException, now: datetime
) -> None:
    """Quarantine a job with its error."""
    job_id = timer.job_id
    text = describe(error)
    _LOG.error(
        "job %s is quarantined: %s; it fires again after a submit or `tidewheel job release`",
        job_id,
        text,
        extra={"job_id": str(job_id)},
    )
    with session.transaction() as connection:
        key_columns = {"job_id": job_id, "version": timer.version, "scheduled_at": timer.scheduled_at}
        disabled = connection.execute(_QUARANTINE_TIMER, key_columns).fetchone()
        if disabled is None:
            return
        tenant, shard, version = disabled
        key = connection.execute(_READ_KEY, {"job_id": job_id}).fetchone()
        connection.execute(_QUARANTINE_JOB, {"tenant": tenant, "job_id": job_id, "error": text})
        event = lifecycle_row(
            installation,
            kind="job.quarantined",
            tenant=str(tenant),
            job_id=job_id,
            job_key=str(key[0]) if key else "",
            job_version=version if isinstance(version, int) else None,
            shard=shard if isinstance(shard, int) else 0,
            now=now,
            reason=text[:1000],
        )
        append(connection, [event], shards=installation.shards)
    metrics.count("jobs_quarantined")


def free(
    session: Session,
    installation: Installation,
    timers: Sequence[LockedTimer],
    error: BaseException,
    *,
    now: datetime,
    until: datetime,
) -> None:
    """Release quarantined jobs whose error is common, and postpone them as the others that have it.

    Args:
        timers: The timers as they were quarantined. A job that was edited or released since then stays as it is.
    """
    common = f"more jobs fail with {kind_of(error)}"
    with session.transaction() as connection:
        connection.execute(_LOCK_QUARANTINED_TIMERS, {"job_ids": [timer.job_id for timer in timers]})
        freed = release_quarantined(connection, installation, timers, now=now, until=until, reason=common)
        failpoint("freeing.before_commit")
    failpoint("freeing.after_commit")
    if freed:
        keys = ", ".join(job.key for job in freed)
        _LOG.warning("quarantined jobs are released and tried again, since %s: %s", common, keys)
