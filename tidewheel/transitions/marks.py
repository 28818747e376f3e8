"""The marks of ended parents on their children, and the joins that sum them over several drains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.ids import RunId, child_run_id
from tidewheel.postgres.pg_binary import integers, texts, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.occurrences import MEETS
from tidewheel.transitions.releases import Release

_SQL = Statements("tidewheel.transitions")
_ADD_MARKS = _SQL["add_marks"]
_RAISE_MARKS = _SQL["raise_marks"]
_DROP_JOINS = _SQL["drop_joins"]


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
        sums |= _sums(connection.execute(_ADD_MARKS, _marked(joined), binary=True).fetchall())
    if again:
        # In order, so that no two drains wait for each other; the occurrence's lock excludes all others.
        sums |= _sums(connection.execute(_RAISE_MARKS, _marked(again), binary=True).fetchall())
    for mark in (*joined, *again):
        if mark.run_id in sums:
            mark.parents, mark.total, mark.total_unmet = sums[mark.run_id]
    found = [mark for mark in marks if not mark.is_joined or mark.run_id in sums]
    over = [mark.run_id for mark in found if mark.is_decided and mark.run_id in sums]
    if over:
        connection.execute(_DROP_JOINS, {"run_ids": uuids(over)})
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
