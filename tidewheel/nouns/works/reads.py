"""Reads of works."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from tidewheel.control.reads.stored import rows_as
from tidewheel.errors import UnknownWork
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.model import Work
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.works")
_LIST_WORKS = _SQL["list_works"]
_SHOW_WORK = _SQL["show_work"]

_SURVEYED = 25  # statements that count before a work starts: some seconds
P = TypeVar("P")


def list_works(connection: Conn, tenant: str, *, limit: int = 100) -> list[Work]:
    """Return a tenant's works, the newest first."""
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=rows_as(Work), binary=True) as cursor:
        return cursor.execute(_LIST_WORKS, {"tenant": tenant, "limit": limit}).fetchall()


def show_work(connection: Conn, tenant: str, work_id: UUID) -> Work:
    """Return one work.

    Raises:
        UnknownWork: The tenant has no work of this id.
    """
    with connection.cursor(row_factory=rows_as(Work), binary=True) as cursor:
        found = cursor.execute(_SHOW_WORK, {"tenant": tenant, "work_id": work_id}).fetchone()
    if found is None:
        raise UnknownWork(str(work_id))
    return found


def first_matches(scan: Callable[[P | None, int], tuple[Sequence[P], P | None]], limit: int) -> tuple[list[P], bool]:
    """Return the first things that match, and True if it looked at all of them.

    Args:
        scan: Returns so many of those after one of them, and the last one looked at; None at the end.
    """
    found: list[P] = []
    after: P | None = None
    for _ in range(_SURVEYED):
        more, after = scan(after, limit - len(found))
        found += more
        if after is None or len(found) == limit:
            break
    return found, after is None
