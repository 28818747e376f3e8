"""The graph of jobs: check and write the edges that `schedule: {after: …}` makes.

Edges are periods. An edit of a job closes those from its former parents and opens new ones, in the transaction that
writes its version. An edit that leaves the parents alone writes none. All changes of a tenant's edges exclude each
other by a row of `tenant_locks`, which a transaction locks before any timer. So a graph that was checked has no cycle
and one root, whatever other clients submit at the same time. A transaction chooses these locks by what is committed
then. If a job comes into a graph before it locks the job, it is rolled back and tried again.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Unavailable, refuse
from tidewheel.ids import job_id
from tidewheel.intake.locks import RowLocked, try_lock
from tidewheel.intake.request import ReceivedRequest
from tidewheel.intake.writing import Graphs, Writing
from tidewheel.jobs.requests import JobDelete, JobRollback, JobSubmit
from tidewheel.jobs.schedule import AfterSpec, ParentSpec
from tidewheel.postgres.pg_binary import integers, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Gate, Overlap

_SQL = Statements("tidewheel.intake")

MAX_NODES = 10_000  # of a graph
MAX_CHILDREN = 10_000  # of one job
_SPLIT = "split it, or let the last job trigger the next workflow"
_PATH = "job.schedule.after"


class _Edge(NamedTuple):
    parent: UUID
    child: UUID


@dataclass(frozen=True, slots=True)
class _Node:
    """A job as a check of a graph reads it."""

    job_id: UUID
    key: str
    root_job_id: UUID | None
    exists: bool


@dataclass(frozen=True, slots=True)
class EdgeChange:
    """The change of the edges to one job, checked."""

    job_id: UUID
    tenant: str
    parents: Mapping[UUID, str]  # with the condition of each
    root: UUID  # of its graph; its own id if it has no parents
    moved: frozenset[UUID]  # jobs that come under another root: itself, and those beneath it


def lock_graphs(connection: Conn, batch: Collection[ReceivedRequest]) -> Graphs:
    """Lock the graphs that this batch may change, before any other lock of the transaction."""
    concerned: dict[UUID, str] = {
        received.job_id: received.tenant
        for received in batch
        if isinstance(received.request, JobSubmit | JobDelete | JobRollback) and received.key is not None
    }
    if not concerned:
        return Graphs()
    rows = connection.execute(_SQL["find_nodes"], {"job_ids": uuids(concerned)}, binary=True).fetchall()
    nodes = dict(cast("list[tuple[UUID, UUID]]", rows))
    parentless = _versions_without_parents(connection, batch)
    changed: set[UUID] = {
        received.job_id
        for received in batch
        if received.job_id in concerned and _may_change_edges(received, nodes, parentless)
    }
    tenants = sorted({concerned[job] for job in changed})
    for tenant in tenants:
        # In this order: drains, which only try both, let a change go first that waits for the old lock.
        connection.execute(_SQL["lock_old_graphs"], {"tenant": tenant})
        connection.execute(_SQL["lock_graphs"], {"tenant": tenant})
    return Graphs(tenants, changed)


def outside_graphs(key: str) -> Unavailable:
    """Return the error about a job that came into a graph which this transaction has not locked."""
    return Unavailable(f"another transaction has made job {key!r} part of a workflow at the same time")


def check_edges(writing: Writing, received: ReceivedRequest) -> EdgeChange | None:
    """Return the change of the edges that a submit makes; None if it leaves them as they are.

    Raises:
        InvalidInput: A parent does not exist, the edges would form a cycle or join two roots, or there are too many.
        RowLocked: A user's own transaction has triggered one of the jobs: roll back and try again.
    """
    parents = _parents(received)
    job: UUID = received.job_id
    named: dict[UUID, str] = {job_id(received.tenant, one.job): one.when for one in parents}
    before = dict(cast("list[tuple[UUID, str]]", writing.read(_SQL["read_parents"], job_id=job)))
    if before == named:
        # Also where the parents have gone: a submit that changes nothing is not refused.
        return None
    _lock_jobs(writing, received, named)
    nodes = _read_nodes(writing, [job, *named, *before])
    _ensure_parents(received, parents, nodes)
    root = _root(parents, received, nodes)
    edges = _edges(writing, _SQL["read_edges_below"], job_id=job)
    below = {edge.child for edge in edges}
    _ensure_acyclic(writing, received, parents, edges)
    own = nodes.get(job)
    former = (own.root_job_id if own is not None else None) or job
    moved = frozenset({job, *below}) if root != former else frozenset[UUID]()
    if moved:
        _ensure_one_root(writing, received, below, root)
    _ensure_small(writing, root, moved, named.keys() - before.keys())
    return EdgeChange(job, received.tenant, named, root, moved)


def write_edges(writing: Writing, change: EdgeChange, now: datetime) -> None:
    """Write a checked change of edges, in the transaction that writes the job's version."""
    former = _close_edges(writing, [change.job_id], now)
    if change.parents:
        writing.execute(
            _SQL["open_edges"],
            job_id=change.job_id,
            tenant=change.tenant,
            now=now,
            parents=uuids(change.parents),
            conditions=words(change.parents.values()),
        )
    if change.moved:
        writing.execute(_SQL["set_roots"], job_ids=uuids(change.moved), root=change.root)
    writing.execute(_SQL["set_own_roots"], job_ids=uuids({change.job_id, *change.parents, *former}))
    # Runs that were written ahead, while their job was no root yet.
    ids = uuids({*change.parents})
    writing.execute(_SQL["add_flow"], job_ids=ids, now=now, flow=Gate.FLOW, whole=Gate.WHOLE, free=Overlap.ALLOW_ALL)


