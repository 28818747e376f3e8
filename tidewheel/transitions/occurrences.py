"""An occurrence of a workflow: its graph, each job's latest run, and what a resume repeats.

The run of a job in an occurrence has a derived id for each generation. So a read needs the edges of the occurrence's
instant, and a look-up by id for each job and generation.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import UnknownWorkflow
from tidewheel.ids import child_run_id, instant_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.transitions")

_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
_MARGIN = timedelta(hours=1)  # the database's clock may have been set back

MEETS: Mapping[str, frozenset[RunState]] = {
    "success": frozenset({RunState.SUCCEEDED}),
    "failure": DEAD_LETTERED,
    "always": frozenset(RunState),
}
"""The ends of a parent that meet each condition."""

_AGAIN = DEAD_LETTERED | {RunState.CANCELLED}  # ends that a resume does not accept


class NodeRun(NamedTuple):
    """The latest run of a job in an occurrence; `read_run_states` returns its columns in this order."""

    run_id: UUID
    state: str
    reason: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(slots=True)
class Node:
    """A job in an occurrence, or a run of a batch.

    Args:
        job_id: The job; the run in a batch.
        parents: The condition of each parent.
        run: Its latest run; None if it was not reached.
        has_first_run: True if its run of generation 0 is stored.
    """

    job_id: UUID
    parents: dict[UUID, str] = field(default_factory=dict[UUID, str])
    run: NodeRun | None = None
    has_first_run: bool = False

    @property
    def state(self) -> RunState | None:
        """The state of its latest run."""
        return None if self.run is None else RunState(self.run.state)


class Again(NamedTuple):
    """A job, or a run of a batch, that a resume runs again.

    Args:
        job_id: As in `Node`.
        parents: The number of its parents that run again too.
        unmet: The number of conditions that its other parents do not meet.
    """

    job_id: UUID
    parents: int
    unmet: int


class RootInputs(NamedTuple):
    """The inputs of a root's run beyond its version; `read_root_inputs` returns its columns in this order."""

    payload: bytes | None
    payload_content_type: str | None
    labels: dict[str, str] | None
    overlap: str | None
    traceparent: str | None
    concurrency_key: str | None

    def given_to(self, run: NewRun) -> NewRun:
        """Return a new run with these inputs."""
        inputs = RunInputs(self.payload, self.payload_content_type, self.labels, self.overlap, self.traceparent)
        return run._replace(
            inputs=None if inputs == RunInputs() else inputs,
            overlap=self.overlap or run.overlap,
            concurrency_key=self.concurrency_key or run.concurrency_key,
        )


