"""`client.batches`: submit batches of runs, add to them, follow and end them; records and reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import BeforeValidator, Field, GetPydanticSchema, SkipValidation

from tidewheel.api_keys import Scope
from tidewheel.control.reads.outcomes import ErrorLine
from tidewheel.errors import UnknownBatch
from tidewheel.jobs.batches import AddedRuns, BatchCallbacks, BatchRuns
from tidewheel.jobs.strict_json import Json, as_object, read_value
from tidewheel.jobs.values import Reason
from tidewheel.nouns.operation import Noun, Page, Rows, as_id, operation, read_page, reads
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.operations import POLL_SECONDS, Polling
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, list_ids, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause
from tidewheel.transitions.occurrences import NodeRun, read_node_runs

_SQL = Statements("tidewheel.nouns.batches")

MAX_RUNS = 10_000  # of one answer
_MAX_EDGES = 100_000
_LOOKED_AT = 50_000  # runs of a batch, failed or not: as many as a resume reads
_LAST = UUID(int=(1 << 128) - 1)

BATCHES = "/api/v1/batches"
_BATCH = f"{BATCHES}/{{batch_id:uuid}}"

BatchId = Annotated[UUID, BeforeValidator(partial(as_id, name="batch_id"))]
_After = Annotated[UUID, BeforeValidator(partial(as_id, name="after"))]
_FromRun = Annotated[UUID, BeforeValidator(partial(as_id, name="from_run_id"))]
_Shown = Annotated[int, Field(ge=1, le=MAX_RUNS, description="The maximum number of its runs.")]
_Given = Sequence[Mapping[str, object]]
_SUBMITTED: Json = {
    "runs": [{"ref": "load", "key": "nightly"}, {"ref": "report", "key": "nightly", "after": [{"ref": "load"}]}],
    "on": {"finished": {"key": "nightly", "payload": {"order": 7}}},
}
_ADDED: Json = {"runs": [{"ref": "more", "key": "nightly"}]}


def _in_request(kind: Any) -> GetPydanticSchema:  # noqa: ANN401 - a type, as an annotation has it
    """Describe a parameter by a type that its request checks: the schema for doors refuses nothing."""
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(Annotated[kind, SkipValidation]))


class _Row(NamedTuple):
    ref: str
    run_id: UUID
    key: str


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch as lists show it."""

    batch_id: Annotated[UUID, Field(description="Its id.")]
    state: Annotated[str, Field(description="`open`, `paused`, `cancelling`, `succeeded`, `failed` or `cancelled`.")]
    accepts_runs: Annotated[bool, Field(description="True until it is closed.")]
    generation: Annotated[int, Field(description="The number of resumes so far.")]
    total: Annotated[int, Field(description="The number of its runs.")]
    pending: Annotated[
        int, Field(description="The number of its runs that have not ended, or whose end has not been counted yet.")
    ]
    succeeded: Annotated[int, Field(description="The number of its runs that succeeded.")]
    failed: Annotated[int, Field(description="The number of its runs that failed or timed out, in this generation.")]
    cancelled: Annotated[int, Field(description="The number of its runs that were cancelled, in this generation.")]
    first_failed_run_id: Annotated[UUID | None, Field(description="The run that failed first, in this generation.")]
    reason: Annotated[str | None, Field(description="The reason of a pause or a cancel.")]
    created_at: Annotated[datetime, Field(description="Its acceptance.")]
    finished_at: Annotated[datetime | None, Field(description="Its end.")]

    @property
    def skipped(self) -> int:
        """The number of its runs that were skipped."""
        return self.total - self.pending - self.succeeded - self.failed - self.cancelled


def list_batches(
    connection: Conn, tenant: str, *, after: _After | None = None, limit: Rows = 100
) -> Page[BatchSummary]:
    """List batches, newest first."""
    require_tenant(connection, tenant)
    columns = {"tenant": tenant, "before": after or _LAST}
    return read_page(
        connection, class_row(BatchSummary), _SQL["list_batches"], columns, lambda last: last.batch_id, limit=limit
    )


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
        Sequence[NodeParent], Field(description="The runs that must end before it starts, as far as they are shown.")
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


def show_batch(connection: Conn, tenant: str, batch_id: UUID, *, limit: int, after: str = "") -> Batch:
    """Return one batch with so many of its runs at most, behind a ref."""
    columns: dict[str, object] = {"tenant": tenant, "batch_id": batch_id, "limit": limit, "after": after}
    summary = read_row(connection, class_row(BatchSummary), _SQL["show_batch"], columns)
    if summary is None:
        raise UnknownBatch(str(batch_id))
    rows = read_rows(connection, rows_of(_Row._make), _SQL["read_batch_runs"], columns)
    ids = [row.run_id for row in rows]
    found = read_node_runs(connection, ids, batch_id)
    columns = {"batch_id": batch_id, "run_ids": uuids(ids), "limit": _MAX_EDGES}
    edges = connection.execute(_SQL["read_run_edges"], columns, binary=True).fetchall()
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


def with_causes(connection: Conn, runs: Sequence[RunSummary]) -> Sequence[RunSummary]:
    """Return runs with the cause `batch` for those of batches, whose rows have the cause `workflow`."""
    parts = [run.run_id for run in runs if run.cause == Cause.WORKFLOW]
    found = set(list_ids(connection, _SQL["find_runs_of_batches"], {"run_ids": parts}) if parts else ())
    return [replace(run, cause="batch") if run.run_id in found else run for run in runs]