def _close_edges(writing: Writing, jobs: Sequence[UUID], now: datetime) -> set[UUID]:
    return {
        row[0] for row in writing.read(_SQL["close_edges"], job_ids=uuids(jobs), now=now) if isinstance(row[0], UUID)
    }


def children_of(writing: Writing, jobs: Iterable[UUID]) -> dict[UUID, list[str]]:
    """Return the keys of the first children of these jobs that are not among them."""
    ids = uuids(jobs)
    rows = writing.read(_SQL["find_child_keys"], job_ids=ids) if ids else []
    return dict(cast("list[tuple[UUID, list[str]]]", rows))


def drop_edges(writing: Writing, jobs: Sequence[UUID], now: datetime) -> None:
    """End the edges to jobs that are deleted."""
    if jobs:
        former = _close_edges(writing, jobs, now)
        writing.execute(_SQL["set_own_roots"], job_ids=uuids({*jobs, *former}))


def _parents(received: ReceivedRequest) -> tuple[ParentSpec, ...]:
    request = received.request
    if isinstance(request, JobSubmit) and isinstance(request.job.schedule, AfterSpec):
        return request.job.schedule.after
    return ()


def _versions_without_parents(connection: Conn, batch: Iterable[ReceivedRequest]) -> set[tuple[UUID, int]]:
    """Return those of the versions to roll back to that exist and have no parents; versions never change."""
    wanted = [(one.job_id, one.request.version) for one in batch if isinstance(one.request, JobRollback)]
    if not wanted:
        return set()
    columns = {"job_ids": uuids(job for job, _ in wanted), "versions": integers(version for _, version in wanted)}
    rows = connection.execute(_SQL["find_versions_without_parents"], columns, binary=True).fetchall()
    return set(cast("list[tuple[UUID, int]]", rows))


def _may_change_edges(
    received: ReceivedRequest, nodes: Mapping[UUID, UUID], parentless: Collection[tuple[UUID, int]]
) -> bool:
    request = received.request
    has_parents = nodes.get(received.job_id, received.job_id) != received.job_id
    if isinstance(request, JobSubmit):
        return has_parents or bool(_parents(received))
    if isinstance(request, JobRollback):
        return has_parents or (received.job_id, request.version) not in parentless
    return received.job_id in nodes


def _lock_jobs(writing: Writing, received: ReceivedRequest, parents: Iterable[UUID]) -> None:
    """Lock the job and its parents: a trigger comes before the change, or after it."""
    ids = sorted({received.job_id, *parents})
    writing.execute(_SQL["lock_timers"], job_ids=ids)
    if not try_lock(writing.connection, _SQL["lock_jobs_to_delete"], {"job_ids": ids}):
        what = f"job {received.key!r} or a parent of it"
        raise RowLocked(what, [received])


def _read_nodes(writing: Writing, jobs: Iterable[UUID]) -> dict[UUID, _Node]:
    return {node.job_id: node for node in writing.read_as(_Node, _SQL["read_nodes"], job_ids=uuids(jobs))}


