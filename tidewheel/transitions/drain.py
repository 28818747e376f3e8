"""Drain releases: write the runs of children whose parents have ended, and end occurrences.

One transaction takes some releases, adds their marks to the children's joins, writes the runs of children whose first
or last parent has ended, and deletes the releases. A release that is there has not been drained, and one that is
drained is gone. The runs' ids are derived, so that a second net holds as well. The occurrence's row is locked before
the joins: two drains of one occurrence follow one another. Order of locks: releases (locked ones are skipped), graphs
(tried only), jobs, occurrences, joins, runs (docs/adr/0054-workflows.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId, RunId, child_run_id
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_arrays import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.runs import DEAD_LETTERED, Cause, Gate, Move, RunState, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.create import NewRun, create_runs
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import MEETS, Again, RootInputs
from tidewheel.transitions.run_messages import Definitions, build_requests, read_definitions, request_rows

_SQL = Statements("tidewheel.transitions")
_TAKE_RELEASES = _SQL["take_releases"]
_TAKE_GIVEN_RELEASES = _SQL["take_given_releases"]
_SHARE_GRAPHS = _SQL["share_graphs"]
_FIND_CHILDREN = _SQL["find_children"]
_LOCK_JOBS_FOR_SHARE = _SQL["lock_jobs_for_share"]
_READ_CHILD_JOBS = _SQL["read_child_jobs"]
_READ_CHILD_VERSIONS = _SQL["read_child_versions"]
_ADD_WORKFLOWS = _SQL["add_workflows"]
_LOCK_WORKFLOWS = _SQL["lock_workflows"]
_ADD_MARKS = _SQL["add_marks"]
_RAISE_MARKS = _SQL["raise_marks"]
_ADD_JOINS = _SQL["add_joins"]
_SET_WORKFLOW = _SQL["set_workflow"]
_DROP_JOINS = _SQL["drop_joins"]
_DROP_JOINS_OF = _SQL["drop_joins_of"]
_LOCK_BLOCKED = _SQL["lock_blocked"]
_UNBLOCK_RUNS = _SQL["unblock_runs"]
_UPDATE_WORKFLOWS = _SQL["update_workflows"]
_READ_JOB_KEYS = _SQL["read_job_keys"]
_DROP_RELEASES = _SQL["drop_releases"]
_POSTPONE_RELEASES = _SQL["postpone_releases"]
_ADVANCE_RELEASES = _SQL["advance_releases"]

MAX_RELEASES = 200  # of one transaction
MAX_CHILDREN = 500  # of one transaction: about 30 ms

_EDITED = timedelta(milliseconds=100)  # until the next drain of a tenant whose graphs change now
_NEVER = "infinity"
_NOW = datetime(9999, 1, 1, tzinfo=UTC)  # in place of an instant: the version in force now
_DEFINITIONS = Definitions()


@dataclass(slots=True)
class Drained:
    """The result of a drain.

    Args:
        releases: The number of releases that it took.
        runs: The number of runs that it wrote, released or ended.
        more: True if there may be more to drain now.
    """

    releases: int = 0
    runs: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """A release, locked."""

    id: int
    shard: int
    root_run_id: UUID
    generation: int
    scheduled_at: datetime
    graph_at: datetime
    run_id: UUID
    job_id: UUID
    tenant: str
    state: str
    began: bool
    cursor_id: UUID | None

    @property
    def is_of_root(self) -> bool:
        """True if the run is the root's first one, whose release opens the occurrence."""
        return self.run_id == self.root_run_id


@dataclass(slots=True)
class Workflow:
    """An occurrence's row, locked; its counts change during the drain."""

    root_run_id: UUID
    tenant: str
    root_job_id: UUID
    shard: int
    scheduled_at: datetime
    graph_at: datetime
    state: str
    generation: int
    pending: int
    failed: int
    cancelled: int
    reason: str | None


class _Child(NamedTuple):
    """A child of the release at a place, from 1."""

    place: int
    job_id: UUID
    condition: str
    parents: int


@dataclass(frozen=True, slots=True)
class _Share:
    """A release with the children that this drain processes; `rest` is true if others follow."""

    release: Release
    children: Sequence[_Child]
    rest: bool


