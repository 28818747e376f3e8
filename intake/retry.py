"""`run.retry`: create a new run of an ended one, or make the next attempt of a retrying one due now.

The old run keeps its state. The new run has its payload under the job's current version. It names the old one as its
parent, and the root of the retry chain. If the old run is a dead letter, the same transaction stores the new run's id
in it.

Only a request that names the next attempt concerns a retrying run. So a repeat of it, or one that comes after the run
has gone on, changes nothing: it neither creates a run nor starts a later attempt.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownRun
from tidewheel.intake.lock_wait import RowLocked, try_lock_runs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import RunRetry
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.manual_retry import RetryRequest, retry_runs
from tidewheel.transitions.moves import hasten_run

_SQL = Statements("tidewheel.intake")
_READ_RUN = _SQL["read_run"]


def apply_retries(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Retry runs in the caller's transaction; return a reply for each request, in their order.

    Raises:
        RowLocked: Another transaction has held a retrying run for longer than 200 ms: roll back and try again.
    """
    # First those that may wait for a row: the others lock keys, and with a key locked no statement waits.
    replies = [_hasten(connection, installation, each, _of(each).attempt) for each in batch]
    ended = [received for received in batch if _of(received).attempt is None]
    done = iter(retry_runs(connection, installation, list(map(_request, ended))))
    return [reply or _reply(received, next(done)) for received, reply in zip(batch, replies, strict=True)]


def _of(received: ReceivedRequest) -> RunRetry:
    assert isinstance(received.request, RunRetry)  # noqa: S101 - by the table of `apply`
    return received.request


def _request(received: ReceivedRequest) -> RetryRequest:
    request = _of(received)
    return RetryRequest(
        tenant=received.tenant,
        run_id=UUID(request.run_id),
        seed=received.seed(),
        delay=request.delay,
        traceparent=received.traceparent,
        request_id=request.request_id,
        requested_from=received.requested_from,
    )


def _reply(received: ReceivedRequest, done: NewRun | Refused) -> Reply:
    if isinstance(done, Refused):
        return rejected(received, done)
    return accepted(received, job_id=str(done.job_id), job_version=done.job_version, run_id=str(done.run_id))


def _hasten(
    connection: Conn, installation: Installation, received: ReceivedRequest, attempt: int | None
) -> Reply | None:
    """Make the next attempt of a retrying run due now; the reply has the state that was found.

    Returns None for a request that names no attempt.
    """
    if attempt is None:
        return None
    run_id = UUID(_of(received).run_id)
    columns: dict[str, object] = {"run_id": run_id, "tenant": received.tenant}
    found = connection.execute(_READ_RUN, columns, binary=True).fetchone()
    if found is not None and found[2] in OPEN:
        if not try_lock_runs(connection, [run_id]):
            what = f"run {run_id}"
            raise RowLocked(what, [received])
        found = connection.execute(_READ_RUN, columns, binary=True).fetchone()  # as a claim or an end has left it
    if found is None:
        return rejected(received, UnknownRun(str(run_id)))
    job_id, version, state, begun = cast("tuple[UUID, int, str, int]", found)
    if state in OPEN and attempt > begun:
        if state != RunState.RETRYING:
            remedy = "only the next attempt of a retrying run can be made due"
            return rejected(received, InvalidInput([FieldError("run_id", f"run {run_id} is {state}", remedy)]))
        if attempt > begun + 1:
            problem, remedy = f"the next attempt of run {run_id} is {begun + 1}", f"send {begun + 1}"
            return rejected(received, InvalidInput([FieldError("attempt", problem, remedy)]))
    due = state == RunState.RETRYING and hasten_run(connection, installation, run_id, attempt)
    about = {"job_id": str(job_id), "job_version": version, "run_id": str(run_id)}
    return accepted(received, **about, run_status=state, unchanged=not due)
