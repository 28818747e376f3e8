"""`backfill.pause`, `backfill.resume` and `backfill.cancel`: each idempotent, answered with the state that stands then.

A pause makes no further run. A cancellation ends those that never began in the same transaction: at most a thousand can
be open at once. What has begun goes on, also between two attempts. What is over stays as it is.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.db import Conn
from tidewheel.errors import UnknownBackfill
from tidewheel.ids import run_range
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.intake.locks import read_now
from tidewheel.jobs.requests import BackfillCancel, BackfillPause, BackfillResume
from tidewheel.occurrences import BackfillState
from tidewheel.runs import RunState
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.backfills import Backfill, tell_backfill
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_LOCK_BACKFILL = _SQL["lock_backfill"]
_READ_JOB_KEY = _SQL["read_job_key"]
_MOVE_BACKFILL = _SQL["move_backfill"]
_LOCK_UNBEGUN_OF_BACKFILL = _SQL["lock_unbegun_of_backfill"]

_UNBEGUN = [RunState.QUEUED, RunState.BUFFERED]
_REASON = "backfill_cancelled"


def apply_backfill_pauses(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Pause backfills, in the caller's transaction; an answer for each request, in their order."""
    return [_move(connection, installation, incoming, (BackfillState.RUNNING,)) for incoming in batch]


def apply_backfill_resumes(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Resume backfills, in the caller's transaction; an answer for each request, in their order."""
    return [_move(connection, installation, incoming, (BackfillState.PAUSED,)) for incoming in batch]


def apply_backfill_cancels(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Cancel backfills, in the caller's transaction; an answer for each request, in their order."""
    sources = (BackfillState.RUNNING, BackfillState.PAUSED)
    return [_move(connection, installation, incoming, sources) for incoming in batch]


def _move(connection: Conn, installation: Installation, incoming: Incoming, sources: Sequence[BackfillState]) -> Reply:
    request = incoming.request
    assert isinstance(request, BackfillPause | BackfillResume | BackfillCancel)  # noqa: S101 - by accept's table
    found = _lock(connection, UUID(request.backfill_id), incoming.tenant)
    if found is None:
        return rejected(incoming, UnknownBackfill(request.backfill_id))
    state = BackfillState(found.state)
    changed = state in sources
    row = connection.execute(_READ_JOB_KEY, {"job_id": found.job_id}, binary=True).fetchone()
    key = str(row[0]) if row else ""
    if changed:
        state = _target(request)
        _write(connection, installation, found, state, job_key=key, reason=request.reason)
    return accepted(
        incoming,
        key=key,
        job_id=str(found.job_id),
        backfill_id=request.backfill_id,
        backfill_status=state.value,
        occurrences=found.wanted,
        unchanged=not changed,
    )


def _target(request: BackfillPause | BackfillResume | BackfillCancel) -> BackfillState:
    match request:
        case BackfillPause():
            return BackfillState.PAUSED
        case BackfillResume():
            return BackfillState.RUNNING
        case BackfillCancel():
            return BackfillState.CANCELLED


_KINDS = {
    BackfillState.PAUSED: "job.backfill_paused",
    BackfillState.RUNNING: "job.backfill_resumed",
    BackfillState.CANCELLED: "job.backfill_cancelled",
}


def _write(
    connection: Conn,
    installation: Installation,
    backfill: Backfill,
    state: BackfillState,
    *,
    job_key: str,
    reason: str | None,
) -> None:
    now = read_now(connection)
    cancelled = state is BackfillState.CANCELLED
    columns: dict[str, object] = {
        "backfill_id": backfill.backfill_id, "state": state, "reason": reason, "finished_at": now if cancelled else None
    }  # fmt: skip
    connection.execute(_MOVE_BACKFILL, columns)
    if cancelled:
        _end_unbegun(connection, installation, backfill, reason or _REASON)
    tell_backfill(connection, installation, _KINDS[state], backfill, job_key=job_key, now=now, reason=reason)


def _end_unbegun(connection: Conn, installation: Installation, backfill: Backfill, reason: str) -> None:
    first, last = run_range(backfill.job_id, backfill.made_at)
    columns: dict[str, object] = {
        "job_id": backfill.job_id, "first_run_id": first, "last_run_id": last, "states": _UNBEGUN
    }  # fmt: skip
    rows = connection.execute(_LOCK_UNBEGUN_OF_BACKFILL, columns, binary=True).fetchall()
    ends = [RunEnd(run_id=cast("UUID", run), attempt=0, state=RunState.CANCELLED, reason=reason) for (run,) in rows]
    end_runs(connection, installation, ends)


def _lock(connection: Conn, backfill_id: UUID, tenant: str) -> Backfill | None:
    columns = {"backfill_id": backfill_id, "tenant": tenant}
    with connection.cursor(row_factory=class_row(Backfill), binary=True) as cursor:
        return cursor.execute(_LOCK_BACKFILL, columns).fetchone()
