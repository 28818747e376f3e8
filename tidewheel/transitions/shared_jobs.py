"""Jobs whose key is locked for share, while runs of their current version are written."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.transitions")
_LOCK_JOBS_FOR_SHARE = _SQL["lock_jobs_for_share"]
_READ_SHARED_JOBS = _SQL["read_shared_jobs"]


class SharedJob(NamedTuple):
    """The columns that a run needs of a job whose key is locked for share."""

    job_id: UUID
    shard: int
    version: int
    deleted_at: datetime | None
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    concurrency_key: str | None


def lock_jobs_for_share(connection: Conn, job_ids: Collection[UUID]) -> dict[UUID, SharedJob]:
    """Lock jobs against deletion until their runs are written; return those that exist."""
    columns = {"job_ids": uuids(job_ids)}
    connection.execute(_LOCK_JOBS_FOR_SHARE, columns)
    with connection.cursor(row_factory=rows_of(SharedJob._make), binary=True) as cursor:
        found = cursor.execute(_READ_SHARED_JOBS, columns)
        return {job.job_id: job for job in found if job.deleted_at is None}
