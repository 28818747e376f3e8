"""`run.cancel`: works in every state, is idempotent, and answers with the state it found.

What does not run ends at once; a running attempt is told to stop and can only become cancelled from then on. A run that
somebody has in hand for longer than a moment, as a user's own transaction may, is cancelled by the scheduler as soon as
it is let go of, unless it is over then: the wish is written down.

`runs.cancel`: one row that every claim consults, so that it holds at once however many runs it names.

It is written under the lock `claims`: a batch of claims comes wholly before it, or sees it. The scheduler ends the
runs, some at a time (scheduler/bulk_cancel.py); what is made after it was accepted is not concerned.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.errors import Refused, UnknownJob, UnknownRun, refuse
from tidewheel.intake.lock_wait import still_open, try_lock_runs
from tidewheel.intake.locks import job_id_of, read_now
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import RunCancel, RunsCancel
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, Move, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.cancel_signals import request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_LOCK_RUN = _SQL["lock_run"]
_READ_RUN = _SQL["read_run"]
_WANT_CANCEL = _SQL["want_cancel"]

_REQUESTED = "requested"  # the default reason


def apply_cancels(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Cancel runs, in the caller's transaction; an answer for each request, in their order."""
    cancels = _Cancels(connection, installation)
    return [cancels.apply(received) for received in batch]


class _Cancels:
    """The cancels of one batch; where one has waited in vain, the others do not wait."""

    def __init__(self, connection: Conn, installation: Installation) -> None:
        self._connection, self._installation = connection, installation
        self._patient = True

    def apply(self, received: ReceivedRequest) -> Reply:
        request = received.request
        assert isinstance(request, RunCancel)  # noqa: S101 - by accept's table
        columns: dict[str, object] = {"run_id": UUID(request.run_id), "tenant": received.tenant}
        known = self._connection.execute(_READ_RUN, columns, binary=True).fetchone()
        if known is None:
            return rejected(received, UnknownRun(request.run_id))
        job_id, version, final = known
        # The open row tells; without one the run is over, and job_runs has been told while we waited for the lock.
        state = self._cancel(columns, request.reason or _REQUESTED)
        if state is None:
            again = self._connection.execute(_READ_RUN, columns, binary=True).fetchone()
            state = RunState(str(again[2] if again else final))
        return accepted(
            received, job_id=str(job_id), job_version=version, run_id=request.run_id, run_status=state.value
        )

    def _cancel(self, columns: dict[str, object], reason: str) -> RunState | None:
        """Cancel a run, or have it cancelled; returns the state it was found in, None where it is over."""
        run_id = cast("UUID", columns["run_id"])
        found = self._connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
        if found is None and still_open(self._connection, [run_id]):
            self._patient = self._patient and try_lock_runs(self._connection, [run_id])
            found = self._connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
        if found is None:
            return self._want(columns, reason)
        state = RunState(str(found[0]))
        attempt, executor_id = cast("tuple[int, UUID | None]", found[1:])
        if state in MOVES[Move.REQUEST_CANCEL].sources:
            request_cancel(self._connection, [run_id])
        elif state is not RunState.CANCELLING:
            end = RunEnd(run_id, attempt, RunState.CANCELLED, executor_id, reason=reason)
            finish_runs(self._connection, self._installation, [end])
        return state

    def _want(self, columns: dict[str, object], reason: str) -> RunState | None:
        """Write down that a run is to be cancelled that is in somebody's hands; not where it is over."""
        run_id = cast("UUID", columns["run_id"])
        left = still_open(self._connection, [run_id]).get(run_id)
        if left is None:
            return None
        self._connection.execute(_WANT_CANCEL, {**columns, "reason": reason})
        return RunState(left)


_READ_JOB_KEY = _SQL["read_job_key"]
_RESET_PLAN_MODE = _SQL["reset_plan_mode"]
_FIND_LABELLED_JOBS = _SQL["find_labelled_jobs"]
_NUMBER_CANCELLATION = _SQL["number_cancellation"]
_ADD_CANCELLED_JOBS = _SQL["add_cancelled_jobs"]
_HOLD_CLAIMS = _SQL["hold_claims"]
_ADD_CANCELLATION = _SQL["add_cancellation"]

MOST_JOBS = 10_000  # of one cancellation by labels: they are written down one by one, in a few hundredths of a second


def apply_cancel_filters(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Write cancellations, in the caller's transaction; an answer for each request, in their order."""
    del installation
    return [_apply(connection, received) for received in batch]


def hold_claims(connection: Conn) -> None:
    """Let no claim be under way between now and the end of the caller's transaction."""
    connection.execute(_HOLD_CLAIMS)


def _apply(connection: Conn, received: ReceivedRequest) -> Reply:
    request = received.request
    assert isinstance(request, RunsCancel)  # noqa: S101 - by accept's table
    try:
        job = _job(connection, received, request)
        labelled = _labelled(connection, received.tenant, request)
        created_before = _created_before(request, read_now(connection))
    except Refused as refused:
        return rejected(received, refused)
    number = _number(connection)
    if labelled:
        columns: dict[str, object] = {"id": number, "tenant": received.tenant, "job_ids": labelled}
        connection.execute(_ADD_CANCELLED_JOBS, columns)
    # As late as can be: nobody claims anything from here to the commit.
    hold_claims(connection)
    columns = {
        "id": number,
        "tenant": received.tenant,
        "job_id": job,
        "labels": Jsonb(request.labels) if request.labels else None,
        "queue": request.queue,
        "lane": request.lane,
        "handler": request.handler,
        "cause": request.cause,
        "created_before": created_before or read_now(connection),
        "include_started": request.include_started,
        "reason": request.reason,
    }
    connection.execute(_ADD_CANCELLATION, columns)
    return accepted(received, job_id=str(job) if job else None, cancellation_id=number)


def _job(connection: Conn, received: ReceivedRequest, request: RunsCancel) -> UUID | None:
    if request.key is None:
        return None
    job = job_id_of(received)
    # Also a deleted one: its runs that had begun go on.
    if connection.execute(_READ_JOB_KEY, {"job_id": job}).fetchone() is None:
        raise UnknownJob(received.tenant, request.key)
    return job


def _labelled(connection: Conn, tenant: str, request: RunsCancel) -> list[UUID]:
    if not request.labels:
        return []
    columns = {"tenant": tenant, "labels": Jsonb(request.labels), "most": MOST_JOBS + 1}
    # No index leads to labels. By `BY_KEY`, with which intake plans, a tenant's jobs would be fetched one by one in the
    # order of their keys: with ten million of them that is no answer within the limit on a statement.
    with connection.transaction(force_rollback=True):  # a savepoint: what follows is planned as before
        connection.execute(_RESET_PLAN_MODE)
        found = connection.execute(_FIND_LABELLED_JOBS, columns, binary=True).fetchall()
    if not found:
        refuse("labels", "no job has all of these labels", "correct them: `tidewheel job list --label …`")
    if len(found) > MOST_JOBS:
        problem = f"more than {MOST_JOBS} jobs have these labels"
        refuse("labels", problem, "name a further label, or cancel by queue, lane or handler")
    return [cast("UUID", job) for (job,) in found]


def _created_before(request: RunsCancel, now: datetime) -> datetime | None:
    if request.created_before is not None and request.created_before > now:
        problem = f"{format_timestamp(request.created_before)} is still to come: it is {format_timestamp(now)}"
        refuse("created_before", problem, "leave it out: all that is made until the request is applied")
    return request.created_before


def _number(connection: Conn) -> int:
    row = connection.execute(_NUMBER_CANCELLATION, binary=True).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return cast("int", row[0])
