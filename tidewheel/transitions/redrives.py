"""Rows of redrives: the dead letters that match a filter are run again by schedulers, at a rate.

A client writes a redrive's row when it requests, pauses, resumes or cancels it. The scheduler writes it with each batch
and when the redrive ends. Both hold the row's lock, which they acquire before those of dead letters and jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.errors import FieldError
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import BackfillState

_SQL = Statements("tidewheel.transitions")
_SCAN_DEAD_LETTERS = _SQL["scan_dead_letters"]
_FIND_DUE_REDRIVES = _SQL["find_due_redrives"]
_LOCK_DUE_REDRIVE = _SQL["lock_due_redrive"]
_ADD_REDRIVE = _SQL["add_redrive"]
_ADVANCE_REDRIVE = _SQL["advance_redrive"]
_SET_REDRIVE_STATE = _SQL["set_redrive_state"]
_LOCK_REDRIVE = _SQL["lock_redrive"]

MAX_REJECTIONS = 100  # stored one by one
_LOOKED_AT = 2000  # dead letters of one batch of a redrive: some milliseconds, where an error is rare


@dataclass(frozen=True, slots=True)
class DeadLetterRef:
    """The columns of a dead letter that a redrive or a purge needs."""

    id: int
    kind: str
    run_id: UUID | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LetterScan:
    """A part of a walk over dead letters.

    Args:
        letters: Those that match, the oldest first.
        last: The one after which the walk goes on; None at its end.
    """

    letters: Sequence[DeadLetterRef]
    last: DeadLetterRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """A redrive's row.

    Args:
        redrive_id: Its id.
        tenant: Of this tenant's dead letters.
        state: `running`, `paused`, `finished` or `cancelled`.
        kind: Only this kind: `run` or `message`.
        ids: Only these.
        job_id: Only of this job.
        status: Only of runs in this final state.
        error_type: Only with this error type.
        queue: Only of this queue.
        lane: Only of this lane.
        since_at: Only those created at this instant or later.
        until_at: Only those created at this instant or before.
        rate: Dead letters a second; None for no bound.
        matched_count: The number of matching dead letters at its acceptance.
        redriven_count: The number of these that were redriven.
        rejected_count: The number of these that could not be redriven.
        rejections: The first hundred of these: `id` and `errors` of each.
        after_at: The creation of the last dead letter that was processed.
        after_id: Its id.
        next_at: The time of the next batch, by the rate.
        reason: The reason of its request, pause or cancellation.
        created_at: The time of its acceptance.
        finished_at: The time when it was finished or cancelled.
    """

    redrive_id: UUID
    tenant: str
    state: str
    kind: str | None
    ids: Sequence[int] | None
    job_id: UUID | None
    status: str | None
    error_type: str | None
    queue: str | None
    lane: str | None
    since_at: datetime
    until_at: datetime
    rate: float | None
    matched_count: int
    redriven_count: int = 0
    rejected_count: int = 0
    rejections: Sequence[Mapping[str, object]] = ()
    after_at: datetime
    after_id: int
    next_at: datetime
    reason: str | None
    created_at: datetime
    finished_at: datetime | None = None


def scan_dead_letters(connection: Conn, columns: Mapping[str, object]) -> LetterScan:
    """Look at the dead letters after one of them, and return those that match.

    Args:
        connection: Reads the rows.
        columns: The filter; `look` and `limit`: the largest numbers of dead letters to look at, and to return.
    """
    rows = connection.execute(_SCAN_DEAD_LETTERS, columns, binary=True).fetchall()
    letters: list[DeadLetterRef] = []
    last: DeadLetterRef | None = None
    for *values, matches in rows:
        each = DeadLetterRef(*cast("tuple[int, str, UUID | None, datetime]", tuple(values)))
        if matches:
            letters.append(each)
        else:
            last = each
    return LetterScan(letters, letters[-1] if len(letters) == columns["limit"] else last)


def next_letters(connection: Conn, redrive: Redrive, limit: int) -> LetterScan:
    """Look at the next dead letters of a redrive."""
    columns: dict[str, object] = {
        "tenant": redrive.tenant, "ids": redrive.ids, "kind": redrive.kind, "job_id": redrive.job_id,
        "status": redrive.status, "error_type": redrive.error_type, "queue": redrive.queue, "lane": redrive.lane,
        "since": redrive.since_at, "until": redrive.until_at, "redriven": False,
        "after_at": redrive.after_at, "after_id": redrive.after_id, "limit": limit, "look": _LOOKED_AT,
    }  # fmt: skip
    return scan_dead_letters(connection, columns)


def add_redrive(connection: Conn, redrive: Redrive) -> bool:
    """Write a redrive; False if it is written already."""
    columns = {**asdict(redrive), "rejections": Jsonb(list(redrive.rejections))}
    return connection.execute(_ADD_REDRIVE, columns).rowcount == 1


def find_due_redrives(connection: Conn, now: datetime) -> list[UUID]:
    """Return the running redrives whose next batch is due."""
    rows = connection.execute(_FIND_DUE_REDRIVES, {"now": now}, binary=True).fetchall()
    return [cast("UUID", redrive_id) for (redrive_id,) in rows]


def lock_due_redrive(connection: Conn, redrive_id: UUID, now: datetime) -> Redrive | None:
    """Lock a redrive; None if no batch of it is due, or another transaction holds it."""
    with connection.cursor(row_factory=class_row(Redrive), binary=True) as cursor:
        return cursor.execute(_LOCK_DUE_REDRIVE, {"redrive_id": redrive_id, "now": now}).fetchone()


def advance_redrive(
    connection: Conn,
    redrive: Redrive,
    last: DeadLetterRef,
    *,
    redriven: int,
    rejected: Mapping[int, Sequence[FieldError]],
    next_at: datetime,
) -> None:
    """Record a batch, in the transaction that redrives it."""
    new = [{"id": number, "errors": [asdict(error) for error in errors]} for number, errors in rejected.items()]
    columns: dict[str, object] = {
        "redrive_id": redrive.redrive_id, "redriven": redriven, "rejected": len(rejected),
        "rejections": Jsonb([*redrive.rejections, *new][:MAX_REJECTIONS]),
        "after_at": last.created_at, "after_id": last.id, "next_at": next_at,
    }  # fmt: skip
    connection.execute(_ADVANCE_REDRIVE, columns)


def set_redrive_state(
    connection: Conn, redrive_id: UUID, state: BackfillState, now: datetime, *, reason: str | None = None
) -> None:
    """Change the state of a redrive whose row is locked."""
    ended = state in {BackfillState.FINISHED, BackfillState.CANCELLED}
    columns: dict[str, object] = {
        "redrive_id": redrive_id, "state": state, "reason": reason, "finished_at": now if ended else None
    }  # fmt: skip
    connection.execute(_SET_REDRIVE_STATE, columns)


def lock_redrive(connection: Conn, tenant: str, redrive_id: UUID) -> BackfillState | None:
    """Lock a tenant's redrive and return its state; None if there is none."""
    columns: dict[str, object] = {"redrive_id": redrive_id, "tenant": tenant}
    row = connection.execute(_LOCK_REDRIVE, columns, binary=True).fetchone()
    return None if row is None else BackfillState(str(row[0]))
