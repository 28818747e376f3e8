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
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.manual_retry import RetryRequest, retry_runs
from tidewheel.transitions.moves import hasten_runs

_SQL = Statements("tidewheel.intake")
_READ_RUN = _SQL["read_run"]
_LOCK_RUN = _SQL["lock_run"]


def apply_retries(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Retry runs in the caller's transaction; return a reply for each request, in their order.

    Raises:
        RowLocked: Another transaction has held a retrying run for longer than 200 ms: roll back and try again.
    """
    ended = [received for received in batch if _of(received).attempt is None]
    done = iter(retry_runs(connection, installation, list(map(_request, ended))))
    return [
        _reply(received, next(done))
        if _of(received).attempt is None
        else _hasten(connection, installation, received, _of(received).attempt or 0)
        for received in batch
    ]


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


def _hasten(connection: Conn, installation: Installation, received: ReceivedRequest, attempt: int) -> Reply:
    """Make the next attempt of a retrying run due now; the reply has the state that was found."""
    run_id = UUID(_of(received).run_id)
    columns: dict[str, object] = {"run_id": run_id, "tenant": received.tenant}
    found = connection.execute(_READ_RUN, columns, binary=True).fetchone()
    if found is not None and found[2] == RunState.RETRYING:
        if not try_lock_runs(connection, [run_id]):
            what = f"run {run_id}"
            raise RowLocked(what, [received])
        found = connection.execute(_READ_RUN, columns, binary=True).fetchone()  # as a claim or an end has left it
    if found is None:
        return rejected(received, UnknownRun(str(run_id)))
    job_id, version, state = found
    due = False
    if state == RunState.RETRYING:
        locked = connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
        following = cast("int", locked[1]) + 1 if locked else attempt
        if attempt > following:
            error = FieldError("attempt", f"the next attempt of run {run_id} is {following}", f"send {following}")
            return rejected(received, InvalidInput([error]))
        due = bool(hasten_runs(connection, installation, {run_id: attempt}))
    about = {"job_id": str(job_id), "job_version": version, "run_id": str(run_id)}
    return accepted(received, **about, run_status=str(state), unchanged=not due)
