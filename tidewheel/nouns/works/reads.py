"""Reads of works."""

from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownWork
from tidewheel.nouns.works.model import Work
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.works")
_LIST_WORKS = _SQL["list_works"]
_SHOW_WORK = _SQL["show_work"]


def list_works(connection: Conn, tenant: str, *, limit: int = 100) -> list[Work]:
    """Return a tenant's works, the newest first."""
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=class_row(Work), binary=True) as cursor:
        return cursor.execute(_LIST_WORKS, {"tenant": tenant, "limit": limit}).fetchall()


def show_work(connection: Conn, tenant: str, work_id: UUID) -> Work:
    """Return one work.

    Raises:
        UnknownWork: The tenant has no work of this id.
    """
    with connection.cursor(row_factory=class_row(Work), binary=True) as cursor:
        found = cursor.execute(_SHOW_WORK, {"tenant": tenant, "work_id": work_id}).fetchone()
    if found is None:
        raise UnknownWork(str(work_id))
    return found
