"""`run.retry`: create a new run from one that has ended, under the job's current version.

The old run keeps its state. The new run has its payload, and names it as its parent, and the root of the retry chain.
If the old run is a dead letter, the same transaction stores the new run's id in it.
"""

from collections.abc import Sequence
from uuid import UUID

from tidewheel.errors import Refused
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import RunRetry
from tidewheel.postgres.session import Conn
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.manual_retry import RetryRequest, retry_runs


def apply_retries(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Retry runs in the caller's transaction; return a reply for each request, in their order."""
    done = retry_runs(connection, installation, list(map(_request, batch)))
    return [_reply(received, result) for received, result in zip(batch, done, strict=True)]


def _request(received: ReceivedRequest) -> RetryRequest:
    request = received.request
    assert isinstance(request, RunRetry)  # noqa: S101 - by the table of `apply`
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
