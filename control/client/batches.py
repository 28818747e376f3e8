"""`client.batches`: submit batches of runs, add to them, follow and end them."""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from tidewheel.control.client.arguments import as_id, as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.control.reads.batches import Batch, BatchSummary, batch, batches


class Batches:
    """Runs that one request writes together, with jobs to trigger at their end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(
        self,
        runs: Sequence[Mapping[str, object]],
        *,
        on: Mapping[str, object] | None = None,
        open: bool = False,
        request_id: str | None = None,
    ) -> UUID:
        """Run jobs once each, some after others; return the batch.

        Args:
            runs: Each with `ref`, `key`, and `payload`, `delay` or `after` if needed; at most 10,000.
            on: The jobs to trigger: `succeeded`, `failed` and `finished`, each with `key` and `payload`.
            open: True to keep it open for `add` until `close`.
            request_id: A repeated id is one batch.

        Raises:
            Refused: A run or a callback does not fit; nothing was written.
            Unavailable: The database does not answer. Without a `request_id` the batch may exist.
        """
        document = {"type": "batch.submit", "runs": runs, "on": on, "open": open}
        return UUID(self._connection.request(document, request_id).batch_id)

    def add(
        self,
        batch_id: UUID,
        runs: Sequence[Mapping[str, object]],
        *,
        from_run_id: UUID | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Add runs to a batch; return False if it has all of them already.

        Args:
            runs: As in `submit`; `after` may also name runs that the batch has.
            from_run_id: A run of the batch that is under way; needed unless the batch is open.
            request_id: A repeated id returns the first answer.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
            Refused: The batch takes no further runs, or one of these does not fit.
        """
        batch_id = as_id(batch_id, "batch_id")
        from_run_id = None if from_run_id is None else as_id(from_run_id, "from_run_id")
        run_id = None if from_run_id is None else str(from_run_id)
        document = {"type": "batch.add", "batch_id": str(batch_id), "from_run_id": run_id, "runs": runs}
        return not self._connection.request(document, request_id).unchanged

    def close(self, batch_id: UUID, *, request_id: str | None = None) -> bool:
        """Let an open batch end with its last run; return False if it is closed already.

        Args:
            request_id: A repeated id returns the first answer.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        batch_id = as_id(batch_id, "batch_id")
        document = {"type": "batch.close", "batch_id": str(batch_id)}
        return not self._connection.request(document, request_id).unchanged

    def cancel(self, batch_id: UUID, *, reason: str | None = None) -> bool:
        """Cancel its runs, and close it; return False if it has ended.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        self.get(batch_id, limit=1)
        document = {"type": "workflow.cancel", "run_id": str(batch_id), "reason": reason}
        return not self._connection.request(document).unchanged

    def resume(self, batch_id: UUID, *, request_id: str | None = None) -> bool:
        """Go on after a pause, or run the failed part of an ended batch again; return False if it is open.

        Args:
            request_id: A repeated id is one resume.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
            Refused: Nothing of it failed, it is being cancelled, or its runs are no longer stored.
            Unavailable: The database does not answer. Without a `request_id` the resume may have happened.
        """
        self.get(batch_id, limit=1)
        document = {"type": "workflow.resume", "run_id": str(batch_id)}
        return not self._connection.request(document, request_id).unchanged

    def get(self, batch_id: UUID, *, limit: int = 1000) -> Batch:
        """Return a batch with up to `limit` of its runs.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        batch_id = as_id(batch_id, "batch_id")
        with self._connection.snapshot() as connection:
            return batch(connection, self._connection.tenant, batch_id, limit=as_int(limit, "limit"))

    def list(self, *, after: UUID | None = None, limit: int = 100) -> list[BatchSummary]:
        """Return the batches of the tenant, the newest first; of a further page those after the last one."""
        after = None if after is None else as_id(after, "after")
        with self._connection.snapshot() as connection:
            return batches(connection, self._connection.tenant, after=after, limit=as_int(limit, "limit"))

    def wait(
        self,
        batch_id: UUID,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Batch], None] | None = None,
    ) -> Batch:
        """Wait until a batch has ended; return it.

        Args:
            timeout: The most seconds to wait.
            on_progress: Called with the batch twice a second.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
            TimeoutError: It has not ended in time.
        """
        polling = Polling("batch", batch_id, timeout, on_progress)
        while polling.goes_on(found := self.get(batch_id), found.summary):
            self._connection.sleep(POLL_SECONDS)
        return found
