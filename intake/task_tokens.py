"""`run.complete` and `run.heartbeat`: reports about an attempt by its task token.

The token is the only right that a report needs. The runs are locked in run_id order before anything is decided. A
report about an attempt that is over, or that never was, changes nothing and is rejected with `attempt_over`.

A run that another transaction holds for longer than 200 ms: a heartbeat from Kafka is rejected with `busy`, since the
next one follows. Every other report has to be tried again, since an end must not be lost.

An end counts while the run waits for it. It counts before that too, since a target may be done before its executor has
written that the run waits. A run that is being cancelled can only become cancelled. A heartbeat moves the heartbeat
deadline of a run that waits, and stores its progress in any case. Its reply has the run's state: `cancelling` means
that a stop was requested.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias, cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, RunBusy, StaleToken
from tidewheel.ids import RunId
from tidewheel.intake.locks import RowLocked, still_open, try_lock_runs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import RunComplete, RunHeartbeat
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome, Move, RunState, target
from tidewheel.schemas.generated.records import JobDefinition, Reply
from tidewheel.transitions.attempts import REPORTING, ProgressReport, save_progress
from tidewheel.transitions.finished import Failure, RunEnd, next_attempt
from tidewheel.transitions.messages import DEFINITIONS, read_definitions
from tidewheel.transitions.requeue import Requeue, requeue_runs

_SQL = Statements("tidewheel.intake")

_UNNAMED = "ReportedFailure"  # the error type of a failure without one


@dataclass(frozen=True, slots=True)
class _OpenRun:
    """An open run's row, locked."""

    run_id: UUID
    job_id: UUID
    job_version: int
    state: str
    attempt: int
    failed_attempts: int
    executor_id: UUID | None


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A request about an attempt that is under way, with its run."""

    received: ReceivedRequest
    run: _OpenRun


Act: TypeAlias = Callable[[Writing, Sequence[TokenReport]], list[Reply]]


def apply_completes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """End attempts."""
    return _apply_reports(writing, batch, _complete)


def apply_heartbeats(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Record heartbeats."""
    return _apply_reports(writing, batch, _heartbeat)


def _apply_reports(writing: Writing, batch: Sequence[ReceivedRequest], act: Act) -> list[Reply]:
    """Apply reports: `act` those about attempts under way, at most one of a run at a time, in their order."""
    replies: dict[int, Reply] = {}
    pending: list[tuple[int, RunId, int]] = []
    busy: dict[UUID, str] = {}
    for index, received in enumerate(batch):
        request = cast("RunComplete | RunHeartbeat", received.request)
        named = writing.installation.task_tokens.read(request.token)
        if named is None:
            replies[index] = rejected(received, _forged())
        else:
            pending.append((index, *named))
    while pending:
        first: dict[RunId, tuple[int, int]] = {}
        later: list[tuple[int, RunId, int]] = []
        for index, run_id, attempt in pending:
            if run_id in first:
                later.append((index, run_id, attempt))
            else:
                first[run_id] = index, attempt
        locked, newly_busy = _lock_with_wait(writing, [run_id for run_id in first if run_id not in busy])
        busy |= newly_busy
        _ensure_none_is_lost(batch[index] for run_id, (index, _) in first.items() if run_id in busy)
        ended = _read_ended(writing, [run_id for run_id in first if run_id not in locked and run_id not in busy])
        reports: dict[int, TokenReport] = {}
        for run_id, (index, attempt) in first.items():
            run = locked.get(run_id)
            if run_id in busy:
                replies[index] = _busy(batch[index], run_id, busy[run_id])
            elif run is not None and run.attempt == attempt and run.state in REPORTING:
                reports[index] = TokenReport(batch[index], run)
            else:
                replies[index] = _over(batch[index], run_id, attempt, run.state if run else ended.get(run_id))
        replies |= zip(reports, act(writing, list(reports.values())) if reports else (), strict=True)
        pending = later
    return [replies[index] for index in range(len(batch))]


def _definitions_of(writing: Writing, reports: Sequence[TokenReport]) -> dict[UUID, JobDefinition]:
    versions = {each.run.run_id: (each.run.job_id, each.run.job_version) for each in reports}
    stored = read_definitions(writing.connection, list(versions.values()))
    return {run_id: DEFINITIONS.of(stored[version]) for run_id, version in versions.items()}


def _lock_with_wait(writing: Writing, run_ids: Sequence[UUID]) -> tuple[dict[UUID, _OpenRun], dict[UUID, str]]:
    """Lock the open runs; also return the states of those still locked after 200 ms."""
    locked = _lock(writing, run_ids)
    busy = still_open(writing.connection, [run_id for run_id in run_ids if run_id not in locked])
    if busy:
        try_lock_runs(writing.connection, busy)
        locked |= _lock(writing, list(busy))
        busy = still_open(writing.connection, [run_id for run_id in busy if run_id not in locked])
    return locked, busy


def _ensure_none_is_lost(busy: Iterable[ReceivedRequest]) -> None:
    # A direct caller gets the error and tries again. From Kafka only a heartbeat may be dropped: the next one follows.
    needed = [each for each in busy if each.origin is None or isinstance(each.request, RunComplete)]
    if needed:
        what = "the run"
        raise RowLocked(what, needed)


