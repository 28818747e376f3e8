"""Read batches: a page of them, or one with the states of its runs."""

from collections.abc import Sequence
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import UnknownBatch
from tidewheel.nouns.batches.model import Batch, BatchNode, BatchSummary, NodeParent
from tidewheel.nouns.operation import Page
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.occurrences import NodeRun, read_node_runs

_SQL = Statements("tidewheel.nouns.batches")
_LIST_BATCHES = _SQL["list_batches"]
_SHOW_BATCH = _SQL["show_batch"]
_READ_BATCH_RUNS = _SQL["read_batch_runs"]
_READ_RUN_EDGES = _SQL["read_run_edges"]

MAX_RUNS = 10_000  # of one answer
_MAX_EDGES = 100_000
_LAST = UUID(int=(1 << 128) - 1)


class _Row(NamedTuple):
    ref: str
    run_id: UUID
    key: str


def list_batches(connection: Conn, tenant: str, *, after: UUID | None, limit: int) -> Page[BatchSummary]:
    """Return a page of a tenant's batches, the newest first, after the last one of the page before.

    Raises:
        InvalidInput: There is no such tenant.
    """
    require_tenant(connection, tenant)
    columns: dict[str, object] = {"tenant": tenant, "before": after or _LAST, "limit": limit + 1}
    with connection.cursor(row_factory=class_row(BatchSummary), binary=True) as cursor:
        found = cursor.execute(_LIST_BATCHES, columns).fetchall()
    return Page(found[:limit], found[limit - 1].batch_id if len(found) > limit else None)


def show_batch(connection: Conn, tenant: str, batch_id: UUID, *, limit: int) -> Batch:
    """Return one batch with so many of its runs at most.

    Raises:
        UnknownBatch: The tenant has no batch of this id.
    """
    columns: dict[str, object] = {"tenant": tenant, "batch_id": batch_id, "limit": limit}
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
