"""`job.backfill`, `backfill.pause`, `backfill.resume` and `backfill.cancel`.

The scheduler creates the runs. A backfill is checked and written under the job's lock. The lock covers the number of
its backfills, the versions of the range, and the time that is part of this backfill's run ids. A repeated request finds
the same backfill.

The other three are idempotent, and their replies have the backfill's state. A paused backfill creates no further run. A
cancellation ends the runs that never started in the same transaction; at most 1,000 are open at once. Started runs go
on, also between two attempts. Ended runs stay as they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID, uuid4

from psycopg.rows import class_row

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownBackfill, UnknownJob, refuse
from tidewheel.ids import hashed_id, run_range
from tidewheel.intake.backfill_range import RangeCount, find_occurrences
from tidewheel.intake.locks import lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import BackfillCancel, BackfillPause, BackfillResume, JobBackfill
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import NOT_STARTED, Overlap, RunState
from tidewheel.schedules.decision import BackfillState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.backfills import Backfill, append_backfill_event
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace

_SQL = Statements("tidewheel.intake")
_READ_BACKFILLED_JOBS = _SQL["read_backfilled_jobs"]
_FIND_BACKFILL = _SQL["find_backfill"]
_ADD_BACKFILL = _SQL["add_backfill"]
_LOCK_BACKFILL = _SQL["lock_backfill"]
_READ_JOB_KEY = Statements("tidewheel.transitions")["read_job_key"]
_SET_BACKFILL_STATE = _SQL["set_backfill_state"]
_LOCK_UNSTARTED_BACKFILL_RUNS = _SQL["lock_unstarted_backfill_runs"]

_REASON = "backfill_cancelled"
_CHANGES: dict[type, tuple[tuple[BackfillState, ...], BackfillState]] = {
    BackfillPause: ((BackfillState.RUNNING,), BackfillState.PAUSED),
    BackfillResume: ((BackfillState.PAUSED,), BackfillState.RUNNING),
    BackfillCancel: ((BackfillState.RUNNING, BackfillState.PAUSED), BackfillState.CANCELLED),
}  # the states that a request changes, and the new one
_EVENTS = {
    BackfillState.PAUSED: "job.backfill_paused",
    BackfillState.RUNNING: "job.backfill_resumed",
    BackfillState.CANCELLED: "job.backfill_cancelled",
}

MAX_UNFINISHED = 100
"""Unfinished backfills of one job: the scheduler reads each several times a second."""

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _BackfilledJob:
    job_id: UUID
    key: str
    shard: int
    version: int
    deleted_at: datetime | None
    is_ordered: bool
    unfinished: int
    last_created_at: datetime | None


def apply_backfills(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Apply backfills in the caller's transaction; return a reply for each request, in their order."""
    ids = sorted({received.job_id for received in batch})
    lock_jobs(connection, installation, batch)  # timers too: a later request of the transaction may pause the job
    with connection.cursor(row_factory=class_row(_BackfilledJob), binary=True) as cursor:
        found = cursor.execute(_READ_BACKFILLED_JOBS, {"job_ids": ids})
        jobs = {job.job_id: job for job in found if job.version and job.deleted_at is None}
    return [_accept(connection, installation, received, jobs.get(received.job_id)) for received in batch]


def apply_backfill_changes(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, freed_keys: list[FreedPlace]
) -> list[Reply]:
    """Pause, resume or cancel backfills; return a reply for each request, in their order.

    `freed_keys` is that of `finish_runs`.
    """
    return [_change(connection, installation, received, freed_keys) for received in batch]


def _accept(
    connection: Conn, installation: Installation, received: ReceivedRequest, job: _BackfilledJob | None
) -> Reply:
    request = received.request
    assert isinstance(request, JobBackfill)  # noqa: S101 - by the table of `apply`
    if job is None:
        return rejected(received, UnknownJob(received.tenant, received.key or ""))
    backfill_id = _backfill_id(received, job.job_id)
    existing = connection.execute(_FIND_BACKFILL, {"backfill_id": backfill_id}, binary=True).fetchone()
    if existing and not request.dry_run:
        return _accepted(received, job, occurrences=existing[0], backfill_id=str(backfill_id), unchanged=True)
    now = read_now(connection)
    try:
        _ensure_not_too_many(job, request)
        if job.is_ordered and request.overlap not in {None, Overlap.ALLOW_ALL}:
            refuse("overlap", "the job has an ordering_key", "leave it out: ordered runs start one after another")
        found = find_occurrences(connection, job.job_id, job.version, request, now=now)
    except Refused as refused:
        return rejected(received, refused)
    if request.dry_run:
        return _accepted(received, job, occurrences=found.expected)
    backfill = _backfill(backfill_id, received, job, found, _created_at(job, now))
    connection.execute(_ADD_BACKFILL, asdict(backfill))
    append_backfill_event(
        connection, installation, "job.backfill_started", backfill, job_key=job.key, now=now, reason=request.reason
    )
    return _accepted(received, job, occurrences=found.expected, backfill_id=str(backfill_id))


