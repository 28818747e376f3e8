"""Read the changes of runs since the last read, for a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.ids import job_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_RUN_CHANGES = Statements("tidewheel.control")["find_run_changes"]

OPEN_RUNS = 500  # whose changes are seen
ENDS = 1000  # of one read
_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True)
class RunChange:
    """The state of a run: of an open one, or of one that has ended.

    Args:
        run_id: The run.
        state: Its state.
        attempt: The last attempt begun.
        finished_at: When it ended.
        now: The database's clock.
    """

    run_id: UUID
    state: str
    attempt: int
    finished_at: datetime | None
    now: datetime


def start_of_changes(connection: Conn, tenant: str, key: str | None) -> datetime:
    """Check the filter of a stream; return the database's clock.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    return read_now(connection)


def read_run_changes(
    connection: Conn, tenant: str, key: str | None, *, since: datetime, known: Sequence[UUID]
) -> list[RunChange]:
    """Return the newest open runs, and the ends since an instant except known ones, the oldest first."""
    columns = {
        "tenant": tenant, "job_id": None if key is None else job_id(tenant, key), "since": since, "known": list(known),
        "look": _LOOKED_AT, "open_limit": OPEN_RUNS, "limit": ENDS,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(RunChange), binary=True) as cursor:
        return cursor.execute(_FIND_RUN_CHANGES, columns).fetchall()