def _lock(writing: Writing, run_ids: Sequence[UUID]) -> dict[UUID, _OpenRun]:
    return {row.run_id: row for row in writing.read_as(_OpenRun, _SQL["lock_attempts"], run_ids=uuids(run_ids))}


def _read_ended(writing: Writing, run_ids: Sequence[RunId]) -> dict[UUID, str]:
    rows = writing.read(_SQL["read_final_states"], run_ids=uuids(run_ids)) if run_ids else []
    return dict(cast("list[tuple[UUID, str]]", rows))


def _forged() -> InvalidInput:
    problem = "is not a task token of this installation"
    return InvalidInput([FieldError("token", problem, "send back the attempt's token unchanged")])


def _busy(received: ReceivedRequest, run_id: RunId, state: str) -> Reply:
    return replace(rejected(received, RunBusy(str(run_id))), run_id=str(run_id), run_status=RunState(state).value)


def _over(received: ReceivedRequest, run_id: RunId, attempt: int, state: str | None) -> Reply:
    """Return the reply about an attempt that is over; `state` is None if the run's row has been dropped."""
    reply = rejected(received, StaleToken(str(run_id), state, attempt))
    return replace(reply, run_id=str(run_id), run_status=RunState(state).value if state else None)


def _complete(writing: Writing, reports: Sequence[TokenReport]) -> list[Reply]:
    delays = _delays(writing, reports)
    retried = [each for each in reports if each.run.run_id in delays]
    # The rows are locked, and their attempts were read under the lock: each of them ends or is requeued.
    states = dict(writing.finish([_end(each) for each in reports if each.run.run_id not in delays]))
    requeues = [_requeue(each, delays[each.run.run_id]) for each in retried]
    requeue_runs(writing.connection, writing.installation, requeues, freed_keys=writing.freed)
    states |= {each.run.run_id: target(Move.RETRY) for each in retried}
    return [_accepted(each, states[each.run.run_id]) for each in reports]


def _delays(writing: Writing, reports: Sequence[TokenReport]) -> dict[UUID, timedelta]:
    failed = [each for each in reports if _request(each).status == "failed" and each.run.state != RunState.CANCELLING]
    if not failed:
        return {}
    definitions = _definitions_of(writing, failed)
    delays: dict[UUID, timedelta] = {}
    for each in failed:
        run = each.run
        failure = Failure(_error_type(each), permanent=_request(each).permanent)
        definition = definitions[run.run_id]
        delay = next_attempt(
            definition, failure, run_id=run.run_id, attempt=run.attempt, failed_attempts=run.failed_attempts
        )
        if delay is not None:
            delays[run.run_id] = delay
    return delays


def _end(each: TokenReport) -> RunEnd:
    request, run = _request(each), each.run
    failed = request.status == "failed"
    return RunEnd(
        run_id=run.run_id,
        attempt=run.attempt,
        state=RunState.FAILED if failed else RunState.SUCCEEDED,
        executor_id=run.executor_id,
        error_type=_error_type(each) if failed else None,
        error_message=request.error_message,
        result=request.result,
        next_in=request.next_in,
    )


def _requeue(each: TokenReport, delay: timedelta) -> Requeue:
    return Requeue(
        run_id=each.run.run_id,
        attempt=each.run.attempt,
        executor_id=each.run.executor_id,
        outcome=AttemptOutcome.FAILED,
        delay=delay,
        error_type=_error_type(each),
        error_message=_request(each).error_message,
    )


def _accepted(each: TokenReport, state: RunState) -> Reply:
    facts = {"job_id": str(each.run.job_id), "job_version": each.run.job_version, "run_id": str(each.run.run_id)}
    return accepted(each.received, **facts, run_status=state.value)


def _error_type(each: TokenReport) -> str:
    return _request(each).error_type or _UNNAMED


def _request(each: TokenReport) -> RunComplete:
    return each.received.of(RunComplete)


def _heartbeat(writing: Writing, reports: Sequence[TokenReport]) -> list[Reply]:
    save_progress(writing.connection, [_progress(each) for each in reports])
    _extend_deadlines(writing, [each for each in reports if each.run.state == RunState.WAITING])
    return [_accepted(each, RunState(each.run.state)) for each in reports]


def _extend_deadlines(writing: Writing, waiting: Sequence[TokenReport]) -> None:
    if not waiting:
        return
    definitions = _definitions_of(writing, waiting)
    spans = {
        run_id: timedelta(milliseconds=definition.heartbeat_ms)
        for run_id, definition in definitions.items()
        if definition.heartbeat_ms is not None
    }
    if spans:
        writing.execute(_SQL["extend_deadlines"], run_ids=uuids(spans), heartbeats=list(spans.values()))


def _progress(each: TokenReport) -> ProgressReport:
    request = each.received.of(RunHeartbeat)
    return ProgressReport(each.run.run_id, each.run.attempt, progress=request.progress, checkpoint=request.checkpoint)
