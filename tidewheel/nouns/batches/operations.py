"""`client.batches`: submit batches of runs, add to them, follow and end them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.jobs.batches import AddedRuns, BatchCallbacks, BatchRuns
from tidewheel.jobs.values import Reason
from tidewheel.nouns.batches.model import Batch, BatchSummary
from tidewheel.nouns.batches.reads import MAX_RUNS, list_batches, show_batch
from tidewheel.nouns.operation import InRequest, Noun, Page, Rows, operation

BATCHES = "/api/v1/batches"
_BATCH = f"{BATCHES}/{{batch_id:uuid}}"

BatchId = Annotated[UUID, BeforeValidator(partial(as_id, name="batch_id"))]
_After = Annotated[UUID, BeforeValidator(partial(as_id, name="after"))]
_FromRun = Annotated[UUID, BeforeValidator(partial(as_id, name="from_run_id"))]
_Shown = Annotated[int, Field(ge=1, le=MAX_RUNS, description="How many of its runs at most.")]
_Given = Sequence[Mapping[str, object]]


class Batches(Noun):
    """Runs that one request writes together, with jobs to trigger at their end."""

    @operation(f"POST {BATCHES}", "submit_batch", scope=Scope.WRITE, starts=BATCHES)
    def submit(
        self,
        runs: Annotated[_Given, InRequest(BatchRuns), Field(description="The runs.")],
        *,
        on: Annotated[
            Mapping[str, object] | None, InRequest(BatchCallbacks | None),
            Field(description="The jobs to trigger at the first failure and at the end."),
        ] = None,
        open: Annotated[
            bool, Field(description="True if `batch.add` may come from anywhere, until `batch.close`.")
        ] = False,
        request_id: str | None = None,
    ) -> UUID:  # fmt: skip
        """Run jobs once each, some after others, and trigger jobs when they end.

        Returns:
            The batch.

        Raises:
            Refused: A run or a callback does not fit; nothing was written.
            Unavailable: The database does not answer. Without a `request_id` the batch may exist.
        """
        document = {"type": "batch.submit", "runs": runs, "on": on, "open": open}
        return UUID(self._call.request(document, request_id).batch_id)

    @operation(f"POST {_BATCH}:add", "add_to_batch", scope=Scope.WRITE)
    def add(
        self,
        batch_id: BatchId,
        runs: Annotated[
            _Given, InRequest(AddedRuns),
            Field(description="The runs; their `after` may name runs that the batch has already."),
        ],
        *,
        from_run_id: Annotated[
            _FromRun | None,
            Field(description="A run of the batch that adds them; needed unless the batch is open."),
        ] = None,
        request_id: str | None = None,
    ) -> bool:  # fmt: skip
        """Add runs to a batch that is open, or from one of its runs.

        Returns:
            False if it has all of them already.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
            Refused: The batch takes no further runs, or one of these does not fit.
        """
        run_id = None if from_run_id is None else str(from_run_id)
        document = {"type": "batch.add", "batch_id": str(batch_id), "from_run_id": run_id, "runs": runs}
        return not self._call.request(document, request_id).unchanged

    @operation(f"POST {_BATCH}:close", "close_batch", scope=Scope.WRITE)
    def close(self, batch_id: BatchId, *, request_id: str | None = None) -> bool:
        """Let an open batch end with its last run.

        Returns:
            False if it is closed already.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        return not self._call.request({"type": "batch.close", "batch_id": str(batch_id)}, request_id).unchanged

    @operation(f"POST {_BATCH}:resume", "resume_batch", scope=Scope.OPERATE)
    def resume(self, batch_id: BatchId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Go on with a paused batch, or run the failed part of an ended one again.

        Returns:
            False if it is open.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
            Refused: Nothing of it failed, it is being cancelled, or its runs are no longer stored.
            Unavailable: The database does not answer. Without a `request_id` the resume may have happened.
        """
        return self._change("workflow.resume", batch_id, reason, request_id)

    @operation(f"POST {_BATCH}:cancel", "cancel_batch", scope=Scope.OPERATE)
    def cancel(self, batch_id: BatchId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Cancel the runs of a batch, and close it.

        Returns:
            False if it has ended.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        return self._change("workflow.cancel", batch_id, reason, request_id)

    @operation(f"GET {_BATCH}", "get_batch", scope=Scope.READ)
    def get(self, batch_id: BatchId, *, limit: _Shown = 1000) -> Batch:
        """Show a batch: its counts, and its runs in the order of their refs.

        Raises:
            UnknownBatch: The tenant has no batch of this id.
        """
        with self._call.snapshot() as connection:
            return show_batch(connection, self._call.tenant, batch_id, limit=limit)

    @operation(f"GET {BATCHES}", "list_batches", scope=Scope.READ)
    def list(self, *, after: _After | None = None, limit: Rows = 100) -> Page[BatchSummary]:
        """List batches, the newest first."""
        with self._call.snapshot() as connection:
            return list_batches(connection, self._call.tenant, after=after, limit=limit)

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
            self._call.sleep(POLL_SECONDS)
        return found

    def _change(self, kind: str, batch_id: UUID, reason: str | None, request_id: str | None) -> bool:
        self.get(batch_id, limit=1)  # not another kind of occurrence
        document = {"type": kind, "run_id": str(batch_id), "reason": reason}
        return not self._call.request(document, request_id).unchanged