class FailedRun(NamedTuple):
    """A run of a batch that failed, with the first line of its error."""

    ref: str
    run_id: UUID
    key: str
    state: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime
    error: ErrorLine


def list_failed_runs(connection: Conn, batch_id: UUID, *, limit: int, after: str = "") -> list[FailedRun]:
    """Return so many failed runs of a batch at most, in the order of their refs, behind one."""
    columns: dict[str, object] = {"batch_id": batch_id, "after": after, "limit": limit, "look": _LOOKED_AT}
    rows = connection.execute(_SQL["list_failed_runs"], columns, binary=True).fetchall()
    return [FailedRun._make([*row[:-2], ErrorLine._make(row[-2:])]) for row in cast("list[tuple[Any, ...]]", rows)]


def read_callbacks(connection: Conn, batch_id: UUID) -> dict[str, str]:
    """Return the keys of the jobs that a batch triggers, by `failed`, `succeeded` and `finished`."""
    [row] = connection.execute(_SQL["read_batch_callbacks"], {"batch_id": batch_id}, binary=True).fetchall()
    given = as_object(read_value(cast("bytes", row[0]))) or {}
    return {name: str(callback["key"]) for name, each in given.items() if (callback := as_object(each)) is not None}


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """A batch that a request has created."""

    batch_id: UUID


@dataclass(frozen=True, slots=True)
class ChangedBatch:
    """A batch after a request."""

    batch_id: UUID
    unchanged: bool


class Batches(Noun):
    """Runs that one request writes together, with jobs to trigger at their end."""

    @operation(
        f"POST {BATCHES}", "submit_batch", scope=Scope.WRITE, starts=BATCHES, answer=CreatedBatch, sent=_SUBMITTED
    )
    def submit(
        self,
        runs: Annotated[_Given, _in_request(BatchRuns), Field(description="The runs.")],
        *,
        on: Annotated[
            Mapping[str, object] | None, _in_request(BatchCallbacks | None),
            Field(description="The jobs to trigger at the first failure and at the end."),
        ] = None,
        open: Annotated[
            bool, Field(description="True if any client may add runs, until the batch is closed.")
        ] = False,
        request_id: str | None = None,
    ) -> UUID:  # fmt: skip
        """Run jobs once each, with dependencies between them, and trigger jobs when they end."""
        document = {"type": "batch.submit", "runs": runs, "on": on, "open": open}
        return UUID(self._call.request(document, request_id).batch_id)

    @operation(f"POST {_BATCH}:add", "add_to_batch", scope=Scope.WRITE, answer=ChangedBatch, sent=_ADDED)
    def add(
        self,
        batch_id: BatchId,
        runs: Annotated[
            _Given, _in_request(AddedRuns),
            Field(description="The runs; their `after` may name existing runs of the batch."),
        ],
        *,
        from_run_id: Annotated[
            _FromRun | None,
            Field(description="A run of the batch that adds them; required unless the batch is open."),
        ] = None,
        request_id: str | None = None,
    ) -> bool:  # fmt: skip
        """Add runs to an open batch, or to any batch from one of its own runs."""
        run_id = None if from_run_id is None else str(from_run_id)
        document = {"type": "batch.add", "batch_id": str(batch_id), "from_run_id": run_id, "runs": runs}
        return not self._call.request(document, request_id).unchanged

    @operation(f"POST {_BATCH}:close", "close_batch", scope=Scope.WRITE, answer=ChangedBatch)
    def close(self, batch_id: BatchId, *, request_id: str | None = None) -> bool:
        """Close an open batch, so that it ends with its last run."""
        return not self._call.request({"type": "batch.close", "batch_id": str(batch_id)}, request_id).unchanged

    @operation(f"POST {_BATCH}:resume", "resume_batch", scope=Scope.OPERATE, answer=ChangedBatch)
    def resume(self, batch_id: BatchId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Continue a paused batch, or rerun the failed part of an ended one.

        Raises:
            Refused: No part of it failed, it is being cancelled, or its runs are no longer stored.
        """
        return self._change("workflow.resume", batch_id, reason, request_id)

    @operation(
        f"POST {_BATCH}:cancel",
        "cancel_batch",
        scope=Scope.OPERATE,
        answer=ChangedBatch,
        sent={"reason": "maintenance"},
    )
    def cancel(self, batch_id: BatchId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Cancel the runs of a batch, and close it."""
        return self._change("workflow.cancel", batch_id, reason, request_id)

    @operation(f"GET {_BATCH}", "get_batch", scope=Scope.READ)
    def get(self, batch_id: BatchId, *, limit: _Shown = 1000) -> Batch:
        """Show a batch: its counts, and its runs sorted by ref."""
        return self._read(show_batch, batch_id, limit=limit)

    list = operation(f"GET {BATCHES}", "list_batches", scope=Scope.READ)(reads(list_batches))

    def wait(
        self, batch_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Batch], None] | None = None
    ) -> Batch:
        """Wait until a batch has ended, and return it; raise TimeoutError after this many seconds.

        `on_progress` gets the batch twice a second.
        """
        polling = Polling("batch", batch_id, timeout, on_progress)
        while polling.goes_on(found := self.get(batch_id), found.summary.state, found.summary.finished_at):
            self._call.sleep(POLL_SECONDS)
        return found

    def _change(self, kind: str, batch_id: UUID, reason: str | None, request_id: str | None) -> bool:
        self.get(batch_id, limit=1)  # not another kind of occurrence
        document = {"type": kind, "run_id": str(batch_id), "reason": reason}
        return not self._call.request(document, request_id).unchanged
