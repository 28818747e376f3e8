"""Drain releases: write the runs of children whose parents have ended, and end occurrences.

One transaction takes some releases, adds their marks to the children's joins, writes the runs of children whose first
or last parent has ended, and deletes the releases. A release that is there has not been drained, and one that is
drained is gone. The runs' ids are derived, so that a second net holds as well. The occurrence's row is locked before
the joins: two drains of one occurrence follow one another. Order of locks: releases (locked ones are skipped), graphs
(tried only), jobs, occurrences, joins, runs (docs/adr/0054-workflows.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from tidewheel.ids import RunId, child_run_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids
from tidewheel.postgres.session import Conn, at_commit, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState, SkipReason
from tidewheel.transitions.batch_writer import find_delays
from tidewheel.transitions.children import (
    ChildJob,
    Release,
    instant_of,
    lock_blocked,
    lock_children,
    new_child,
    postpone_releases,
    read_versions_at,
    settle_releases,
    skip_reason,
    take_releases,
    unblock,
)
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import MEETS
from tidewheel.transitions.workflows import Workflow, count_drained, leave_places, open_workflows

_SQL = Statements("tidewheel.transitions")

MAX_RELEASES = 200  # of one transaction
MAX_CHILDREN = 500  # of one transaction: about 30 ms

_EDITED = timedelta(milliseconds=100)  # until the next drain of a tenant whose graphs change now


class Child(NamedTuple):
    """A child of the release at a place, from 1: its job, or its run in a batch."""

    place: int
    id: UUID
    condition: str
    parents: int


@dataclass(slots=True)
class Mark:
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
        return self.total == self.marked and not self.release.is_in_batch

    @property
    def is_joined(self) -> bool:
        """True if the child has a join from the beginning: by a resume, or as a run of a batch."""
        return self.release.generation > 0 or self.release.is_in_batch

    @property
    def is_decided(self) -> bool:
        """True if all parents have ended."""
        return self.total >= self.parents


def add_mark(marks: dict[RunId, Mark], release: Release, child: Child) -> None:
    """Add the mark of a release on a child."""
    if release.is_in_batch:
        run_id = RunId(child.id)
    else:
        run_id = child_run_id(child.id, release.scheduled_at, release.root_run_id, release.generation)
    mark = marks.get(run_id)
    if mark is None:
        mark = marks[run_id] = Mark(run_id, child.id, release, child.parents)
    mark.marked += 1
    mark.unmet += RunState(release.state) not in MEETS[child.condition]


def sum_marks(connection: Conn, marks: Sequence[Mark]) -> list[Mark]:
    """Add the marks to the joins; return the children that are concerned, with the sums."""
    for mark in marks:
        mark.total, mark.total_unmet = mark.marked, mark.unmet
    # All parents in one drain: no earlier drain has made a join. Others have theirs from the beginning.
    joined = [mark for mark in marks if not mark.is_joined and not mark.is_decided]
    again = [mark for mark in marks if mark.is_joined]
    sums: dict[UUID, tuple[int, int, int]] = {}
    if joined:
        sums |= _sums(connection.execute(_SQL["add_marks"], _marked(joined), binary=True).fetchall())
    if again:
        # In order, so that no two drains wait for each other; the occurrence's lock excludes all others.
        sums |= _sums(connection.execute(_SQL["raise_marks"], _marked(again), binary=True).fetchall())
    for mark in (*joined, *again):
        if mark.run_id in sums:
            mark.parents, mark.total, mark.total_unmet = sums[mark.run_id]
    found = [mark for mark in marks if not mark.is_joined or mark.run_id in sums]
    over = [mark.run_id for mark in found if mark.is_decided and mark.run_id in sums]
    if over:
        connection.execute(_SQL["drop_joins"], {"run_ids": uuids(over)})
    return found


def _marked(marks: Sequence[Mark]) -> dict[str, object]:
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


@dataclass(slots=True)
class Drained:
    """The result of a drain; `more` if there may be more to drain now."""

    releases: int = 0
    runs: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class _Share:
    """A release with the children that this drain processes; `rest` is true if others follow."""

    release: Release
    children: Sequence[Child]
    rest: bool


@dataclass(slots=True)
class _Plan:
    """The effects of some releases."""

    drained: list[Release] = field(default_factory=list[Release])
    paused: list[Release] = field(default_factory=list[Release])
    cursors: dict[int, UUID] = field(default_factory=dict[int, UUID])
    marks: dict[RunId, Mark] = field(default_factory=dict[RunId, Mark])
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
    """Drain some due releases of these shards, in the caller's transaction."""
    taken = take_releases(connection, shards, ids, releases)
    if not taken:
        return Drained()
    failpoint("draining.taken")
    shared = _share_graphs(connection, taken)
    if not shared:
        return Drained(len(taken), more=len(taken) == releases)
    each, chosen = max(children // len(shared), 1), shared[:children]
    shares = _find_children(connection, _SQL["find_children"], [one for one in chosen if not one.is_in_batch], each)
    jobs = lock_children(connection, {child.id for share in shares for child in share.children})
    with_children = [share.release for share in shares if share.children]
    workflows = open_workflows(connection, with_children, {release.root_run_id for release in chosen})
    # Under the occurrences' locks: a request may have added edges until then. The runs are there, and need no job.
    shares += _find_children(connection, _SQL["find_batch_children"], [one for one in chosen if one.is_in_batch], each)
    failpoint("draining.locked")
    plan = _plan(shares, workflows)
    marks = sum_marks(connection, list(plan.marks.values()))
    failpoint("draining.marked")
    now = read_now(connection)
    written = _write(connection, installation, marks, jobs, workflows=workflows, now=now)
    failpoint("draining.written")
    ended = count_drained(connection, installation, plan.drained, workflows, now)
    settle_releases(connection, plan.drained, plan.paused, plan.cursors)
    # The last locks: with an active run locked, a transaction waits for active runs alone (ADR 0008).
    leave_places(connection, installation, [share.release for share in shares], workflows, ended)
    at_commit(connection, partial(metrics.count, "releases_drained", len(plan.drained)))
    failpoint("draining.before_commit")
    left = len(taken) == releases or len(shares) < len(shared)
    return Drained(len(taken), written, more=plan.more or left or written > 0)


def _share_graphs(connection: Conn, taken: Sequence[Release]) -> list[Release]:
    """Return the releases of tenants whose graphs do not change now; postpone the others by an instant.

    An edit has the instant of its write and is seen from its commit on. No drain may read the graph in between.
    """
    tenants = sorted({release.tenant for release in taken})
    shared = {row[0] for row in connection.execute(_SQL["share_graphs"], {"tenants": texts(tenants)})}
    if left := [tenant for tenant in tenants if tenant not in shared]:
        shared |= {row[0] for row in connection.execute(_SQL["add_graph_locks"], {"tenants": texts(left)})}
    edited = [release.id for release in taken if release.tenant not in shared]
    if edited:
        postpone_releases(connection, edited, read_now(connection) + _EDITED)
    return [release for release in taken if release.tenant in shared]


def _find_children(connection: Conn, statement: LiteralString, taken: Sequence[Release], each: int) -> list[_Share]:
    """Return releases with their next children, so many each."""
    if not taken:
        return []
    columns: dict[str, object] = {
        "roots": uuids(release.root_run_id for release in taken),
        "run_ids": uuids(release.run_id for release in taken),
        "job_ids": uuids(release.job_id for release in taken),
        "graph_at": instants(release.graph_at for release in taken),
        "cursors": uuids(release.cursor_id for release in taken),
        "limit": each + 1,
    }
    children: dict[int, list[Child]] = {}
    for child in read_rows(connection, rows_of(Child._make), statement, columns):
        children.setdefault(child.place, []).append(child)
    own = [children.get(place, []) for place in range(1, len(taken) + 1)]
    return [_Share(one, found[:each], len(found) > each) for one, found in zip(taken, own, strict=True)]


def _plan(shares: Sequence[_Share], workflows: Mapping[UUID, Workflow]) -> _Plan:
    plan = _Plan()
    for share in shares:
        release = share.release
        workflow = workflows.get(release.root_run_id)
        opens_none = release.is_of_root and not release.opens
        if workflow is None or workflow.state not in ("open", "paused") or opens_none:
            plan.drained.append(release)
        elif workflow.state == "paused":
            plan.paused.append(release)
        else:
            for child in share.children:
                add_mark(plan.marks, release, child)
            if share.rest:
                plan.cursors[release.id] = share.children[-1].id
                plan.more = True
            else:
                plan.drained.append(release)
    return plan


def _write(
    connection: Conn,
    installation: Installation,
    marks: Sequence[Mark],
    jobs: Mapping[UUID, ChildJob],
    *,
    workflows: Mapping[UUID, Workflow],
    now: datetime,
) -> int:
    reasons = {mark.run_id: reason for mark in marks if mark.is_decided and (reason := _skipped(mark, jobs))}
    first = [mark for mark in marks if mark.is_first]
    versions = read_versions_at(connection, {(mark.job_id, instant_of(mark.release)) for mark in first})
    new = [
        new_child(
            versions[mark.job_id, instant_of(mark.release)],
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
    left = lock_blocked(connection, waiting)
    delays = find_delays(connection, [mark.run_id for mark in marks if mark.is_decided and mark.release.is_in_batch])
    unblock(connection, installation, [run for run in left.values() if run.run_id not in reasons], now, delays)
    skipped = [run for run in reasons if run in left or run not in waiting]
    ends = [RunEnd(run_id, 0, RunState.SKIPPED, reason=reasons[run_id]) for run_id in skipped]
    # Without `freed_keys`: a run gets a place of its key in a claim, or after one. A blocked run was never claimed.
    finish_runs(connection, installation, ends)
    return len(new) + len(left)


def _skipped(mark: Mark, jobs: Mapping[UUID, ChildJob]) -> SkipReason | None:
    """Return the reason why a decided child is skipped; None if it runs."""
    if mark.release.is_in_batch:
        return SkipReason.PARENTS if mark.total_unmet else None
    return skip_reason(jobs[mark.job_id], mark.total_unmet)
