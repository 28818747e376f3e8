"""The active run of each job: acquire, transfer, release, and promote the run that waits.

Unless its policy is `allow_all`, a run that meets another one of its job starts only as the job's active run. It stays
that until it is terminal. A root's run that holds its place (`Gate.WHOLE`) leaves it to its occurrence, until that
ends. A run that meets none starts without a row here. A buffered run waits for the active run's end. Buffering and
promoting happen under the lock of the job's row in `active_runs` alone. So a release that finds `has_waiters` false
need not look for waiting runs; one that finds it true promotes the oldest.

No other module writes active runs. ADR 0008 holds the order of locks: open runs first, then active runs. A transaction
that has locked an active run waits for no open run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.pg_binary import texts, uuids
from tidewheel.postgres.session import Conn, at_commit, read_ids, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import HOLDS, Gate, Move, RunState, sources, target
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import append_requests

_SQL = Statements("tidewheel.transitions")
_ACQUIRE_ACTIVE_RUNS = _SQL["acquire_active_runs"]
_FIND_STALE_ACTIVE_RUNS = _SQL["find_stale_active_runs"]
_RELEASE_ACTIVE_RUNS = _SQL["release_active_runs"]
_PROMOTE_NEXT_RUNS = _SQL["promote_next_runs"]
_PROMOTE_WAITING_RUNS = _SQL["promote_waiting_runs"]
_TRANSFER_ACTIVE_RUNS = _SQL["transfer_active_runs"]
_BUFFER_RUNS = _SQL["buffer_runs"]
_MARK_WAITERS = _SQL["mark_waiters"]
_LOCK_PLACES = _SQL["lock_places"]
_HOLD_PLACES = _SQL["hold_places"]
_TAKE_PLACE = _SQL["take_place"]

NO_RUN = UUID(int=0)  # the active run of a job without one, until a waiting run is promoted


class AcquireRequest(NamedTuple):
    """A run that is to become its job's active run."""

    job_id: UUID
    tenant: str
    run_id: UUID


class ActiveRun(NamedTuple):
    """A job's active run; `acquire_active_runs` returns its columns in this order.

    `has_waiters` is True if runs may wait behind it. `held_by` is the root's run of the occurrence that keeps the place
    after the run's end.
    """

    job_id: UUID
    run_id: UUID
    has_waiters: bool
    held_by: UUID | None


@dataclass(frozen=True, slots=True)
class _Released:
    """An active run that was released while runs wait behind it."""

    job_id: UUID
    tenant: str
    run_id: UUID


@dataclass(frozen=True, slots=True)
class PromotedRun:
    """An open run's row after it was queued: promoted, or released by its parents."""

    run_id: UUID
    job_id: UUID
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    concurrency_key: str | None
    tenant: str
    priority: int | None


def acquire_active_runs(
    connection: Conn, installation: Installation, requests: Sequence[AcquireRequest]
) -> dict[UUID, ActiveRun]:
    """Make runs active where their job has no active run; one request per job.

    An active run that is no longer open is released first; a run that waits for it comes before the request.

    Returns:
        The active run of each job, locked until the transaction ends.
    """
    active = _acquire(connection, requests)
    refused = [request.job_id for request in requests if active[request.job_id].run_id != request.run_id]
    freed = release_stale_active_runs(connection, installation, refused)
    if freed:
        active |= _acquire(connection, [request for request in requests if request.job_id in freed])
    return active


def release_active_runs(connection: Conn, installation: Installation, held: Sequence[tuple[UUID, UUID]]) -> None:
    """Release active runs in the caller's transaction, and promote the oldest run that waits behind each.

    Args:
        connection: Inside a transaction that waits for no timer, job or open run from here on.
        held: (job_id, run_id) of runs that may be their job's active run; the rest is ignored.
    """
    if not held:
        return
    columns: dict[str, object] = {"job_ids": uuids(job for job, _ in held), "run_ids": uuids(run for _, run in held)}
    released = read_rows(connection, class_row(_Released), _RELEASE_ACTIVE_RUNS, columns)
    if released:
        _promote(connection, installation, released)