@dataclass(slots=True)
class _Mark:
    """The marks of this drain on one child, and the sums with those of earlier drains."""

    run_id: RunId
    job_id: UUID
    release: Release
    parents: int
    marked: int = 0
    unmet: int = 0
    total: int = 0
    total_unmet: int = 0

    @property
    def is_first(self) -> bool:
        """True if no earlier drain has marked the child: it has no run yet."""
        return self.total == self.marked

    @property
    def is_decided(self) -> bool:
        """True if all parents have ended."""
        return self.total >= self.parents


class ChildJob(NamedTuple):
    """A child's job, locked for share."""

    job_id: UUID
    shard: int
    paused: bool
    deleted: bool


class _Version(NamedTuple):
    job_id: UUID
    at: datetime
    version: int
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    has_deadlines: bool
    concurrency_key: str | None


@dataclass(slots=True)
class _Plan:
    """The effects of some releases."""

    drained: list[Release] = field(default_factory=list[Release])
    paused: list[Release] = field(default_factory=list[Release])
    cursors: dict[int, UUID] = field(default_factory=dict[int, UUID])
    marks: dict[RunId, _Mark] = field(default_factory=dict[RunId, _Mark])
    more: bool = False


def drain(
    connection: Conn,
    installation: Installation,
    shards: Sequence[int],
    *,
    ids: Sequence[int] | None = None,
    children: int = MAX_CHILDREN,
    releases: int = MAX_RELEASES,
) -> Drained:
    """Drain some due releases of these shards, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        shards: The shards.
        ids: These releases alone.
        children: The most children.
        releases: The most releases.
    """
    taken = _take(connection, shards, ids, releases)
    if not taken:
        return Drained()
    failpoint("draining.taken")
    shared = _share_graphs(connection, taken)
    if not shared:
        return Drained(len(taken), more=len(taken) == releases)
    shares = _find_children(connection, shared, children)
    jobs = lock_children(connection, {child.job_id for share in shares for child in share.children})
    workflows = _open_workflows(connection, shares)
    failpoint("draining.locked")
    plan = _plan(shares, workflows)
    marks = _mark(connection, list(plan.marks.values()))
    failpoint("draining.marked")
    now = read_now(connection)
    written = _write(connection, installation, marks, jobs, workflows=workflows, now=now)
    failpoint("draining.written")
    _finish(connection, installation, plan.drained, workflows, now)
    _settle(connection, plan)
    metrics.count("releases_drained", len(plan.drained))
    failpoint("draining.before_commit")
    left = len(taken) == releases or len(shares) < len(shared)
    return Drained(len(taken), written, more=plan.more or left or written > 0)


def postpone_releases(connection: Conn, ids: Sequence[int], until: datetime) -> None:
    """Set releases aside until an instant; the caller has locked them or no drain takes them."""
    connection.execute(_POSTPONE_RELEASES, {"ids": list(ids), "due_at": until})


def _take(connection: Conn, shards: Sequence[int], ids: Sequence[int] | None, limit: int) -> list[Release]:
    columns: dict[str, object] = {"shards": list(shards), "ids": list(ids or ()), "limit": limit}
    statement = _TAKE_RELEASES if ids is None else _TAKE_GIVEN_RELEASES
    with connection.cursor(row_factory=class_row(Release), binary=True) as cursor:
        return cursor.execute(statement, columns).fetchall()


def _share_graphs(connection: Conn, taken: Sequence[Release]) -> list[Release]:
    """Return the releases of tenants whose graphs do not change now; postpone the others by an instant.

    An edit has the instant of its write and is seen from its commit on. No drain may read the graph in between.
    """
    tenants = sorted({release.tenant for release in taken})
    shared = {row[0] for row in connection.execute(_SHARE_GRAPHS, {"tenants": texts(tenants)})}
    edited = [release.id for release in taken if release.tenant not in shared]
    if edited:
        postpone_releases(connection, edited, read_now(connection) + _EDITED)
    return [release for release in taken if release.tenant in shared]


