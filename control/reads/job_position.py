"""Read the state of a job and of its timer. It imports no schedule, so that lists start quickly."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import UnknownJob
from tidewheel.ids import job_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_JOB_POSITION = Statements("tidewheel.control")["read_job_position"]


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
    with connection.cursor(row_factory=class_row(JobPosition), binary=True) as cursor:
        found = cursor.execute(_READ_JOB_POSITION, {"job_id": job_id(tenant, key)}).fetchone()
    if found is None:
        raise UnknownJob(tenant, key)
    return found