def release_stale_active_runs(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> set[UUID]:
    """Release active runs that are no longer open and that the caller has locked; return their jobs."""
    if not job_ids:
        return set()
    # A later statement than the lock, so that it sees what committed while the lock waited.
    rows = connection.execute(_FIND_STALE_ACTIVE_RUNS, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    stale = [(job, run) for job, run in rows if isinstance(job, UUID) and isinstance(run, UUID)]
    release_active_runs(connection, installation, stale)
    return {job for job, _ in stale}


def transfer_active_runs(connection: Conn, transfers: Sequence[tuple[UUID, UUID]]) -> None:
    """Replace active runs, as (job_id, run_id); the caller has locked both runs."""
    if transfers:
        columns = {"job_ids": uuids(job for job, _ in transfers), "run_ids": uuids(run for _, run in transfers)}
        connection.execute(_TRANSFER_ACTIVE_RUNS, columns)


def buffer_runs(connection: Conn, requests: Sequence[AcquireRequest]) -> set[UUID]:
    """Buffer queued runs behind the active run of their job; the caller has locked both.

    A run that held a place of its key holds none from now on: the caller gives it back.

    Returns:
        The runs that wait now.
    """
    if not requests:
        return set()
    columns = {
        "run_ids": uuids(request.run_id for request in requests),
        "sources": sources(Move.BUFFER),
        "target": target(Move.BUFFER),
        "met": Gate.MET,
        "holds": HOLDS,
    }
    buffered = read_ids(connection, _BUFFER_RUNS, columns)
    mark_waiters(connection, {(request.job_id, request.tenant) for request in requests})
    at_commit(connection, partial(metrics.count, "runs_buffered", len(buffered)))
    return buffered


def settle_places(
    connection: Conn,
    installation: Installation,
    held: Sequence[tuple[UUID, UUID]],
    freed: Sequence[tuple[UUID, UUID]],
) -> None:
    """Leave the places of ended roots to their occurrences; release those of ended occurrences.

    Args:
        held: (job_id, root_run_id) of roots whose occurrence is open.
        freed: (job_id, run_id) of runs of roots, as for `release_active_runs`.
    """
    if held or freed:
        connection.execute(_LOCK_PLACES, {"job_ids": uuids({job for job, _ in (*held, *freed)})})
    if held:
        columns = {"job_ids": uuids(job for job, _ in held), "roots": uuids(root for _, root in held)}
        connection.execute(_HOLD_PLACES, columns)
    release_active_runs(connection, installation, freed)


def take_place(connection: Conn, request: AcquireRequest, root_run_id: UUID) -> bool:
    """Make a resumed occurrence the holder of its root's place; return False if it is taken.

    Args:
        request: The root's run: the new one if the root runs again.
    """
    columns: dict[str, object] = {**request._asdict(), "root": root_run_id}
    return connection.execute(_TAKE_PLACE, columns).fetchone() is not None


def mark_waiters(connection: Conn, jobs: Iterable[tuple[UUID, str]]) -> None:
    """Set `has_waiters` for (job_id, tenant) and lock the rows; insert missing rows without a run."""
    listed = sorted(jobs)
    if not listed:
        return
    columns = {
        "job_ids": uuids(job for job, _ in listed),
        "tenants": texts(tenant for _, tenant in listed),
        "no_run": NO_RUN,
    }
    connection.execute(_MARK_WAITERS, columns)


def _acquire(connection: Conn, requests: Sequence[AcquireRequest]) -> dict[UUID, ActiveRun]:
    columns = {
        "job_ids": uuids(request.job_id for request in requests),
        "tenants": texts([request.tenant for request in requests]),
        "run_ids": uuids(request.run_id for request in requests),
    }
    with connection.cursor(row_factory=rows_of(ActiveRun._make), binary=True) as cursor:
        return {active.job_id: active for active in cursor.execute(_ACQUIRE_ACTIVE_RUNS, columns)}


def _promote(connection: Conn, installation: Installation, released: Sequence[_Released]) -> None:
    job_ids = uuids(each.job_id for each in released)
    oldest = {"job_ids": job_ids, "buffered": RunState.BUFFERED, "target": target(Move.PROMOTE)}
    promoted = {run.job_id: run for run in read_rows(connection, class_row(PromotedRun), _PROMOTE_NEXT_RUNS, oldest)}
    columns = {
        "job_ids": job_ids,
        "tenants": texts(each.tenant for each in released),
        # If other transactions hold all waiting runs, a run that has ended stays active until the next repair.
        "run_ids": uuids(promoted[each.job_id].run_id if each.job_id in promoted else each.run_id for each in released),
        "promoted": [each.job_id in promoted for each in released],
        "buffered": RunState.BUFFERED,
    }
    connection.execute(_PROMOTE_WAITING_RUNS, columns)
    append_requests(connection, installation, list(promoted.values()))
