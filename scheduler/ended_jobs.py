"""Remove jobs that ended long ago, with their versions, and old versions of other jobs.

A round goes over all jobs in the order of their ids, and a pass takes a part of it: `retention_state` has the position.
A job stays while a timer, a run, a dead letter, a backfill or an edge in force needs it.
"""

import logging
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.pace import Pace

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_READ_JOB_ROUND = _SQL["read_job_round"]
_ADVANCE_JOB_ROUND = _SQL["advance_job_round"]
_SCAN_ENDED_JOBS = _SQL["scan_ended_jobs"]
_LOCK_ENDED_JOBS = _SQL["lock_ended_jobs"]
_FIND_UNUSED_JOBS = _SQL["find_unused_jobs"]
_REMOVE_JOBS = _SQL["remove_jobs"]
_FIND_EDITED_JOBS = _SQL["find_edited_jobs"]
_LOCK_JOB = _SQL["lock_backfilled_job"]
_REMOVE_VERSIONS = _SQL["remove_versions"]

_NOWHERE = UUID(int=0)
_PAGE = 5000  # jobs that one statement reads: some milliseconds
_PAGES = 200  # of a pass: a round over 24 million jobs takes a day
_REMOVED = 200  # jobs of one transaction: each is looked up in every partition of finished runs
_VERSIONS = 1000  # of one transaction, with their definitions: some tens of milliseconds
_VERSION_PAGES = 20  # of a job in a round, which takes a day at most: more than an edit each minute


def remove_ended_jobs(connection: Conn, before: datetime, pace: Pace) -> int:
    """Remove unneeded jobs that ended before an instant, with autocommit; return their number."""
    removed = 0
    row = cast("tuple[UUID | None] | None", connection.execute(_READ_JOB_ROUND, binary=True).fetchone())
    after = row[0] if row else None
    for _ in range(_PAGES):
        first_id = after or _NOWHERE
        columns: dict[str, object] = {"after": first_id, "before": before, "limit": _PAGE}
        page = connection.execute(_SCAN_ENDED_JOBS, columns, binary=True).fetchone()
        after, ended = cast("tuple[UUID | None, list[UUID]]", page)
        for first in range(0, len(ended), _REMOVED):
            removed += _remove(connection, ended[first : first + _REMOVED], before)
            if pace.rest():
                return removed
        if after is not None and remove_superseded(connection, (first_id, after), before, pace):
            return removed
        connection.execute(_ADVANCE_JOB_ROUND, {"after": after})
        if after is None or pace.rest():
            break
    return removed


def remove_superseded(connection: Conn, jobs: tuple[UUID, UUID], before: datetime, pace: Pace) -> bool:
    """Remove old versions of some jobs; return True if a shutdown was requested.

    No index finds the runs of a version. A run of a version has an instant of at most the longest delay after the
    version was superseded: so the oldest instant of a job's stored runs bounds the versions that they have. The
    instants that the timer, overrides and backfills still need bound them in the same way.

    Args:
        connection: With autocommit.
        jobs: Jobs behind the first id, up to the second one.
        before: The instant before which no stored day of runs and no open occurrence needs a version.
    """
    removed, old = 0, before - LONGEST_DELAY
    edited = read_ids(connection, _FIND_EDITED_JOBS, {"after": jobs[0], "last": jobs[1], "before": old})
    for job_id in edited:
        for _ in range(_VERSION_PAGES):
            columns: dict[str, object] = {"job_id": job_id, "before": old, "delay": LONGEST_DELAY, "limit": _VERSIONS}
            with connection.transaction():
                # An edit, a backfill or a rollback reads versions under this lock.
                is_locked = connection.execute(_LOCK_JOB, columns).fetchone() is not None
                gone = connection.execute(_REMOVE_VERSIONS, columns).rowcount if is_locked else 0
            removed += gone
            if pace.rest():
                return True
            if gone < _VERSIONS:
                break
    if removed:
        _LOG.info("%d superseded versions of jobs are removed", removed)
    return False


def _remove(connection: Conn, job_ids: list[UUID], before: datetime) -> int:
    with connection.transaction():
        locked = read_ids(connection, _LOCK_ENDED_JOBS, {"job_ids": uuids(job_ids), "before": before})
        unused = read_ids(connection, _FIND_UNUSED_JOBS, {"job_ids": uuids(locked)})
        connection.execute(_REMOVE_JOBS, {"job_ids": uuids(unused)})
    return len(unused)
