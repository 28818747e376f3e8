"""Reads of works."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import rows_as
from tidewheel.errors import UnknownWork
from tidewheel.ids import run_range
from tidewheel.nouns.operation import Page
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.model import Work, WorkPlace
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.nouns.works")
_LIST_WORKS = _SQL["list_works"]
_SHOW_WORK = _SQL["show_work"]
_COUNT_BACKFILLED = _SQL["count_backfilled"]

_NEWEST: Final = "infinity", UUID(int=(1 << 128) - 1)  # behind each work, one with a damaged time among them
_SURVEYED = 25  # statements that count before a work starts: some seconds
P = TypeVar("P")


def list_works(
    connection: Conn, tenant: str, key: str | None = None, *, kind: str | None = None,
    after: WorkPlace | None = None, limit: int = 100,
) -> Page[Work]:  # fmt: skip
    """Return a page of a tenant's works, or those of one job or kind, the newest first.

    Raises:
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    job_id = None if key is None else read_job_position(connection, tenant, key).job_id
    columns: dict[str, object] = {"tenant": tenant, "job_id": job_id, "kind": kind, "limit": limit + 1}
    columns |= dict(zip(("before_at", "before_id"), after or _NEWEST, strict=True))
    with connection.cursor(row_factory=rows_as(Work), binary=True) as cursor:
        found = cursor.execute(_LIST_WORKS, columns).fetchall()
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], None if last is None else (last.created_at, last.work_id))


def show_work(connection: Conn, tenant: str, work_id: UUID) -> Work:
    """Return one work; a backfill with the states of the runs that are stored.

    Raises:
        UnknownWork: The tenant has no work of this id.
    """
    with connection.cursor(row_factory=rows_as(Work), binary=True) as cursor:
        found = cursor.execute(_SHOW_WORK, {"tenant": tenant, "work_id": work_id}).fetchone()
    if found is None:
        raise UnknownWork(str(work_id))
    if found.kind != "backfill":
        return found
    job_id = UUID(str(found.filter["job_id"]))
    first, last = run_range(job_id, found.created_at)
    columns = {"job_id": job_id, "first_run_id": first, "last_run_id": last}
    runs = {str(state): count for state, count in connection.execute(_COUNT_BACKFILLED, columns).fetchall()}
    return replace(found, facts={**found.facts, "runs": runs})


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
