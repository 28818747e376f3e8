"""Read batches: a page of them, or one with the states of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownBatch
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.occurrences import NodeRun, read_node_runs

_SQL = Statements("tidewheel.control")
_LIST_BATCHES = _SQL["list_batches"]
_SHOW_BATCH = _SQL["show_batch"]
_READ_BATCH_RUNS = _SQL["read_batch_runs"]
_READ_RUN_EDGES = _SQL["read_run_edges"]

MAX_RUNS = 10_000  # of one answer
_MAX_EDGES = 100_000
_LAST = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch as lists show it.

    Args:
        batch_id: Its id.
        state: `open`, `paused`, `cancelling`, `succeeded`, `failed` or `cancelled`.
        accepts_runs: True until it is closed.
        generation: 0, and one more for each resume.
        total: The number of its runs.
        pending: The number of its runs that have not ended, or whose end is not counted yet.
        succeeded: The number of its runs that succeeded.
        failed: The number of its runs that failed or timed out, in this generation.
        cancelled: The number of its runs that were cancelled, likewise.
        first_failed_run_id: The run that failed first, likewise.
        reason: The reason of a pause or a cancel.
        created_at: Its acceptance.
        finished_at: Its end.
    """

    batch_id: UUID
    state: str
    accepts_runs: bool
    generation: int
    total: int
    pending: int
    succeeded: int
    failed: int
    cancelled: int
    first_failed_run_id: UUID | None
    reason: str | None
    created_at: datetime
    finished_at: datetime | None

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
    """A run of a batch.

    Args:
        ref: Its name in the batch.
        key: The key of its job.
        run_id: The run.
        state: Its state; `expired` if the run is no longer stored.
        parents: The runs that end before it starts, of those that are shown.
        reason: Why it was skipped or cancelled.
        attempt: The number of its attempts.
        started_at: The start of its last attempt.
        finished_at: Its end.
    """

    ref: str
    key: str
    run_id: UUID
    state: str
    parents: Sequence[NodeParent]
    reason: str | None = None
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with its runs, in the order of their refs."""

    summary: BatchSummary
    runs: Sequence[BatchNode]


class _Row(NamedTuple):
    ref: str
    run_id: UUID
    key: str


def batches(connection: Conn, tenant: str, *, after: UUID | None = None, limit: int = 100) -> list[BatchSummary]:
    """Return a page of a tenant's batches, the newest first.

    Args:
        after: The last batch of the page before.

    Raises:
        InvalidInput: There is no such tenant.
    """
    require_tenant(connection, tenant)
    columns: dict[str, object] = {"tenant": tenant, "before": after or _LAST, "limit": limit}
    with connection.cursor(row_factory=class_row(BatchSummary), binary=True) as cursor:
        return cursor.execute(_LIST_BATCHES, columns).fetchall()


def batch(connection: Conn, tenant: str, batch_id: UUID, *, limit: int = 1000) -> Batch:
    """Return one batch with its runs.

    Args:
        limit: How many runs at most.

    Raises:
        UnknownBatch: The tenant has no batch of this id.
    """
    columns: dict[str, object] = {"tenant": tenant, "batch_id": batch_id, "limit": min(limit, MAX_RUNS)}
    with connection.cursor(row_factory=class_row(BatchSummary), binary=True) as cursor:
        summary = cursor.execute(_SHOW_BATCH, columns).fetchone()
    if summary is None:
        raise UnknownBatch(str(batch_id))
    with connection.cursor(row_factory=rows_of(_Row._make), binary=True) as cursor:
        rows = cursor.execute(_READ_BATCH_RUNS, columns).fetchall()
    ids = [row.run_id for row in rows]
    found = read_node_runs(connection, ids, batch_id)
    columns = {"batch_id": batch_id, "run_ids": uuids(ids), "limit": _MAX_EDGES}
    edges = connection.execute(_READ_RUN_EDGES, columns, binary=True).fetchall()
    refs = {row.run_id: row.ref for row in rows}
    parents: dict[UUID, list[NodeParent]] = {}
    for parent, child, when in cast("list[tuple[UUID, UUID, str]]", edges):
        parents.setdefault(child, []).append(NodeParent(refs[parent], when))
    for listed in parents.values():
        listed.sort(key=lambda parent: parent.ref)
    return Batch(summary, [_run(row, found.get(row.run_id), parents.get(row.run_id, ())) for row in rows])


def _run(row: _Row, run: NodeRun | None, parents: Sequence[NodeParent]) -> BatchNode:
    if run is None:
        return BatchNode(row.ref, row.key, row.run_id, "expired", parents)
    return BatchNode(
        row.ref, row.key, row.run_id, run.state, parents, run.reason, run.attempt, run.started_at, run.finished_at
    )
