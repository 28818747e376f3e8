"""Ends the runs that cancellations by filter name, some at a time; claims refuse them from its first moment on.

The open runs are walked through for each, from one end of an index to the other: first to ask what runs to stop, then
to end the rest, and again until a whole walk finds nothing that it names. Then it is finished, and claims need not
consult it any more. Where a walk stands is known to this process alone; two schedulers that walk for the same one do no
harm, for each run ends once. What was asked to stop is its executor's from then on.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, Cause, Move, RunState, sources
from tidewheel.transitions.cancel_signals import request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_CANCELLATIONS = _SQL["find_cancellations"]
_NEXT_CANCELLED_JOB = _SQL["next_cancelled_job"]
_FIND_CANCELLED_OF_JOB = _SQL["find_cancelled_of_job"]
_FIND_CANCELLED = _SQL["find_cancelled"]
_LOCK_CANCELLATION = _SQL["lock_cancellation"]
_LOCK_CANCELLED_CHAINS = _SQL["lock_cancelled_chains"]
_LOCK_CANCELLED = _SQL["lock_cancelled"]
_COUNT_CANCELLED = _SQL["count_cancelled"]
_FINISH_CANCELLATION = _SQL["finish_cancellation"]
_FORGET_CANCELLED_JOBS = _SQL["forget_cancelled_jobs"]

_TO_ASK = MOVES[Move.REQUEST_CANCEL].sources
_STATES = sorted((MOVES[Move.CANCEL].sources | _TO_ASK) - {RunState.CANCELLING})
_MOST = 1000  # runs ended in one transaction: some tens of milliseconds
_LOOKED_AT = 20_000  # rows of the index that one statement goes past
_LOOK_SECONDS = 0.25  # a running attempt hears of it within a second, its executor's own look included
_AFTER_FAILURE_SECONDS = 60.0  # before a walk that has met only runs that cannot be ended is made again
_NOWHERE = UUID(int=0)
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What is to be cancelled: all that fits every filter it has."""

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
class Found:
    """An open run that a cancellation names, or the last one that a statement has looked at.

    Args:
        named: Whether it is the former.
        further: Whether it is the latter.
    """

    run_id: UUID
    job_id: UUID
    scheduled_at: datetime
    state: str
    cause: str
    attempt: int
    executor_id: UUID | None
    named: bool
    further: bool


@dataclass(slots=True)
class _Place:
    """Where a walk stands.

    Args:
        asking: Whether it is the first walk, which looks for running attempts alone: they hear of it within a second,
            however many others there are to be ended.
        job_id: Of a walk by labels: the job that it is at.
        scheduled_at: Of a walk through a job: the last run it came past.
        run_id: The last run it came past.
        over: Whether there is nothing further on, of this job or of all.
        found: How many were named by the cancellation.
        done: How many of these are ended, or asked to stop.
        failed: How many of these could not be.
        not_before: When the walk begins, by the monotonic clock.
    """

    asking: bool = False
    job_id: UUID = _NOWHERE
    scheduled_at: datetime = _LONG_AGO
    run_id: UUID = _NOWHERE
    over: bool = False
    found: int = 0
    done: int = 0
    failed: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Cancelled:
    """What one step has done.

    Args:
        ended: Runs that ended.
        asked: Running attempts that were asked to stop: their executors are to be woken.
        more: Whether there is more to do at once.
        failed: Runs that cannot be ended; what is wrong with them has been logged.
    """

    ended: int = 0
    asked: int = 0
    more: bool = False
    failed: int = 0


