"""Remove versions of jobs that were superseded long ago, and that nothing needs.

No index finds the runs of a version. A run of a version has an instant of at most the longest delay after the version
was superseded: so the oldest instant of a job's stored runs bounds the versions that they have. The instants that the
timer, overrides and backfills still need bound them in the same way.
"""

import logging
from datetime import datetime
from uuid import UUID

from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.scheduler.pace import Pace

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_EDITED_JOBS = _SQL["find_edited_jobs"]
_LOCK_JOB = _SQL["lock_backfilled_job"]
_REMOVE_VERSIONS = _SQL["remove_versions"]

_PAGE = 1000  # versions of one transaction, with their definitions: some tens of milliseconds
_PAGES = 20  # of a job in a round, which takes a day at most: more than an edit each minute


def remove_superseded(connection: Conn, jobs: tuple[UUID, UUID], before: datetime, pace: Pace) -> bool:
    """Remove old versions of some jobs; return True if a shutdown was requested.

    Args:
        connection: With autocommit.
        jobs: Jobs behind the first id, up to the second one.
        before: The instant before which no stored day of runs and no open occurrence needs a version.
    """
    removed, old = 0, before - LONGEST_DELAY
    edited = read_ids(connection, _FIND_EDITED_JOBS, {"after": jobs[0], "last": jobs[1], "before": old})
    for job_id in edited:
        for _ in range(_PAGES):
            columns: dict[str, object] = {"job_id": job_id, "before": old, "delay": LONGEST_DELAY, "limit": _PAGE}
            with connection.transaction():
                # An edit, a backfill or a rollback reads versions under this lock.
                is_locked = connection.execute(_LOCK_JOB, columns).fetchone() is not None
                gone = connection.execute(_REMOVE_VERSIONS, columns).rowcount if is_locked else 0
            removed += gone
            if pace.rest():
                return True
            if gone < _PAGE:
                break
    if removed:
        _LOG.info("%d superseded versions of jobs are removed", removed)
    return False
