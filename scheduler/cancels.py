"""Cancel the runs that filters match, a batch at a time, and runs by id that were locked.

Claims refuse these runs from the start of the cancellation.

For each cancellation a scan goes through the open runs, from one end of an index to the other. The first scan requests
running attempts to stop, the later ones end all other runs. Scans repeat until one matches nothing. Then the
cancellation is finished, and claims do not consult it any more.

Only this process knows the position of a scan. Two schedulers that scan for the same cancellation do no harm, since
each run ends once. After its cancel request a running attempt belongs to its executor.

A user's own transaction may hold a run that it completes for as long as it likes. When that transaction ends the run
has ended, or it goes on and is cancelled now. A pending cancel stays until one of the two has happened. A crash at any
line leaves it pending.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, Session, read_ids, read_rows, readable_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, Cause, Move, RunState, sources
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.transitions.cancellation import request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.tenant_refusals import TENANT_DELETED

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_TO_SIGNAL = MOVES[Move.REQUEST_CANCEL].sources
TO_CANCEL = sorted((MOVES[Move.CANCEL].sources | _TO_SIGNAL) - {RunState.CANCELLING})
"""The states of runs that a cancellation ends, or requests to stop."""

_BATCH_ROWS = 1000  # runs ended in one transaction: tens of milliseconds
_SCAN_ROWS = 20_000  # index entries that one statement scans
_POLL_SECONDS = 0.25  # an executor stops a running attempt within a second, including its own poll of signals
_AFTER_FAILURE_SECONDS = 60.0  # until the next scan, after one whose runs could all not be ended
_NOWHERE = UUID(int=0)
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
_MAX_APPLIED = 500  # pending cancels in one transaction


@dataclass(frozen=True, slots=True)
class OpenCancellation:
    """A cancellation by filter that is not finished. It matches the runs that fit all its filters."""

    id: int
    tenant: str
    job_id: UUID | None
    by_labels: bool
    queue: str | None
    lane: str | None
    handler: str | None
    cause: str | None
    created_before: datetime
    include_started: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """An open run that a cancellation matches, or the last run that a statement has scanned."""

    run_id: UUID
    job_id: UUID
    scheduled_at: datetime
    state: str
    cause: str
    attempt: int
    executor_id: UUID | None
    named: bool
    last_scanned: bool


@dataclass(slots=True)
class _ScanPosition:
    """The position of a scan, which begins no sooner than the monotonic time `not_before`.

    The first scan is `signalling`: it looks for running attempts only. They are stopped within a second, however many
    other runs there are to end.
    """

    signalling: bool = False
    job_id: UUID = _NOWHERE
    scheduled_at: datetime = _LONG_AGO
    run_id: UUID = _NOWHERE
    at_end: bool = False  # of this job's runs, or of all
    found: int = 0
    done: int = 0
    failed: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class CancelResult:
    """The numbers of runs that one step has ended or signalled: executors of the latter must be woken."""

    ended: int = 0
    signalled: int = 0
    more: bool = False


class BulkCancel:
    """Cancels runs for the cancellations that are not finished, in rotation."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._positions: dict[int, _ScanPosition] = {}
        self._failed = SetAside[UUID]()
        self._last = 0
        self._next_poll = 0.0

    def step(self) -> CancelResult:
        """Cancel up to `_BATCH_ROWS` runs of the next cancellation."""
        if monotonic_seconds() < self._next_poll:
            return CancelResult()
        done = CancelResult()
        for cancellation in self._open():
            if monotonic_seconds() < self._positions[cancellation.id].not_before:
                continue
            done = self._advance(cancellation)
            self._last = cancellation.id
            if done.more:
                break
        self._next_poll = 0.0 if done.more else monotonic_seconds() + _POLL_SECONDS
        return done

    def _open(self) -> list[OpenCancellation]:
        """Return the cancellations that are not finished, beginning after the one that was advanced last."""
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(OpenCancellation), binary=True) as cursor,
        ):
            found = readable_rows(cursor.execute(_SQL["find_cancellations"], {"deletion": TENANT_DELETED}))
        self._positions = {
            one.id: self._positions.get(one.id) or _ScanPosition(signalling=one.include_started) for one in found
        }
        return sorted(found, key=lambda one: (one.id <= self._last, one.id))

    def _advance(self, cancellation: OpenCancellation) -> CancelResult:
        position = self._positions[cancellation.id]
        rows = self._find(cancellation, position)
        if rows is None:
            return self._end_scan(cancellation, position)
        named, left, done = [row for row in rows if row.named], self._failed.current(), CancelResult(more=True)
        due = {row.run_id: row for row in named if row.run_id not in left}
        work = f"apply cancellation {cancellation.id} to run"
        handled = self._failed.runs_together(due, partial(self._end, cancellation, done), work)
        position.found += len(named)
        position.done += done.ended + done.signalled
        position.failed += len(named) - handled
        position.at_end = len(rows) < _BATCH_ROWS and not (rows and rows[-1].last_scanned)
        if rows:
            position.run_id, position.scheduled_at = rows[-1].run_id, rows[-1].scheduled_at
        return done

    def _end_scan(self, cancellation: OpenCancellation, position: _ScanPosition) -> CancelResult:
        if position.found == 0 and not position.signalling:
            with self._session.transaction() as connection:
                connection.execute(_SQL["finish_cancellation"], {"id": cancellation.id})
                connection.execute(_SQL["delete_cancelled_jobs"], {"id": cancellation.id})
            _LOG.info("cancellation %d is finished", cancellation.id)
        # The cancellation stays open, since claims must refuse its runs. Runs that could not be ended get time.
        stuck = position.failed and not position.done and not position.signalling
        wait = _AFTER_FAILURE_SECONDS if stuck else 0.0
        self._positions[cancellation.id] = _ScanPosition(not_before=monotonic_seconds() + wait)
        # If other transactions hold all matching runs, wait before the next scan.
        return CancelResult(more=position.done > 0 or position.signalling)

    def _find(self, cancellation: OpenCancellation, position: _ScanPosition) -> list[Candidate] | None:
        """Read the next runs of the scan; None at its end."""
        columns: dict[str, object] = {
            "id": cancellation.id, "tenant": cancellation.tenant, "job_id": cancellation.job_id,
            "queue": cancellation.queue, "lane": cancellation.lane, "handler": cancellation.handler,
            "cause": cancellation.cause, "created_before": cancellation.created_before,
            "include_started": cancellation.include_started,
            "states": sorted(_TO_SIGNAL) if position.signalling else TO_CANCEL,
            "limit": _BATCH_ROWS, "scan_limit": _SCAN_ROWS,
        }  # fmt: skip
        with self._session.transaction() as connection:
            if cancellation.by_labels:
                job = self._job(connection, position, columns)
                if job is None:
                    return None
                columns["job_id"] = job
            elif position.at_end:
                return None
            columns |= {"after_id": position.run_id, "after_at": position.scheduled_at}
            find = _SQL["find_cancelled"] if columns["job_id"] is None else _SQL["find_cancelled_of_job"]
            return read_rows(connection, class_row(Candidate), find, columns)

    def _job(self, connection: Conn, position: _ScanPosition, columns: Mapping[str, object]) -> UUID | None:
        """Return the current job of a scan by labels, or move on to the next one."""
        if position.job_id != _NOWHERE and not position.at_end:
            return position.job_id
        row = connection.execute(
            _SQL["next_cancelled_job"], {**columns, "after": position.job_id}, binary=True
        ).fetchone()
        if row is None:
            return None
        position.job_id, position.scheduled_at = cast("UUID", row[0]), _LONG_AGO
        position.run_id, position.at_end = _NOWHERE, False
        return position.job_id

    def _end(self, cancellation: OpenCancellation, done: CancelResult, rows: Sequence[Candidate]) -> int:
        """End runs, and add their numbers to `done`; return the number of rows."""
        with self._session.transaction() as connection:
            # Lock order: the cancellation before active runs. Another scheduler may hold it.
            if connection.execute(_SQL["lock_cancellation"], {"id": cancellation.id}).fetchone() is None:
                return len(rows)
            ended = end_candidates(connection, self._installation, rows, cancellation.reason)
            connection.execute(_SQL["count_cancelled"], {"id": cancellation.id, "more": ended.ended + ended.signalled})
        done.ended += ended.ended
        done.signalled += ended.signalled
        return len(rows)