class Cancelling:
    """Serves the cancellations that are not finished in turn."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._places: dict[int, _Place] = {}
        self._last = 0
        self._next_look = 0.0

    def step(self) -> Cancelled:
        """End up to a thousand runs of the next cancellation.

        Raises:
            Unavailable: The database does not answer.
        """
        if monotonic_seconds() < self._next_look:
            return Cancelled()
        done = Cancelled()
        for cancellation in self._open():
            if monotonic_seconds() < self._places[cancellation.id].not_before:
                continue
            done = self._go_on(cancellation)
            self._last = cancellation.id
            if done.more:
                break
        self._next_look = 0.0 if done.more else monotonic_seconds() + _LOOK_SECONDS
        return done

    def _open(self) -> list[Cancellation]:
        """Those that are not finished, from the one after the last that was served."""
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(Cancellation), binary=True) as cursor,
        ):
            found = cursor.execute(_FIND_CANCELLATIONS).fetchall()
        self._places = {one.id: self._places.get(one.id) or _Place(asking=one.include_started) for one in found}
        return sorted(found, key=lambda one: (one.id <= self._last, one.id))

    def _go_on(self, cancellation: Cancellation) -> Cancelled:
        place = self._places[cancellation.id]
        rows = self._find(cancellation, place)
        if rows is None:
            return self._turn_back(cancellation, place)
        named = [row for row in rows if row.named]
        done = self._end_patiently(cancellation, named)
        place.found += len(named)
        place.done += done.ended + done.asked
        place.failed += done.failed
        place.over = len(rows) < _MOST and not (rows and rows[-1].further)
        if rows:
            place.run_id, place.scheduled_at = rows[-1].run_id, rows[-1].scheduled_at
        done.more = True
        return done

    def _turn_back(self, cancellation: Cancellation, place: _Place) -> Cancelled:
        """At the end of a walk: another one, unless this one has found nothing."""
        if place.found == 0 and not place.asking:
            with self._session.transaction() as connection:
                connection.execute(_FINISH_CANCELLATION, {"id": cancellation.id})
                connection.execute(_FORGET_CANCELLED_JOBS, {"id": cancellation.id})
            _LOG.info("cancellation %d is finished", cancellation.id)
        # It stays open, for claims must go on to refuse it; but a fault that was there a moment ago is there still.
        stuck = place.failed and not place.done and not place.asking
        wait = _AFTER_FAILURE_SECONDS if stuck else 0.0
        self._places[cancellation.id] = _Place(not_before=monotonic_seconds() + wait)
        # Found, but in somebody's hands, all of them: those are given a moment.
        return Cancelled(more=place.done > 0 or place.asking)

    def _find(self, cancellation: Cancellation, place: _Place) -> list[Found] | None:
        """What the walk comes to next; None at its end."""
        columns: dict[str, object] = {
            "id": cancellation.id, "tenant": cancellation.tenant, "job_id": cancellation.job_id,
            "queue": cancellation.queue, "lane": cancellation.lane, "handler": cancellation.handler,
            "cause": cancellation.cause, "created_before": cancellation.created_before,
            "include_started": cancellation.include_started,
            "states": sorted(_TO_ASK) if place.asking else _STATES, "most": _MOST, "looked_at": _LOOKED_AT,
        }  # fmt: skip
        with self._session.transaction() as connection:
            if cancellation.by_labels:
                job = self._job(connection, place, columns)
                if job is None:
                    return None
                columns["job_id"] = job
            elif place.over:
                return None
            columns |= {"after_id": place.run_id, "after_at": place.scheduled_at}
            find = _FIND_CANCELLED if columns["job_id"] is None else _FIND_CANCELLED_OF_JOB
            with connection.cursor(row_factory=class_row(Found), binary=True) as cursor:
                return cursor.execute(find, columns).fetchall()

    def _job(self, connection: Conn, place: _Place, columns: Mapping[str, object]) -> UUID | None:
        """The job that a walk by labels is at, or comes to."""
        if place.job_id != _NOWHERE and not place.over:
            return place.job_id
        row = connection.execute(_NEXT_CANCELLED_JOB, {**columns, "after": place.job_id}, binary=True).fetchone()
        if row is None:
            return None
        place.job_id, place.scheduled_at, place.run_id, place.over = cast("UUID", row[0]), _LONG_AGO, _NOWHERE, False
        return place.job_id

    def _end_patiently(self, cancellation: Cancellation, rows: Sequence[Found]) -> Cancelled:
        try:
            return self._end(cancellation, rows)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one by one tells which it is, and the others must not wait for it
            if len(rows) == 1:
                _LOG.exception("a run that is to be cancelled stays open", extra={"run_id": str(rows[0].run_id)})
                return Cancelled(failed=1)
            _LOG.warning("cancelling %d runs failed (%s); taking them one by one", len(rows), error)
            each = [self._end_patiently(cancellation, [row]) for row in rows]
            ended, asked = sum(one.ended for one in each), sum(one.asked for one in each)
            return Cancelled(ended, asked, failed=sum(one.failed for one in each))

    def _end(self, cancellation: Cancellation, rows: Sequence[Found]) -> Cancelled:
        if not rows:
            return Cancelled()
        with self._session.transaction() as connection:
            # First, for with turns in hand nothing else is waited for: another scheduler may be at it.
            if connection.execute(_LOCK_CANCELLATION, {"id": cancellation.id}).fetchone() is None:
                return Cancelled()
            chained = {row.job_id for row in rows if row.cause == Cause.TIMER}
            connection.execute(_LOCK_CANCELLED_CHAINS, {"job_ids": uuids(chained)})
            ends = [
                RunEnd(row.run_id, row.attempt, RunState.CANCELLED, row.executor_id, reason=cancellation.reason)
                for row in rows
                if RunState(row.state) not in _TO_ASK
            ]
            ended = finish_runs(connection, self._installation, ends)
            asked = _ask(connection, [row.run_id for row in rows if RunState(row.state) in _TO_ASK])
            done = Cancelled(len(ended.states), len(asked))
            connection.execute(_COUNT_CANCELLED, {"id": cancellation.id, "more": done.ended + done.asked})
        return done


def _ask(connection: Conn, run_ids: Sequence[UUID]) -> set[UUID]:
    if not run_ids:
        return set()
    columns: dict[str, object] = {"run_ids": uuids(run_ids), "states": sources(Move.REQUEST_CANCEL)}
    rows = connection.execute(_LOCK_CANCELLED, columns, binary=True).fetchall()
    return request_cancel(connection, [cast("UUID", run) for (run,) in rows])