def _accepted(received: ReceivedRequest, job: _BackfilledJob, **facts: object) -> Reply:
    return accepted(received, job_id=str(job.job_id), job_version=job.version, **facts)


def _backfill_id(received: ReceivedRequest, job_id: UUID) -> UUID:
    seed = received.seed()
    return hashed_id(b"backfill%b%b" % (job_id.bytes, seed)) if seed else uuid4()


def _ensure_not_too_many(job: _BackfilledJob, request: JobBackfill) -> None:
    if job.unfinished >= MAX_UNFINISHED and not request.dry_run:
        problem = f"the job has {job.unfinished} backfills that are not finished, and may have {MAX_UNFINISHED}"
        raise InvalidInput([FieldError("key", problem, "wait for them, or cancel some")])


def _created_at(job: _BackfilledJob, now: datetime) -> datetime:
    """Return a millisecond that no other backfill of the job has; their run ids differ by it."""
    created_at = now.replace(microsecond=now.microsecond // 1000 * 1000)
    return created_at if job.last_created_at is None else max(created_at, job.last_created_at + _MILLISECOND)


def _backfill(
    backfill_id: UUID, received: ReceivedRequest, job: _BackfilledJob, found: RangeCount, created_at: datetime
) -> Backfill:
    request = received.request
    assert isinstance(request, JobBackfill)  # noqa: S101 - by the table of `apply`
    newest_first = request.order == "newest_first"
    return Backfill(
        backfill_id=backfill_id,
        tenant=request.tenant,
        job_id=job.job_id,
        shard=job.shard,
        job_version=job.version,
        state=BackfillState.RUNNING,
        first_at=request.from_at,
        last_at=request.to_at,
        what=request.what,
        versions=request.versions,
        overlap=request.overlap,
        newest_first=newest_first,
        max_concurrent=request.max_concurrent,
        occurrences=found.occurrences,
        expected_count=found.expected,
        cursor_at=request.to_at if newest_first else request.from_at,
        request_id=request.request_id,
        traceparent=received.traceparent,
        requested_from=received.requested_from,
        reason=request.reason,
        created_at=created_at,
    )


def _change(
    connection: Conn, installation: Installation, received: ReceivedRequest, freed_keys: list[FreedPlace]
) -> Reply:
    request = received.request
    assert isinstance(request, BackfillPause | BackfillResume | BackfillCancel)  # noqa: S101 - by the table of `apply`
    found = _lock(connection, UUID(request.backfill_id), received.tenant)
    if found is None:
        return rejected(received, UnknownBackfill(request.backfill_id))
    sources, target = _CHANGES[type(request)]
    state = BackfillState(found.state)
    changed = state in sources
    row = connection.execute(_READ_JOB_KEY, {"job_id": found.job_id}, binary=True).fetchone()
    key = str(row[0]) if row else ""
    if changed:
        state = target
        _write(connection, installation, found, state, job_key=key, reason=request.reason, freed_keys=freed_keys)
    return accepted(
        received,
        key=key,
        job_id=str(found.job_id),
        backfill_id=request.backfill_id,
        backfill_status=state.value,
        occurrences=found.expected_count,
        unchanged=not changed,
    )


def _write(
    connection: Conn,
    installation: Installation,
    backfill: Backfill,
    state: BackfillState,
    *,
    job_key: str,
    reason: str | None,
    freed_keys: list[FreedPlace],
) -> None:
    now = read_now(connection)
    cancelled = state is BackfillState.CANCELLED
    columns: dict[str, object] = {
        "backfill_id": backfill.backfill_id, "state": state, "reason": reason, "finished_at": now if cancelled else None
    }  # fmt: skip
    connection.execute(_SET_BACKFILL_STATE, columns)
    if cancelled:
        _cancel_unstarted(connection, installation, backfill, reason or _REASON, freed_keys)
    append_backfill_event(connection, installation, _EVENTS[state], backfill, job_key=job_key, now=now, reason=reason)


def _cancel_unstarted(
    connection: Conn, installation: Installation, backfill: Backfill, reason: str, freed_keys: list[FreedPlace]
) -> None:
    first, last = run_range(backfill.job_id, backfill.created_at)
    columns: dict[str, object] = {
        "job_id": backfill.job_id, "first_run_id": first, "last_run_id": last, "states": NOT_STARTED
    }  # fmt: skip
    rows = connection.execute(_LOCK_UNSTARTED_BACKFILL_RUNS, columns, binary=True).fetchall()
    ends = [RunEnd(run_id=cast("UUID", run), attempt=0, state=RunState.CANCELLED, reason=reason) for (run,) in rows]
    finish_runs(connection, installation, ends, freed_keys=freed_keys)


def _lock(connection: Conn, backfill_id: UUID, tenant: str) -> Backfill | None:
    columns = {"backfill_id": backfill_id, "tenant": tenant}
    with connection.cursor(row_factory=class_row(Backfill), binary=True) as cursor:
        return cursor.execute(_LOCK_BACKFILL, columns).fetchone()
