"""Requests that come with a task token: what an attempt says from outside.

The token is all the right it takes, whoever sends it. The runs are locked before anything is decided, in run_id order;
an attempt that is over, or was never, changes nothing: its request is rejected with `attempt_over`. A run that somebody
has in hand for longer than a moment: a heartbeat that came by Kafka is rejected with `busy`, for another one follows
it; anything else has to be tried again, for an end that is told must not be lost.

`run.complete`: an attempt's end, told from outside by who has its task token.

It counts while the run waits, and before that too: a target may be done before its executor has written that it waits.
What is being cancelled can only become cancelled.

`run.heartbeat`: an attempt goes on, told from outside by who has its task token.

While the run waits, this moves the instant at which its heartbeat is missed; what it says of itself is kept in any
case. The answer holds the state the run was found in: `cancelling` means that it was asked to stop.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import FieldError, InvalidInput, RunBusy, StaleToken
from tidewheel.ids import RunId
from tidewheel.intake.lock_wait import RowLocked, still_open, try_lock_runs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import RunComplete, RunHeartbeat
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome, Move, RunState, target
from tidewheel.schemas.generated.records import JobDefinition, Reply
from tidewheel.task_tokens import read_task_token
from tidewheel.transitions.attempts import REPORTING, ProgressReport, save_progress
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.retry import Failure, next_attempt
from tidewheel.transitions.run_messages import Definitions, read_definitions

_SQL = Statements("tidewheel.intake")
_LOCK_ATTEMPTS = _SQL["lock_attempts"]
_READ_ENDED = _SQL["read_ended"]

_DEFINITIONS = Definitions(4 * 1024 * 1024)  # of jobs whose ends are told from outside: few


@dataclass(frozen=True, slots=True)
class Held:
    """An open run's row, locked."""

    run_id: UUID
    job_id: UUID
    job_version: int
    state: str
    attempt: int
    failed_attempts: int
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class Shown:
    """A request whose token is that of an attempt under way."""

    received: ReceivedRequest
    held: Held


Act = Callable[[Conn, Installation, Sequence[Shown]], list[Reply]]


def answer_by_token(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], act: Act
) -> list[Reply]:
    """Answer requests that come with a token, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Holds the key that tokens are checked with.
        batch: The requests, of one kind.
        act: Answers those whose attempt is under way, at most one of a run at a time, in their order.

    Raises:
        RowLocked: Somebody has one of the runs in hand: roll back and try again.
    """
    replies: dict[int, Reply] = {}
    left: list[tuple[int, RunId, int]] = []
    busy: dict[UUID, str] = {}
    for place, received in enumerate(batch):
        named = read_task_token(installation.task_token_key, _token(received))
        if named is None:
            replies[place] = rejected(received, _forged())
        else:
            left.append((place, *named))
    while left:
        first: dict[RunId, tuple[int, int]] = {}
        later: list[tuple[int, RunId, int]] = []
        for place, run_id, attempt in left:
            if run_id in first:
                later.append((place, run_id, attempt))
            else:
                first[run_id] = place, attempt
        locked, kept = _lock_patiently(connection, [run_id for run_id in first if run_id not in busy])
        busy |= kept
        _refuse_to_lose(batch[place] for run_id, (place, _) in first.items() if run_id in busy)
        ended = _read_ended(connection, [run_id for run_id in first if run_id not in locked and run_id not in busy])
        shown: dict[int, Shown] = {}
        for run_id, (place, attempt) in first.items():
            held = locked.get(run_id)
            if run_id in busy:
                replies[place] = _busy(batch[place], run_id, busy[run_id])
            elif held is not None and held.attempt == attempt and held.state in REPORTING:
                shown[place] = Shown(batch[place], held)
            else:
                replies[place] = _over(batch[place], run_id, attempt, held.state if held else ended.get(run_id))
        replies |= zip(shown, act(connection, installation, list(shown.values())) if shown else (), strict=True)
        left = later
    return [replies[place] for place in range(len(batch))]


def definitions_of(connection: Conn, attempts: Sequence[Shown]) -> dict[UUID, JobDefinition]:
    """The definitions that these attempts were made from, by run."""
    versions = {each.held.run_id: (each.held.job_id, each.held.job_version) for each in attempts}
    stored = read_definitions(connection, list(versions.values()))
    return {run_id: _DEFINITIONS.of(stored[version]) for run_id, version in versions.items()}


def _token(received: ReceivedRequest) -> str:
    request = received.request
    assert isinstance(request, RunComplete | RunHeartbeat)  # noqa: S101 - by accept's table
    return request.token


def _lock_patiently(connection: Conn, run_ids: Sequence[UUID]) -> tuple[dict[UUID, Held], dict[UUID, str]]:
    """Lock those that are open; also returns the states of those that somebody has in hand, a moment later still."""
    locked = _lock(connection, run_ids)
    busy = still_open(connection, [run_id for run_id in run_ids if run_id not in locked])
    if busy:
        try_lock_runs(connection, busy)
        locked |= _lock(connection, list(busy))
        busy = still_open(connection, [run_id for run_id in busy if run_id not in locked])
    return locked, busy


def _refuse_to_lose(busy: Iterable[ReceivedRequest]) -> None:
    # Who asks directly is told to ask again; of Kafka's messages only heartbeats can be done without.
    needed = [each for each in busy if each.origin is None or isinstance(each.request, RunComplete)]
    if needed:
        what = "the run"
        raise RowLocked(what, needed)


def _lock(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, Held]:
    with connection.cursor(row_factory=class_row(Held), binary=True) as cursor:
        return {row.run_id: row for row in cursor.execute(_LOCK_ATTEMPTS, {"run_ids": uuids(run_ids)})}


