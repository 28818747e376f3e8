"""Find jobs by their ids: those that a list has selected, or one whose key a proxy would change."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidewheel.errors import UnknownJob
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_FIND_JOB_KEY = _SQL["find_job_key"]
_READ_SELECTED_JOBS = _SQL["read_selected_jobs"]


class SelectedJob(NamedTuple):
    """A job that is selected in a list; `read_selected_jobs` returns its columns in this order."""

    job_id: UUID
    key: str
    paused: bool


def key_of_job(connection: Conn, tenant: str, job_id: UUID) -> str:
    """Return the key of a job, deleted or not, or raise UnknownJob."""
    row = connection.execute(_FIND_JOB_KEY, {"job_id": job_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownJob(tenant, f"id:{job_id}")
    return str(row[0])


def read_selected_jobs(connection: Conn, tenant: str, job_ids: Sequence[UUID]) -> Sequence[SelectedJob]:
    """Return those of a tenant's jobs that are not deleted, by key."""
    columns = {"job_ids": uuids(job_ids), "tenant": tenant}
    with connection.cursor(row_factory=rows_of(SelectedJob._make), binary=True) as cursor:
        return cursor.execute(_READ_SELECTED_JOBS, columns).fetchall()