def _find_children(connection: Conn, taken: Sequence[Release], limit: int) -> list[_Share]:
    """Return the releases with their next children: each has an equal part of the limit, and one at least."""
    each = max(limit // len(taken), 1)
    taken = taken[:limit]
    columns = {
        "job_ids": uuids(release.job_id for release in taken),
        "graph_at": instants(release.graph_at for release in taken),
        "cursors": uuids(release.cursor_id for release in taken),
        "limit": each + 1,
    }
    children: dict[int, list[_Child]] = {}
    with connection.cursor(row_factory=rows_of(_Child._make), binary=True) as cursor:
        for child in cursor.execute(_FIND_CHILDREN, columns):
            children.setdefault(child.place, []).append(child)
    own = [children.get(place, []) for place in range(1, len(taken) + 1)]
    return [_Share(one, found[:each], len(found) > each) for one, found in zip(taken, own, strict=True)]


def lock_children(connection: Conn, job_ids: Iterable[UUID]) -> dict[UUID, ChildJob]:
    """Lock the children's jobs against deletion until their runs are written."""
    columns = {"job_ids": uuids(job_ids)}
    connection.execute(_LOCK_JOBS_FOR_SHARE, columns)
    with connection.cursor(row_factory=rows_of(ChildJob._make), binary=True) as cursor:
        return {job.job_id: job for job in cursor.execute(_READ_CHILD_JOBS, columns)}


def lock_workflows(connection: Conn, roots: Iterable[UUID]) -> dict[UUID, Workflow]:
    """Lock occurrences; return those that there are."""
    with connection.cursor(row_factory=class_row(Workflow), binary=True) as cursor:
        return {row.root_run_id: row for row in cursor.execute(_LOCK_WORKFLOWS, {"roots": uuids(roots)})}


def _open_workflows(connection: Conn, shares: Sequence[_Share]) -> dict[UUID, Workflow]:
    """Open the occurrences of roots that have ended and have children; lock all occurrences."""
    opened = [one.release for one in shares if one.release.is_of_root and one.children and _opens(one.release)]
    if opened:
        columns: dict[str, object] = {
            "roots": uuids(release.root_run_id for release in opened),
            "tenants": texts([release.tenant for release in opened]),
            "job_ids": uuids(release.job_id for release in opened),
            "shards": integers(release.shard for release in opened),
            "scheduled_at": instants(release.scheduled_at for release in opened),
            "graph_at": instants(release.graph_at for release in opened),
        }
        connection.execute(_ADD_WORKFLOWS, columns)
    return lock_workflows(connection, {share.release.root_run_id for share in shares})


def _opens(release: Release) -> bool:
    """Return True if the root's end opens an occurrence: it began, and was not skipped."""
    return release.state != RunState.SKIPPED and (release.began or release.state != RunState.CANCELLED)


def _plan(shares: Sequence[_Share], workflows: Mapping[UUID, Workflow]) -> _Plan:
    """Decide what becomes of each release, and collect the marks."""
    plan = _Plan()
    for share in shares:
        release = share.release
        workflow = workflows.get(release.root_run_id)
        if workflow is None or workflow.state not in ("open", "paused") or not _goes_on(release):
            plan.drained.append(release)
        elif workflow.state == "paused":
            plan.paused.append(release)
        else:
            for child in share.children:
                _add_mark(plan.marks, release, child)
            if share.rest:
                plan.cursors[release.id] = share.children[-1].job_id
                plan.more = True
            else:
                plan.drained.append(release)
    return plan


def _goes_on(release: Release) -> bool:
    return not release.is_of_root or _opens(release)


def _add_mark(marks: dict[RunId, _Mark], release: Release, child: _Child) -> None:
    run_id = child_run_id(child.job_id, release.scheduled_at, release.root_run_id, release.generation)
    mark = marks.get(run_id)
    if mark is None:
        mark = marks[run_id] = _Mark(run_id, child.job_id, release, child.parents)
    mark.marked += 1
    mark.unmet += RunState(release.state) not in MEETS[child.condition]


def _mark(connection: Conn, marks: Sequence[_Mark]) -> list[_Mark]:
    """Add the marks to the joins; return the children that are concerned, with the sums."""
    for mark in marks:
        mark.total, mark.total_unmet = mark.marked, mark.unmet
    # All parents in one drain: no earlier drain has made a join. A resume makes one for each child that runs again.
    joined = [mark for mark in marks if mark.release.generation == 0 and not mark.is_decided]
    again = [mark for mark in marks if mark.release.generation > 0]
    sums: dict[UUID, tuple[int, int, int]] = {}
    if joined:
        sums |= _sums(connection.execute(_ADD_MARKS, _marked(joined), binary=True).fetchall())
    if again:
        # In order, so that no two drains wait for each other; the occurrence's lock excludes all others.
        sums |= _sums(connection.execute(_RAISE_MARKS, _marked(again), binary=True).fetchall())
    for mark in (*joined, *again):
        if mark.run_id in sums:
            mark.parents, mark.total, mark.total_unmet = sums[mark.run_id]
    found = [mark for mark in marks if mark.release.generation == 0 or mark.run_id in sums]
    over = [mark.run_id for mark in found if mark.is_decided and mark.run_id in sums]
    if over:
        connection.execute(_DROP_JOINS, {"run_ids": uuids(over)})
    return found


def _marked(marks: Sequence[_Mark]) -> dict[str, object]:
    return {
        "run_ids": uuids(mark.run_id for mark in marks),
        "roots": uuids(mark.release.root_run_id for mark in marks),
        "tenants": texts([mark.release.tenant for mark in marks]),
        "parents": integers(mark.parents for mark in marks),
        "marked": integers(mark.marked for mark in marks),
        "unmet": integers(mark.unmet for mark in marks),
    }


def _sums(rows: Sequence[object]) -> dict[UUID, tuple[int, int, int]]:
    return {
        run: (parents, marked, unmet) for run, parents, marked, unmet in cast("list[tuple[UUID, int, int, int]]", rows)
    }


def _write(
    connection: Conn,
    installation: Installation,
    marks: Sequence[_Mark],
    jobs: Mapping[UUID, ChildJob],
    *,
    workflows: Mapping[UUID, Workflow],
    now: datetime,
) -> int:
    """Write the runs of children whose first or last parent has ended; return how many changed."""
    reasons = {mark.run_id: reason for mark in marks if mark.is_decided and (reason := _skipped(mark, jobs))}
    first = [mark for mark in marks if mark.is_first]
    versions = read_versions_at(connection, {(mark.job_id, _instant(mark.release)) for mark in first})
    new = [
        new_child(
            versions[mark.job_id, _instant(mark.release)],
            mark.run_id,
            mark.release,
            jobs[mark.job_id].shard,
            now,
            blocked=not mark.is_decided or mark.run_id in reasons,
        )
        for mark in first
    ]
    create_runs(connection, installation, new, now=now)
    for mark in first:
        workflows[mark.release.root_run_id].pending += 1
    waiting = [mark.run_id for mark in marks if mark.is_decided and not mark.is_first]
    left = _lock_blocked(connection, waiting)
    unblock(connection, installation, [run for run in left.values() if run.run_id not in reasons], now)
    skipped = [run for run in reasons if run in left or run not in waiting]
    ends = [RunEnd(run_id, 0, RunState.SKIPPED, reason=reasons[run_id]) for run_id in skipped]
    finish_runs(connection, installation, ends)
    return len(new) + len(left)


def _skipped(mark: _Mark, jobs: Mapping[UUID, ChildJob]) -> str | None:
    """Return the reason why a decided child is skipped; None if it runs."""
    return _reason(jobs[mark.job_id], mark.total_unmet)


def _reason(job: ChildJob, unmet: int) -> str | None:
    if job.deleted:
        return "deleted"
    if unmet:
        return "parents"
    return "paused" if job.paused else None


def resume(
    connection: Conn,
    installation: Installation,
    workflow: Workflow,
    again: Sequence[Again],
    now: datetime,
    *,
    root_inputs: RootInputs | None,
) -> None:
    """Open the next generation of a finished occurrence, whose row is locked.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        workflow: The occurrence.
        again: The jobs that run again, as `to_run_again` returns them.
        now: The database's clock.
        root_inputs: The inputs of the root's latest run, if the root runs again.
    """
    root, at, generation = workflow.root_run_id, workflow.scheduled_at, workflow.generation + 1
    jobs = lock_children(connection, {one.job_id for one in again})
    ids = {one.job_id: child_run_id(one.job_id, at, root, generation) for one in again}
    joined, first = [one for one in again if one.parents], [one for one in again if not one.parents]
    columns: dict[str, object] = {
        "root": root,
        "tenant": workflow.tenant,
        "run_ids": uuids(ids[one.job_id] for one in joined),
        "parents": integers(one.parents for one in joined),
        "unmet": integers(one.unmet for one in joined),
    }
    connection.execute(_ADD_JOINS, columns)
    versions = read_versions_at(connection, {(one.job_id, _NOW) for one in first})
    release = Release(
        id=0,
        shard=workflow.shard,
        root_run_id=root,
        generation=generation,
        scheduled_at=at,
        graph_at=workflow.graph_at,
        run_id=root,
        job_id=workflow.root_job_id,
        tenant=workflow.tenant,
        state="",
        began=True,
        cursor_id=None,
    )
    reasons = {ids[one.job_id]: reason for one in first if (reason := _reason(jobs[one.job_id], one.unmet))}
    new = [
        new_child(
            versions[one.job_id, _NOW],
            ids[one.job_id],
            release,
            jobs[one.job_id].shard,
            now,
            blocked=ids[one.job_id] in reasons,
        )
        for one in first
    ]
    if root_inputs is not None:
        new = [root_inputs.given_to(run) if run.job_id == workflow.root_job_id else run for run in new]
    create_runs(connection, installation, new, now=now)
    ends = [RunEnd(run_id, 0, RunState.SKIPPED, reason=reason) for run_id, reason in reasons.items()]
    finish_runs(connection, installation, ends)
    set_workflow(connection, workflow, "open", generation=generation, pending=len(new))


def set_workflow(
    connection: Conn,
    workflow: Workflow,
    state: str,
    *,
    generation: int | None = None,
    pending: int | None = None,
    reason: str | None = None,
) -> None:
    """Set the state of an occurrence whose row is locked; a new generation begins without failures."""
    columns: dict[str, object] = {
        "root": workflow.root_run_id,
        "state": state,
        "reason": reason,
        "generation": workflow.generation if generation is None else generation,
        "pending": workflow.pending if pending is None else pending,
        "failed": workflow.failed if generation is None else 0,
        "cancelled": workflow.cancelled if generation is None else 0,
    }
    connection.execute(_SET_WORKFLOW, columns)


def _instant(release: Release) -> datetime:
    """Return the instant whose versions hold; a resume follows a correction and takes the current."""
    return release.graph_at if release.generation == 0 else _NOW


def read_versions_at(
    connection: Conn, wanted: Iterable[tuple[UUID, datetime]]
) -> dict[tuple[UUID, datetime], _Version]:
    """Return the versions of jobs that were in force at an instant."""
    listed = sorted(wanted)
    if not listed:
        return {}
    columns = {"job_ids": uuids(job for job, _ in listed), "instants": instants(at for _, at in listed)}
    with connection.cursor(row_factory=rows_of(_Version._make), binary=True) as cursor:
        return {(row.job_id, row.at): row for row in cursor.execute(_READ_CHILD_VERSIONS, columns)}


def new_child(
    version: _Version, run_id: RunId, release: Release, shard: int, now: datetime, *, blocked: bool
) -> NewRun:
    """Return the run of a child in an occurrence."""
    return NewRun(
        run_id=run_id,
        job_id=JobId(version.job_id),
        tenant=release.tenant,
        job_version=version.version,
        shard=shard,
        cause=Cause.WORKFLOW,
        queue=version.queue,
        lane=version.lane,
        handler=version.handler,
        overlap=version.overlap,
        scheduled_at=release.scheduled_at,
        publish_at=now,
        definition=version.definition,
        has_deadlines=version.has_deadlines,
        gates=Gate.FLOW,
        workflow_run_id=release.root_run_id,
        generation=release.generation,
        concurrency_key=version.concurrency_key,
        blocked=blocked,
    )


class _Blocked(NamedTuple):
    run_id: UUID
    job_id: UUID
    job_version: int


def _lock_blocked(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, _Blocked]:
    if not run_ids:
        return {}
    columns = {"run_ids": uuids(run_ids), "blocked": RunState.BLOCKED}
    with connection.cursor(row_factory=rows_of(_Blocked._make), binary=True) as cursor:
        return {run.run_id: run for run in cursor.execute(_LOCK_BLOCKED, columns)}


def unblock(connection: Conn, installation: Installation, runs: Sequence[_Blocked], now: datetime) -> None:
    """Queue blocked runs that this transaction has locked, with their messages."""
    if not runs:
        return
    stored = read_definitions(connection, [(run.job_id, run.job_version) for run in runs])
    definitions = [_DEFINITIONS.of(stored[run.job_id, run.job_version]) for run in runs]
    columns: dict[str, object] = {
        "run_ids": uuids(run.run_id for run in runs),
        "starts_ms": [definition.schedule_to_start_ms for definition in definitions],
        "closes_ms": [definition.schedule_to_close_ms for definition in definitions],
        "now": now,
        "target": target(Move.PROMOTE),
    }
    with connection.cursor(row_factory=class_row(PromotedRun), binary=True) as cursor:
        queued = cursor.execute(_UNBLOCK_RUNS, columns).fetchall()
    append(
        connection, request_rows(queued, build_requests(connection, queued), installation), shards=installation.shards
    )


def _finish(
    connection: Conn,
    installation: Installation,
    drained: Sequence[Release],
    workflows: Mapping[UUID, Workflow],
    now: datetime,
) -> None:
    """Count the drained releases, and end the occurrences that have no pending run."""
    open_before = {root for root, workflow in workflows.items() if workflow.pending > 0}
    for release in drained:
        if (workflow := workflows.get(release.root_run_id)) is not None:
            workflow.pending -= 1
            workflow.failed += release.state in DEAD_LETTERED
            workflow.cancelled += release.state == RunState.CANCELLED
    if not workflows:
        return
    ended = [one for root, one in workflows.items() if root in open_before and one.pending == 0]
    for workflow in ended:
        cancelled = workflow.cancelled or workflow.state == "cancelling"
        workflow.state = "failed" if workflow.failed else "cancelled" if cancelled else "succeeded"
    columns: dict[str, object] = {
        "roots": uuids(workflows),
        "pending": integers(workflow.pending for workflow in workflows.values()),
        "failed": integers(workflow.failed for workflow in workflows.values()),
        "cancelled": integers(workflow.cancelled for workflow in workflows.values()),
        "states": words(workflow.state for workflow in workflows.values()),
    }
    connection.execute(_UPDATE_WORKFLOWS, columns)
    if ended:
        connection.execute(_DROP_JOINS_OF, {"roots": uuids(workflow.root_run_id for workflow in ended)})
        append_workflow_events(connection, installation, ended, now)
        for state, number in Counter(workflow.state for workflow in ended).items():
            metrics.count("workflows_ended", number, state)


def append_workflow_events(
    connection: Conn, installation: Installation, ended: Sequence[Workflow], now: datetime
) -> None:
    """Append the event `workflow.finished` of each occurrence."""
    columns = {"job_ids": uuids({workflow.root_job_id for workflow in ended})}
    rows = connection.execute(_READ_JOB_KEYS, columns, binary=True).fetchall()
    keys = dict(cast("list[tuple[UUID, str]]", rows))
    events = [
        lifecycle_row(
            installation,
            kind="workflow.finished",
            tenant=workflow.tenant,
            job_id=workflow.root_job_id,
            job_key=keys.get(workflow.root_job_id, ""),
            shard=workflow.shard,
            now=now,
            reason=workflow.reason,
            detail={
                "root_run_id": str(workflow.root_run_id),
                "scheduled_at": format_timestamp(workflow.scheduled_at),
                "state": workflow.state,
                "generation": str(workflow.generation),
            },
        )
        for workflow in ended
    ]
    append(connection, events, shards=installation.shards)


def _settle(connection: Conn, plan: _Plan) -> None:
    if plan.drained:
        connection.execute(_DROP_RELEASES, {"ids": [release.id for release in plan.drained]})
    if plan.paused:
        connection.execute(_POSTPONE_RELEASES, {"ids": [release.id for release in plan.paused], "due_at": _NEVER})
    if plan.cursors:
        columns = {"ids": list(plan.cursors), "cursors": uuids(plan.cursors.values())}
        connection.execute(_ADVANCE_RELEASES, columns)