def _read_ended(connection: Conn, run_ids: Sequence[RunId]) -> dict[UUID, str]:
    if not run_ids:
        return {}
    rows = connection.execute(_READ_ENDED, {"run_ids": uuids(run_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, str]]", rows))


def _forged() -> InvalidInput:
    problem = "it is no task token of this installation"
    return InvalidInput([FieldError("token", problem, "send back the token that came with the attempt, unchanged")])


def _busy(received: ReceivedRequest, run_id: RunId, state: str) -> Reply:
    return replace(rejected(received, RunBusy(str(run_id))), run_id=str(run_id), run_status=RunState(state).value)


def _over(received: ReceivedRequest, run_id: RunId, attempt: int, state: str | None) -> Reply:
    """The answer about an attempt that is over; `state` is its run's, None where nothing is kept of that any more."""
    reply = rejected(received, StaleToken(str(run_id), state, attempt))
    return replace(reply, run_id=str(run_id), run_status=RunState(state).value if state else None)


_UNNAMED = "ReportedFailure"  # the error type of a failure that names none


def apply_completes(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """End attempts, in the caller's transaction; an answer for each request, in their order."""
    return answer_by_token(connection, installation, batch, _complete)


def _complete(connection: Conn, installation: Installation, attempts: Sequence[Shown]) -> list[Reply]:
    delays = _delays(connection, attempts)
    retried = [each for each in attempts if each.held.run_id in delays]
    ends = [_end(each) for each in attempts if each.held.run_id not in delays]
    # The rows are locked and their fences were read under the lock: all of them end, or go back.
    states = finish_runs(connection, installation, ends).states
    requeue_runs(connection, installation, [_requeue(each, delays[each.held.run_id]) for each in retried])
    states |= {each.held.run_id: target(Move.RETRY) for each in retried}
    return [_accepted(each, states[each.held.run_id]) for each in attempts]


def _delays(connection: Conn, attempts: Sequence[Shown]) -> dict[UUID, timedelta]:
    """How long to wait for the next attempt, of the runs that have one."""
    failed = [each for each in attempts if _request(each).status == "failed" and each.held.state != RunState.CANCELLING]
    if not failed:
        return {}
    definitions = definitions_of(connection, failed)
    delays: dict[UUID, timedelta] = {}
    for each in failed:
        held = each.held
        failure = Failure(_error_type(each), permanent=_request(each).permanent)
        definition = definitions[held.run_id]
        delay = next_attempt(
            definition, failure, run_id=held.run_id, attempt=held.attempt, failed_attempts=held.failed_attempts
        )
        if delay is not None:
            delays[held.run_id] = delay
    return delays


def _end(each: Shown) -> RunEnd:
    request, held = _request(each), each.held
    failed = request.status == "failed"
    return RunEnd(
        run_id=held.run_id,
        attempt=held.attempt,
        state=RunState.FAILED if failed else RunState.SUCCEEDED,
        executor_id=held.executor_id,
        error_type=_error_type(each) if failed else None,
        error_message=request.error_message,
        result=request.result,
    )


def _requeue(each: Shown, delay: timedelta) -> Requeue:
    return Requeue(
        run_id=each.held.run_id,
        attempt=each.held.attempt,
        executor_id=each.held.executor_id,
        outcome=AttemptOutcome.FAILED,
        delay=delay,
        error_type=_error_type(each),
        error_message=_request(each).error_message,
    )


def _accepted(each: Shown, state: RunState) -> Reply:
    held = each.held
    return accepted(
        each.received,
        job_id=str(held.job_id),
        job_version=held.job_version,
        run_id=str(held.run_id),
        run_status=state.value,
    )


def _error_type(each: Shown) -> str:
    return _request(each).error_type or _UNNAMED


def _request(each: Shown) -> RunComplete:
    request = each.received.request
    assert isinstance(request, RunComplete)  # noqa: S101 - by accept's table
    return request


_EXTEND_DEADLINES = Statements("tidewheel.intake")["extend_deadlines"]


def apply_heartbeats(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Note that attempts go on, in the caller's transaction; an answer for each request, in their order."""
    return answer_by_token(connection, installation, batch, _beat)


def _beat(connection: Conn, installation: Installation, attempts: Sequence[Shown]) -> list[Reply]:
    del installation
    save_progress(connection, [_told(each) for each in attempts])
    _put_off(connection, [each for each in attempts if each.held.state == RunState.WAITING])
    return [_accepted_heartbeat(each) for each in attempts]


def _put_off(connection: Conn, waiting: Sequence[Shown]) -> None:
    if not waiting:
        return
    definitions = definitions_of(connection, waiting)
    spans = {
        run_id: timedelta(milliseconds=definition.heartbeat_ms)
        for run_id, definition in definitions.items()
        if definition.heartbeat_ms is not None
    }
    if spans:
        columns: dict[str, object] = {"run_ids": uuids(spans), "heartbeats": list(spans.values())}
        connection.execute(_EXTEND_DEADLINES, columns)


def _told(each: Shown) -> ProgressReport:
    request = each.received.request
    assert isinstance(request, RunHeartbeat)  # noqa: S101 - by accept's table
    return ProgressReport(each.held.run_id, each.held.attempt, progress=request.progress, checkpoint=request.checkpoint)


def _accepted_heartbeat(each: Shown) -> Reply:
    held = each.held
    return accepted(
        each.received,
        job_id=str(held.job_id),
        job_version=held.job_version,
        run_id=str(held.run_id),
        run_status=RunState(held.state).value,
    )