def read_root_inputs(connection: Conn, run_id: UUID) -> RootInputs | None:
    """Return the inputs of a root's ended run; None if it is no longer stored."""
    return read_row(connection, rows_of(RootInputs._make), _SQL["read_root_inputs"], {"run_id": run_id})


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An occurrence of a workflow, up to a generation."""

    root_run_id: UUID
    root_job_id: UUID
    scheduled_at: datetime
    graph_at: datetime
    generation: int


def read_occurrence(connection: Conn, root_run_id: UUID, generation: int | None = None) -> dict[UUID, Node]:
    """Return the jobs of an occurrence, each after its parents; the root first.

    Args:
        generation: Only runs up to this one; by default all.
    """
    occurrence = read_row(connection, class_row(Occurrence), _SQL["read_occurrence"], {"root": root_run_id})
    if occurrence is None:
        raise UnknownWorkflow(str(root_run_id))
    if generation is not None:
        occurrence = replace(occurrence, generation=min(generation, occurrence.generation))
    columns: dict[str, object] = {"root_job_id": occurrence.root_job_id, "at": occurrence.graph_at}
    rows = connection.execute(_SQL["read_graph"], columns, binary=True).fetchall()
    nodes = {occurrence.root_job_id: Node(occurrence.root_job_id)}
    for parent, child, condition in cast("list[tuple[UUID, UUID, str]]", rows):
        nodes.setdefault(child, Node(child)).parents[parent] = condition
    ordered = parents_first(nodes)
    found = read_runs(connection, occurrence, ordered)
    for job, node in ordered.items():
        node.run = next(filter(None, found[job]), None)
        node.has_first_run = found[job][-1] is not None
    return ordered


def read_runs(connection: Conn, occurrence: Occurrence, jobs: Iterable[UUID]) -> dict[UUID, list[NodeRun | None]]:
    """Return the runs of jobs in an occurrence, one place for each generation, the newest first."""
    ids = {job: [_run_id(job, occurrence, each) for each in range(occurrence.generation, -1, -1)] for job in jobs}
    run_ids = uuids(run for each in ids.values() for run in each)
    columns: dict[str, object] = {"run_ids": run_ids, "since": _since(occurrence), "until": _NEVER}
    found = {run.run_id: run for run in read_rows(connection, rows_of(NodeRun._make), _SQL["read_run_states"], columns)}
    return {job: [found.get(run) for run in each] for job, each in ids.items()}


def read_node_runs(
    connection: Conn, run_ids: Iterable[UUID], batch_id: UUID, finished_at: datetime | None = None
) -> dict[UUID, NodeRun]:
    """Return those runs of a batch that are stored."""
    columns = {"run_ids": uuids(run_ids), **span_of_batch(batch_id, finished_at)}
    return {run.run_id: run for run in read_rows(connection, rows_of(NodeRun._make), _SQL["read_run_states"], columns)}


def span_of_batch(batch_id: UUID, finished_at: datetime | None) -> dict[str, object]:
    """Return as columns the instants between which the runs of a batch have ended; None for an open one."""
    return {"since": instant_of(batch_id) - _MARGIN, "until": _NEVER if finished_at is None else finished_at + _MARGIN}


def _since(occurrence: Occurrence) -> datetime:
    """Return an instant before which no run of an occurrence has ended.

    It is that of the root's id, or the start of a root that was moved ahead.
    """
    at = instant_of(occurrence.root_run_id)
    if occurrence.graph_at < occurrence.scheduled_at:
        at = min(at, occurrence.graph_at)
    return at - _MARGIN


def _run_id(job: UUID, occurrence: Occurrence, generation: int) -> UUID:
    if job == occurrence.root_job_id and generation == 0:
        return occurrence.root_run_id
    return child_run_id(job, occurrence.scheduled_at, occurrence.root_run_id, generation)


def to_run_again(nodes: Mapping[UUID, Node]) -> list[Again]:
    """Return the jobs that a resume runs again.

    They are those that failed or were cancelled or not reached, and those beneath them that did not succeed.
    """
    again: set[UUID] = set()
    for job, node in nodes.items():  # parents first
        state = node.state
        beneath = any(parent in again for parent in node.parents) and state is not RunState.SUCCEEDED
        if state is None or state in _AGAIN or beneath:
            again.add(job)
    return among_parents(nodes, again)


def among_parents(nodes: Mapping[UUID, Node], again: Collection[UUID]) -> list[Again]:
    """Return some jobs of an occurrence, with what their parents leave to wait for."""
    return [
        Again(
            job,
            sum(parent in again for parent in nodes[job].parents),
            sum(
                parent not in again and nodes[parent].state not in MEETS[condition]
                for parent, condition in nodes[job].parents.items()
            ),
        )
        for job in nodes
        if job in again
    ]


def parents_first(nodes: Mapping[UUID, Node]) -> dict[UUID, Node]:
    """Return the same nodes, each after its parents."""
    children: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for job, node in nodes.items():
        for parent in node.parents:
            children[parent].append(job)
    waits = {job: len(node.parents) for job, node in nodes.items()}
    ready = [job for job, parents in waits.items() if not parents]
    for job in ready:  # it grows meanwhile
        for child in children[job]:
            waits[child] -= 1
            if not waits[child]:
                ready.append(child)
    return {job: nodes[job] for job in ready}
