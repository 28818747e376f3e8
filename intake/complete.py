"""`run.complete`: an attempt's end, told from outside by who has its task token.

It counts while the run waits, and before that too: a target may be done before its executor has written that it waits.
What is being cancelled can only become cancelled.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.intake.by_token import Shown, answer_by_token, definitions_of
from tidewheel.intake.incoming import Incoming, accepted
from tidewheel.jobs.requests import RunComplete
from tidewheel.runs import AttemptOutcome, Move, RunState, target
from tidewheel.schemas.records import Reply
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.requeue import Requeue, requeue_runs
from tidewheel.transitions.retry import Failure, next_attempt

_UNNAMED = "ReportedFailure"  # the error type of a failure that names none


def apply_completes(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """End attempts, in the caller's transaction; an answer for each request, in their order."""
    return answer_by_token(connection, installation, batch, _complete)


def _complete(connection: Conn, installation: Installation, attempts: Sequence[Shown]) -> list[Reply]:
    delays = _delays(connection, attempts)
    retried = [each for each in attempts if each.held.run_id in delays]
    ends = [_end(each) for each in attempts if each.held.run_id not in delays]
    # The rows are locked and their fences were read under the lock: all of them end, or go back.
    states = end_runs(connection, installation, ends).states
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
        delay = next_attempt(definition, failure, run_id=held.run_id, attempt=held.attempt, charged=held.charged)
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
        each.incoming,
        job_id=str(held.job_id),
        job_version=held.job_version,
        run_id=str(held.run_id),
        run_status=state.value,
    )


def _error_type(each: Shown) -> str:
    return _request(each).error_type or _UNNAMED


def _request(each: Shown) -> RunComplete:
    request = each.incoming.request
    assert isinstance(request, RunComplete)  # noqa: S101 - by accept's table
    return request