def end_candidates(
    connection: Conn, installation: Installation, rows: Sequence[Candidate], reason: str
) -> CancelResult:
    """End runs, and request running attempts to stop, in the caller's transaction."""
    chained = {row.job_id for row in rows if row.cause == Cause.TIMER}
    connection.execute(_SQL["lock_cancelled_chains"], {"job_ids": uuids(chained)})
    ends = [
        RunEnd(row.run_id, row.attempt, RunState.CANCELLED, row.executor_id, reason=reason)
        for row in rows
        if RunState(row.state) not in _TO_SIGNAL
    ]
    ended = finish_runs(connection, installation, ends)
    signalled = _signal(connection, [row.run_id for row in rows if RunState(row.state) in _TO_SIGNAL], reason)
    return CancelResult(len(ended.states), len(signalled))


def _signal(connection: Conn, run_ids: Sequence[UUID], reason: str) -> set[UUID]:
    if not run_ids:
        return set()
    columns: dict[str, object] = {"run_ids": uuids(run_ids), "states": sources(Move.REQUEST_CANCEL)}
    return request_cancel(connection, dict.fromkeys(read_ids(connection, _SQL["lock_cancelled"], columns), reason))


@dataclass(frozen=True, slots=True)
class PendingCancel:
    """A pending cancel, with its run if that is open."""

    id: int
    run_id: UUID
    reason: str
    job_id: UUID | None
    state: str | None
    cause: str | None
    attempt: int | None
    executor_id: UUID | None