def _edges(writing: Writing, statement: LiteralString, **columns: object) -> list[_Edge]:
    return [_Edge(*edge) for edge in cast("list[tuple[UUID, UUID]]", writing.read(statement, **columns))]


def _ensure_parents(received: ReceivedRequest, parents: Sequence[ParentSpec], nodes: Mapping[UUID, _Node]) -> None:
    errors: list[FieldError] = []
    for place, parent in enumerate(parents):
        node = nodes.get(job_id(received.tenant, parent.job))
        path = f"{_PATH}.{place}.job"
        if parent.job == received.key:
            errors.append(FieldError(path, f"{parent.job!r} would run after itself", "name another job"))
        elif node is None or not node.exists:
            problem = f"there is no job {parent.job!r}"
            errors.append(FieldError(path, problem, "submit the parent first, or correct the key"))
    if errors:
        raise InvalidInput(errors)


def _root(parents: Sequence[ParentSpec], received: ReceivedRequest, nodes: Mapping[UUID, _Node]) -> UUID:
    """Return the root that all parents have, or the job itself."""
    roots: dict[UUID, int] = {}
    for place, parent in enumerate(parents):
        node = nodes[job_id(received.tenant, parent.job)]
        roots.setdefault(node.root_job_id or node.job_id, place)
    if len(roots) > 1:
        first, second = list(roots.values())[:2]
        problem = f"{parents[first].job!r} and {parents[second].job!r} belong to different workflows"
        remedy = "a job has one root; let one root run after the other, or name only one of the parents"
        refuse(f"{_PATH}.{second}.job", problem, remedy)
    return next(iter(roots), received.job_id)


def _ensure_acyclic(
    writing: Writing, received: ReceivedRequest, parents: Sequence[ParentSpec], edges: Sequence[_Edge]
) -> None:
    came_from: dict[UUID, UUID] = {}
    children: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for edge in edges:
        children[edge.parent].append(edge.child)
    waiting = deque[UUID]([received.job_id])
    while waiting:
        at = waiting.popleft()
        for child in children[at]:
            if child not in came_from:
                came_from[child] = at
                waiting.append(child)
    for place, parent in enumerate(parents):
        beneath: UUID = job_id(received.tenant, parent.job)
        if beneath in came_from:
            steps: list[UUID] = [beneath]
            while steps[-1] != received.job_id:
                steps.append(came_from[steps[-1]])
            keys = {job: node.key for job, node in _read_nodes(writing, steps).items()}
            names = [keys[job] for job in reversed(steps)]
            path = " → ".join([*names, names[0]]) if len(names) <= 20 else f"{names[0]} → … → {names[-1]} → {names[0]}"
            refuse(f"{_PATH}.{place}.job", f"would form a cycle: {path}", "remove one of these edges")


def _ensure_one_root(writing: Writing, received: ReceivedRequest, below: set[UUID], root: UUID) -> None:
    if not below:
        return
    inside = {received.job_id, *below}
    above = _edges(writing, _SQL["read_edges_above"], job_ids=uuids(below))
    outside = [edge for edge in above if edge.parent not in inside]
    if not outside:
        return
    nodes = _read_nodes(writing, [*outside[0], root])
    other = nodes[outside[0].parent]
    if (other.root_job_id or other.job_id) != root:
        child, new = nodes[outside[0].child].key, nodes[root].key if root in nodes else received.key
        problem = (
            f"{child!r} runs after this job and after {other.key!r}, so it would have two roots:"
            f" {new!r} and that of {other.key!r}"
        )
        refuse("job.schedule", problem, "change the parents of that job first")


def _ensure_small(writing: Writing, root: UUID, moved: frozenset[UUID], added: Iterable[UUID]) -> None:
    [row] = writing.read(_SQL["count_nodes"], root=root, limit=MAX_NODES + 1)
    nodes = max(cast("tuple[int]", row)[0], 1) + len(moved - {root})
    if moved and nodes > MAX_NODES:
        refuse(_PATH, f"the workflow would have {nodes} jobs; the limit is {MAX_NODES}", _SPLIT)
    if writing.read(_SQL["count_children"], job_ids=uuids(added), limit=MAX_CHILDREN):
        refuse(_PATH, f"a parent already has {MAX_CHILDREN} children, the limit of one job", _SPLIT)
