"""Group dead letters by cause: the job, the error type and the final state of their runs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.dead_letters import EARLIEST
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_GROUP_DEAD_LETTERS = Statements("tidewheel.control")["group_dead_letters"]

GROUPED = 10_000
"""The newest dead letters, which are grouped: some tens of milliseconds."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one cause.

    Args:
        kind: `run` or `message`.
        key: Their job's key; None for messages.
        job_id: Their job.
        error_type: The error type of their last attempts.
        status: The final state of their runs.
        count: Their number.
        first_at: The creation of the oldest one.
        last_at: The creation of the newest one.
        versions: The versions of the job that the runs had, in order.
        current_version: The version that a new run gets; None if the job is deleted.
    """

    kind: str
    key: str | None
    job_id: UUID | None
    error_type: str | None
    status: str | None
    count: int
    first_at: datetime
    last_at: datetime
    versions: Sequence[int]
    current_version: int | None


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """Groups of dead letters, the largest first.

    Args:
        groups: The 200 largest.
        looked_at: How many dead letters were looked at, the newest ones.
        at_least: True if there may be more than those.
    """

    groups: tuple[DeadLetterGroup, ...]
    looked_at: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class _Row(DeadLetterGroup):
    looked_at: int


def group_dead_letters(
    connection: Conn, tenant: str, *, since: datetime | None = None, redriven: bool | None = None
) -> DeadLetterGroups:
    """Group a tenant's newest 10,000 dead letters by cause.

    Args:
        connection: Reads the rows.
        tenant: The tenant.
        since: Only those created at this instant or later.
        redriven: True for redriven ones only, False for all others.

    Raises:
        InvalidInput: There is no such tenant.
    """
    require_tenant(connection, tenant)
    columns: dict[str, object] = {
        "tenant": tenant, "since": since or EARLIEST, "redriven": redriven, "look": GROUPED, "limit": _SHOWN,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(_Row), binary=True) as cursor:
        rows = cursor.execute(_GROUP_DEAD_LETTERS, columns).fetchall()
    looked_at = rows[0].looked_at if rows else 0
    names = [each.name for each in fields(DeadLetterGroup)]
    groups = tuple(DeadLetterGroup(**{name: getattr(row, name) for name in names}) for row in rows)
    return DeadLetterGroups(groups, looked_at, at_least=looked_at >= GROUPED)
