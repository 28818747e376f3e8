"""The parents of a run in its occurrence of a workflow: their latest runs, with the results.

The ids of the parents' runs are derived, so this takes the edges of one job and look-ups by id. A child of a later
generation gets the latest runs up to that one. A retry has the parents of the run that it retries.
Runs of a batch have edges of their own, and refs for keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import UnknownRun
from tidewheel.postgres.pg_binary import instants, integers, uuids
from tidewheel.postgres.session import Conn, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.occurrences import NodeRun, Occurrence, read_node_runs, read_runs
from tidewheel.transitions.workflows import NO_JOB

_SQL = Statements("tidewheel.transitions")

MAX_RESULTS_BYTES = 64 * 1024
"""The most bytes of results that one read returns together; a single result is never larger."""


@dataclass(frozen=True, slots=True)
class ParentRun:
    """A parent's run in the occurrence of a child.

    Args:
        key: The parent's key; its ref in a batch.
        status: The state of its run; None if it has none yet, or if that is no longer stored.
        result: Its result as JSON text; None if it returned none, or if it is left out or expired.
        left_out: True if the results together are too large; a read of this parent alone returns it.
        expired: True if the run or its result is no longer stored.
    """

    key: str
    when: str
    status: str | None = None
    run_id: UUID | None = None
    result: bytes | None = None
    result_bytes: int = 0
    left_out: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class _Child:
    node_run_id: UUID | None  # the run itself, or the first run of its chain of retries
    job_id: UUID
    state: str
    generation: int | None
    root_run_id: UUID | None
    root_job_id: UUID  # this and the rest are null as well if root_run_id is
    scheduled_at: datetime
    graph_at: datetime
    last_generation: int


class _Result(NamedTuple):
    run_id: UUID
    size: int | None
    result: bytes | None
    expired: bool


def read_parents(
    connection: Conn, run_id: UUID, *, tenant: str | None = None, key: str | None = None
) -> list[ParentRun]:
    """Return the parents of a run, by key; none if it belongs to no occurrence."""
    child = _find_child(connection, run_id, tenant)
    if child.root_run_id is None:
        return []
    if child.root_job_id == NO_JOB:
        runs = _read_batch_parents(connection, child, key)
    else:
        runs = read_parent_runs(connection, _occurrence_of(child), child.job_id, key)
    results = _read_results(connection, [run for _, _, run in runs if run and run.state == RunState.SUCCEEDED])
    waits = child.state == RunState.BLOCKED
    return [_parent(key, when, run, results, waits=waits) for key, when, run in runs]


def read_parent_runs(
    connection: Conn, occurrence: Occurrence, job: UUID, key: str | None = None
) -> list[tuple[str, str, NodeRun | None]]:
    """Return the key, the condition and the latest run of each parent of a job in an occurrence, by key."""
    columns: dict[str, object] = {"job_id": job, "at": occurrence.graph_at, "key": key}
    return _with_runs(connection, occurrence, connection.execute(_SQL["read_parents"], columns, binary=True).fetchall())


class Neighbours(NamedTuple):
    """The parents and children of a run in its occurrence, by key.

    Each has its key, the condition on the end of the parent, and its latest run.
    """

    parents: Sequence[tuple[str, str, NodeRun | None]]
    children: Sequence[tuple[str, str, NodeRun | None]]


def read_neighbours(connection: Conn, run_id: UUID, *, tenant: str) -> Neighbours | None:
    """Return the parents and the children of a run; None if it is a part of no workflow.

    Their runs are the latest ones up to its generation.
    """
    child = _find_child(connection, run_id, tenant)
    if child.root_run_id is None or child.root_job_id == NO_JOB:
        return None
    occurrence = _occurrence_of(child)
    columns: dict[str, object] = {"job_id": child.job_id, "at": occurrence.graph_at}
    children = connection.execute(_SQL["read_children"], columns, binary=True).fetchall()
    return Neighbours(
        read_parent_runs(connection, occurrence, child.job_id), _with_runs(connection, occurrence, children)
    )


def _find_child(connection: Conn, run_id: UUID, tenant: str | None) -> _Child:
    child = read_row(
        connection, class_row(_Child), _SQL["find_run_in_occurrence"], {"run_id": run_id, "tenant": tenant}
    )
    if child is None:
        raise UnknownRun(str(run_id))
    return child


def _occurrence_of(child: _Child) -> Occurrence:
    assert child.root_run_id is not None  # noqa: S101 - the callers have checked it
    generation = child.last_generation if child.generation is None else child.generation
    return Occurrence(child.root_run_id, child.root_job_id, child.scheduled_at, child.graph_at, generation)


def _with_runs(
    connection: Conn, occurrence: Occurrence, rows: Sequence[object]
) -> list[tuple[str, str, NodeRun | None]]:
    edges = cast("Sequence[tuple[UUID, str, str]]", rows)
    stored = read_runs(connection, occurrence, [job for job, _, _ in edges])
    return [(key, when, next(filter(None, stored[job]), None)) for job, key, when in edges]


def _read_batch_parents(connection: Conn, child: _Child, ref: str | None) -> list[tuple[str, str, NodeRun | None]]:
    assert child.root_run_id is not None  # noqa: S101 - the caller has checked it
    columns: dict[str, object] = {"run_id": child.node_run_id, "ref": ref}
    rows = connection.execute(_SQL["read_batch_parents"], columns, binary=True).fetchall()
    edges = cast("list[tuple[UUID, str, str]]", rows)
    stored = read_node_runs(connection, [parent for parent, _, _ in edges], child.root_run_id)
    return [(parent_ref, when, stored.get(parent)) for parent, parent_ref, when in edges]


def _parent(key: str, when: str, run: NodeRun | None, results: Mapping[UUID, _Result], *, waits: bool) -> ParentRun:
    if run is None:
        return ParentRun(key, when, expired=not waits)
    if (result := results.get(run.run_id)) is None:
        return ParentRun(key, when, run.state, run.run_id)
    size = result.size or 0
    left_out = size > 0 and result.result is None
    return ParentRun(key, when, run.state, run.run_id, result.result, size, left_out, result.expired)


def _read_results(connection: Conn, runs: Sequence[NodeRun]) -> dict[UUID, _Result]:
    if not runs:
        return {}
    columns: dict[str, object] = {
        "run_ids": uuids(run.run_id for run in runs),
        "attempts": integers(run.attempt for run in runs),
        "started_at": instants(run.started_at for run in runs),
        "max_bytes": MAX_RESULTS_BYTES,
    }
    return {
        row.run_id: row for row in read_rows(connection, rows_of(_Result._make), _SQL["read_parent_results"], columns)
    }
