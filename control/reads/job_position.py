"""Read the state of a job and of its timer, and the keys of jobs.

It imports no schedule, so that lists start quickly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")


@dataclass(frozen=True, slots=True)
class JobPosition:
    """The rows of a job and its timer, with the database's clock."""

    job_id: UUID
    key: str
    tenant: str
    version: int
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    paused_until: datetime | None
    finished_at: datetime | None
    deleted_at: datetime | None
    cursor_at: datetime | None
    due_at: datetime | None
    hold_reason: str | None
    catch_up_end: datetime | None
    now: datetime


def read_job_position(connection: Conn, tenant: str, key: str) -> JobPosition:
    """Read the state of a job, deleted or not, and of its timer; UnknownJob if there never was one."""
    found = read_row(connection, class_row(JobPosition), _SQL["read_job_position"], {"job_id": job_id(tenant, key)})
    if found is None:
        raise UnknownJob(tenant, key)
    return found


def read_job_error(connection: Conn, job: UUID) -> tuple[str, datetime] | None:
    """Read the error that quarantined a job, and its time."""
    found = connection.execute(_SQL["read_job_error"], {"job_id": job}, binary=True).fetchone()
    return cast("tuple[str, datetime] | None", found)


class SelectedJob(NamedTuple):
    """A job that is selected in a list; `read_selected_jobs` returns its columns in this order."""

    job_id: UUID
    key: str
    paused: bool


def key_of_job(connection: Conn, tenant: str, job_id: UUID) -> str:
    """Return the key of a job, deleted or not, or raise UnknownJob."""
    row = connection.execute(_SQL["find_job_key"], {"job_id": job_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownJob(tenant, f"id:{job_id}")
    return str(row[0])


def read_selected_jobs(connection: Conn, tenant: str, job_ids: Sequence[UUID]) -> Sequence[SelectedJob]:
    """Return those of a tenant's jobs that are not deleted, by key."""
    columns = {"job_ids": uuids(job_ids), "tenant": tenant}
    return read_rows(connection, rows_of(SelectedJob._make), _SQL["read_selected_jobs"], columns)