class PendingCancels:
    """Applies pending cancels, `_MAX_APPLIED` at a time."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = 0
        self._failed = SetAside[UUID]()

    def step(self) -> CancelResult:
        """Apply the cancels that can be applied. Those whose run another transaction holds stay pending."""
        columns = {"after": self._after, "limit": _MAX_APPLIED}
        found = self._session.within(read_rows, class_row(PendingCancel), _SQL["find_pending_cancels"], columns)
        # The next step begins behind these, so that runs held for long do not hide the rest.
        self._after = found[-1].id if len(found) == _MAX_APPLIED else 0
        left = self._failed.current()
        done = CancelResult(more=self._after > 0)
        runs = defaultdict[UUID, list[PendingCancel]](list)
        for one in found:
            if one.run_id not in left:
                runs[one.run_id].append(one)
        if runs:
            self._failed.runs_together(runs, partial(self._apply, done), "cancel run")
        return done

    def _apply(self, done: CancelResult, of_runs: Sequence[Sequence[PendingCancel]]) -> int:
        cancels = [one for each in of_runs for one in each]
        runs = {one.run_id: one for one in cancels}
        running = [run_id for run_id, one in runs.items() if _state(one) in _TO_SIGNAL]
        over = {run_id for run_id, one in runs.items() if _state(one) in (None, RunState.CANCELLING)}
        with self._session.transaction() as connection:
            chained = {one.job_id for one in runs.values() if one.job_id and one.cause == Cause.TIMER}
            connection.execute(_SQL["lock_cancelled_chains"], {"job_ids": uuids(chained)})
            columns: dict[str, object] = {"run_ids": uuids(running), "states": sources(Move.REQUEST_CANCEL)}
            locked = read_ids(connection, _SQL["lock_cancelled"], columns)
            signalled = request_cancel(connection, {run: runs[run].reason for run in locked}) if locked else set[UUID]()
            ends = [_end(one) for run_id, one in runs.items() if run_id not in over and run_id not in running]
            ended = set(finish_runs(connection, self._installation, ends).states)
            applied = [one.id for one in cancels if one.run_id in over | signalled | ended]
            connection.execute(_SQL["delete_pending_cancels"], {"ids": applied})
        done.ended += len(ended)
        done.signalled += len(signalled)
        return len(applied)


def _state(one: PendingCancel) -> RunState | None:
    return RunState(one.state) if one.state is not None else None


def _end(one: PendingCancel) -> RunEnd:
    return RunEnd(one.run_id, one.attempt or 0, RunState.CANCELLED, one.executor_id, reason=one.reason)
