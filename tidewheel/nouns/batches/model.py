"""Records of batches: rows of queries, results of the client, JSON of the doors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch as lists show it."""

    batch_id: Annotated[UUID, Field(description="Its id.")]
    state: Annotated[str, Field(description="`open`, `paused`, `cancelling`, `succeeded`, `failed` or `cancelled`.")]
    accepts_runs: Annotated[bool, Field(description="True until it is closed.")]
    generation: Annotated[int, Field(description="0, and one more for each resume.")]
    total: Annotated[int, Field(description="The number of its runs.")]
    pending: Annotated[
        int, Field(description="The number of its runs that have not ended, or whose end is not counted yet.")
    ]
    succeeded: Annotated[int, Field(description="The number of its runs that succeeded.")]
    failed: Annotated[int, Field(description="The number of its runs that failed or timed out, in this generation.")]
    cancelled: Annotated[int, Field(description="The number of its runs that were cancelled, likewise.")]
    first_failed_run_id: Annotated[UUID | None, Field(description="The run that failed first, likewise.")]
    reason: Annotated[str | None, Field(description="The reason of a pause or a cancel.")]
    created_at: Annotated[datetime, Field(description="Its acceptance.")]
    finished_at: Annotated[datetime | None, Field(description="Its end.")]

    @property
    def skipped(self) -> int:
        """The number of its runs that were skipped."""
        return self.total - self.pending - self.succeeded - self.failed - self.cancelled


@dataclass(frozen=True, slots=True)
class NodeParent:
    """A run of the same batch that comes before, with the condition on its end."""

    ref: str
    when: str


@dataclass(frozen=True, slots=True)
class BatchNode:
    """A run of a batch."""

    ref: Annotated[str, Field(description="Its name in the batch.")]
    key: Annotated[str, Field(description="The key of its job.")]
    run_id: Annotated[UUID, Field(description="The run.")]
    state: Annotated[str, Field(description="Its state; `expired` if the run is no longer stored.")]
    parents: Annotated[
        Sequence[NodeParent], Field(description="The runs that end before it starts, of those that are shown.")
    ]
    reason: Annotated[str | None, Field(description="Why it was skipped or cancelled.")] = None
    attempt: Annotated[int, Field(description="The number of its attempts.")] = 0
    started_at: Annotated[datetime | None, Field(description="The start of its last attempt.")] = None
    finished_at: Annotated[datetime | None, Field(description="Its end.")] = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with its runs, in the order of their refs."""

    summary: BatchSummary
    runs: Sequence[BatchNode]


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """A batch that a request has created."""

    batch_id: UUID


@dataclass(frozen=True, slots=True)
class ChangedBatch:
    """A batch after a request."""

    batch_id: UUID
    unchanged: bool
