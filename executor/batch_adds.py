"""Add runs to the batch of a running attempt, for `ctx.batch.add`.

The executor writes the runs itself, so that they are there before the handler goes on. The transaction locks the jobs,
the occurrence of the batch and then the run, whose row must still have the attempt: the attempt of another executor, or
a later one, finds its row changed. The refs make a repeated call harmless: what the batch has is not added again.
"""

from collections.abc import Callable
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.errors import (
    AttemptOver,
    InvalidInput,
    Refused,
    Unavailable,
    UndecodableMessage,
    UnknownBatch,
    refuse,
)
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import too_large
from tidewheel.jobs.requests import BatchAdd
from tidewheel.jobs.strict_json import read_object
from tidewheel.postgres.session import Conn
from tidewheel.postgres.session_pool import SessionPool
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.batch_writer import Origin
from tidewheel.transitions.batches import add_to_batch, lock_batch, named_jobs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.shared_jobs import lock_jobs_for_share

_SQL = Statements("tidewheel.executor")
_FIND_BATCH_OF_RUN = _SQL["find_batch_of_run"]
_LOCK_ATTEMPT = _SQL["lock_attempt"]


class BatchAdds:
    """Adds runs to batches; safe from every thread.

    Args:
        sessions: Several, so that a call which waits for the lock of its batch keeps no other from adding.
        on_added: Called after the commit: the outbox has messages.
    """

    def __init__(
        self, sessions: SessionPool, installation: Installation, executor_id: UUID, on_added: Callable[[], None]
    ) -> None:
        self._sessions, self._installation = sessions, installation
        self._executor_id, self._on_added = executor_id, on_added

    def add(self, run_id: UUID, attempt: int, document: bytes, traceparent: str | None) -> bool:
        """Add the `runs` of a JSON document to a run's batch; return False if it has all of them already."""
        request = parse_added_runs(run_id, document)
        try:
            with self._sessions.transaction() as connection:
                added = self._add(connection, run_id, attempt, request, traceparent)
        except Refused as refused:
            raise InvalidInput(refused.errors) from refused
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        if added:
            self._on_added()
        return added

    def close(self) -> None:
        """Close the sessions."""
        self._sessions.close()

    def _add(self, connection: Conn, run_id: UUID, attempt: int, request: BatchAdd, traceparent: str | None) -> bool:
        row = connection.execute(_FIND_BATCH_OF_RUN, {"run_id": run_id}, binary=True).fetchone()
        if row is None:
            raise _over(run_id, attempt)
        tenant, batch_id, most = cast("tuple[str, UUID | None, int | None]", row)
        if batch_id is None:
            refuse("batch", "the run belongs to no batch", "submit its job by batch.submit")
        if most is not None:
            for place, run in enumerate(request.runs):
                if error := too_large(f"runs.{place}.payload", run.carried, tenant, most):
                    raise error
        request = request.model_copy(update={"batch_id": str(batch_id)})
        jobs = lock_jobs_for_share(connection, named_jobs(tenant, request))
        try:
            lock_batch(connection, tenant, batch_id)
        except UnknownBatch as error:  # retention has deleted it: so the run has ended
            raise _over(run_id, attempt) from error
        fence = {
            "run_id": run_id,
            "attempt": attempt,
            "executor_id": self._executor_id,
            "running": RunState.RUNNING,
        }
        if connection.execute(_LOCK_ATTEMPT, fence).fetchone() is None:
            raise _over(run_id, attempt)
        origin = Origin(traceparent=traceparent)
        return add_to_batch(connection, self._installation, tenant, request, origin=origin, jobs=jobs)


def parse_added_runs(run_id: UUID, document: bytes) -> BatchAdd:
    """Return the request that runs to add are; its batch is not known yet."""
    try:
        given = read_object(document)
    except UndecodableMessage as error:
        refuse("runs", str(error), "add fewer runs by one call")
    about = {"type": "batch.add", "batch_id": str(run_id), "from_run_id": str(run_id)}
    try:
        request = parse_request(given | about)
    except Refused as refused:
        raise InvalidInput(refused.errors) from refused
    assert isinstance(request, BatchAdd)  # noqa: S101 - by its type
    return request


def _over(run_id: UUID, attempt: int) -> AttemptOver:
    return AttemptOver(f"attempt {attempt} of run {run_id} is over; no run was added to its batch")
