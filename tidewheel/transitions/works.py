"""Rows of works: bulk work that schedulers do in batches, at a rate.

A client writes a work's row when it requests, pauses, resumes or cancels it. The scheduler writes it with each batch
and when the work ends. Both hold the row's lock, which they acquire before those of what the work changes.

For one release a work of the kind `redrive` has a row in `redrives` too, for processes of the release before. Its lock
comes first, and what those processes have written there is adopted before anything else happens.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.errors import FieldError
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn, list_ids, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import BackfillState

_SQL = Statements("tidewheel.transitions")
_WRITE_OLD_REDRIVE = _SQL["write_old_redrive"]

_MAX_REJECTIONS = 100  # stored one by one

Cursor = Mapping[str, Any]
"""A position in the things that match, in JSON: its kind alone reads it."""
Rejections = Mapping[int | str, Sequence[FieldError]]
"""Things that could not be done, by their ids."""


@dataclass(frozen=True, slots=True)
class OpenWork:
    """A running work that the scheduler has locked."""

    work_id: UUID
    tenant: str
    kind: str
    filter: Mapping[str, Any]
    rate: float | None
    cursor: Cursor
    rejections: Sequence[Mapping[str, object]]
    next_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """A work to add; `matched` is the number of matching things."""

    work_id: UUID
    tenant: str
    kind: str
    filter: Mapping[str, object]
    cursor: Cursor
    rate: float | None
    matched: int
    reason: str | None


def add_work(connection: Conn, work: NewWork, now: datetime) -> bool:
    """Write a work; False if it is written already."""
    given = {name: str(value) if isinstance(value, UUID) else value for name, value in work.filter.items()}
    stored = {name: format_timestamp(value) if isinstance(value, datetime) else value for name, value in given.items()}
    named = {name: value for name, value in stored.items() if value is not None}
    columns = {**asdict(work), "filter": Jsonb(named), "cursor": Jsonb(work.cursor), "now": now}
    added = connection.execute(_SQL["add_work"], columns).rowcount == 1
    if added:
        connection.execute(_WRITE_OLD_REDRIVE, {"work_id": work.work_id})
    return added


def adopt_redrives(connection: Conn) -> None:
    """Add the works of redrives that processes of the release before have written, whatever their state."""
    connection.execute(_SQL["adopt_redrives"])


def find_due_works(connection: Conn, now: datetime, kinds: Collection[str]) -> list[UUID]:
    """Return the running works of these kinds whose next batch is due, and redrives to adopt."""
    return list_ids(connection, _SQL["find_due_works"], {"now": now, "kinds": list(kinds)})


def lock_due_work(connection: Conn, work_id: UUID, now: datetime) -> OpenWork | None:
    """Lock a work; None if no batch of it is due, or another transaction holds it."""
    columns: dict[str, object] = {"work_id": work_id, "now": now}
    has_old = connection.execute(_SQL["take_old_redrive"], columns).rowcount == 1
    if has_old:
        connection.execute(_SQL["follow_old_redrive"], columns)
    work = read_row(connection, class_row(OpenWork), _SQL["lock_due_work"], columns)
    return None if work is None or has_old != (work.kind == "redrive") else work


def advance_work(
    connection: Conn, work: OpenWork, cursor: Cursor, *, done: int, rejected: Rejections, next_at: datetime
) -> None:
    """Record a batch, in the transaction that does it."""
    new = [{"id": number, "errors": [asdict(error) for error in errors]} for number, errors in rejected.items()]
    columns: dict[str, object] = {
        "work_id": work.work_id, "done": done, "rejected": len(rejected), "cursor": Jsonb(cursor), "next_at": next_at,
        "rejections": Jsonb([*work.rejections, *new][:_MAX_REJECTIONS]),
    }  # fmt: skip
    connection.execute(_SQL["advance_work"], columns)
    if work.kind == "redrive":
        connection.execute(_WRITE_OLD_REDRIVE, {"work_id": work.work_id})


def set_work_state(
    connection: Conn, work_id: UUID, state: BackfillState, now: datetime, *, reason: str | None = None
) -> None:
    """Change the state of a work whose row is locked."""
    ended = state in {BackfillState.FINISHED, BackfillState.CANCELLED}
    columns: dict[str, object] = {
        "work_id": work_id, "state": state, "reason": reason, "finished_at": now if ended else None
    }  # fmt: skip
    connection.execute(_SQL["set_work_state"], columns)
    connection.execute(_WRITE_OLD_REDRIVE, {"work_id": work_id})


def lock_work(connection: Conn, tenant: str, work_id: UUID) -> tuple[str, BackfillState] | None:
    """Lock a tenant's work and return its kind and state; None if there is none."""
    columns: dict[str, object] = {"work_id": work_id, "tenant": tenant}
    if connection.execute(_SQL["lock_old_redrive"], columns).rowcount:
        connection.execute(_SQL["follow_old_redrive"], columns)
    row = connection.execute(_SQL["lock_work"], columns, binary=True).fetchone()
    return None if row is None else (str(row[0]), BackfillState(str(row[1])))
