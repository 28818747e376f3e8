"""Ordering keys that a failed run blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import order_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_LIST_BLOCKED_KEYS = _SQL["list_blocked_keys"]
_READ_BLOCKED_KEY = _SQL["read_blocked_key"]

COUNTED = 1000
"""Waiting runs are counted up to this many for each key."""


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A blocked key.

    Args:
        key: The ordering key.
        blocked_by: The run that failed.
        blocked_at: The time from which the runs behind it wait.
        retried_by: The open retry of that run.
        waiting: The number of runs that wait, up to 1,000.
    """

    key: str
    blocked_by: UUID
    blocked_at: datetime
    retried_by: UUID | None
    waiting: int


def list_blocked_keys(
    connection: Conn, tenant: str, *, after: tuple[datetime, str] | None = None, limit: int = 50
) -> Sequence[BlockedKey]:
    """Return a page of a tenant's blocked keys, the longest first.

    Args:
        after: `blocked_at` and `key` of the last one of the page before.
    """
    columns: dict[str, object] = {
        "tenant": tenant,
        "after": None if after is None else after[0],
        "after_id": None if after is None else order_id(tenant, after[1]),
        "limit": limit,
        "counted": COUNTED,
    }
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        return cursor.execute(_LIST_BLOCKED_KEYS, columns).fetchall()


def read_blocked_key(connection: Conn, tenant: str, key: str) -> BlockedKey | None:
    """Return a key if it is blocked."""
    columns: dict[str, object] = {"key_id": order_id(tenant, key), "counted": COUNTED}
    with connection.cursor(row_factory=class_row(BlockedKey), binary=True) as cursor:
        return cursor.execute(_READ_BLOCKED_KEY, columns).fetchone()
