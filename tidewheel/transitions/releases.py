"""Releases of runs of workflows: written when a run ends, taken and settled by a drain.

A release is the only trace of an end that the children need. `drain` reads it, in the scheduler. So the end of a run
waits for no join, and a completion in a client's own transaction writes one more row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import run_bucket, shard_of
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.tracing import child_traceparent_of
from tidewheel.runs import Gate
from tidewheel.transitions.finished import ClosedRun, FinishedRun, opens

_SQL = Statements("tidewheel.transitions")
_ADD_RELEASES = _SQL["add_releases"]
_TAKE_RELEASES = _SQL["take_releases"]
_TAKE_GIVEN_RELEASES = _SQL["take_given_releases"]
_DROP_RELEASES = _SQL["drop_releases"]
_POSTPONE_RELEASES = _SQL["postpone_releases"]
_ADVANCE_RELEASES = _SQL["advance_releases"]
_FAIL_RELEASE = _SQL["fail_release"]

_NEVER = "infinity"
_MAX_FAILURES = 5  # drains a minute apart; then an operator looks at it
_MAX_ERROR = 1000  # characters


NO_GRAPH = datetime(1970, 1, 1, tzinfo=UTC)
"""In place of the instant of the graph, in the occurrence of a batch."""


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
    started_at: datetime | None
    holds: bool
    cursor_id: UUID | None
    traceparent: str | None = None

    @property
    def is_in_batch(self) -> bool:
        """True if the run belongs to a batch: its occurrence has no graph."""
        return self.graph_at == NO_GRAPH

    @property
    def is_of_root(self) -> bool:
        """True if the run is the root's first one, whose release opens the occurrence."""
        return self.run_id == self.root_run_id

    @property
    def opens(self) -> bool:
        """True if the root's end opens an occurrence."""
        return opens(self.state, began=self.began)


def write_releases(connection: Conn, finished: Sequence[FinishedRun], shards: int) -> bool:
    """Write the releases of ended runs of workflows; return True if a scheduler has work after the commit."""
    released = [run for run in finished if run.row.gates and run.row.gates & Gate.FLOW]
    if not released:
        return False
    roots = [_root(run.row) for run in released]
    columns: dict[str, object] = {
        "shards": integers(shard_of(run_bucket(root), shards) for root in roots),
        "roots": uuids(roots),
        "generations": integers(run.row.generation or 0 for run in released),
        "scheduled_at": instants(run.row.scheduled_at for run in released),
        "graph_at": instants(_graph_at(run.row) for run in released),
        "run_ids": uuids(run.end.run_id for run in released),
        "job_ids": uuids(run.row.job_id for run in released),
        "tenants": texts([run.row.tenant for run in released]),
        "states": words(run.state for run in released),
        "traceparents": [child_traceparent_of(run.end.run_id, run.request.traceparent) for run in released],
        "began": words("true" if run.row.attempt else "false" for run in released),
        "started_at": instants(run.row.started_at for run in released),
        "holds": words("true" if run.keeps_place else "false" for run in released),
    }
    connection.execute(_ADD_RELEASES, columns)
    return True


def _graph_at(row: ClosedRun) -> datetime | None:
    """Return the instant of the graph, for the root's first run.

    No drain comes before it, also if the run was moved ahead.
    """
    if _root(row) != row.run_id:
        return None
    return row.scheduled_at if row.started_at is None else min(row.scheduled_at, row.started_at)


def _root(row: ClosedRun) -> UUID:
    return row.workflow_run_id or row.run_id


def take_releases(connection: Conn, shards: Sequence[int], ids: Sequence[int] | None, limit: int) -> list[Release]:
    """Lock due releases of these shards, the oldest first, or these releases alone; skip locked ones."""
    columns: dict[str, object] = {"shards": list(shards), "ids": list(ids or ()), "limit": limit}
    statement = _TAKE_RELEASES if ids is None else _TAKE_GIVEN_RELEASES
    with connection.cursor(row_factory=class_row(Release), binary=True) as cursor:
        return cursor.execute(statement, columns).fetchall()


def postpone_releases(connection: Conn, ids: Sequence[int], until: datetime) -> None:
    """Set releases aside until an instant; the caller has locked them or no drain takes them."""
    connection.execute(_POSTPONE_RELEASES, {"ids": list(ids), "due_at": until})


def fail_release(connection: Conn, release: int, error: Exception, pause: timedelta) -> bool:
    """Postpone a release that could not be drained; return True if it is quarantined now.

    A resume of its occurrence, or a cancel, makes it due again.
    """
    text = f"{type(error).__name__}: {error}".replace("\0", " ")[:_MAX_ERROR]
    columns: dict[str, object] = {"id": release, "error": text, "last": _MAX_FAILURES, "pause": pause}
    return connection.execute(_FAIL_RELEASE, columns).fetchone() == (True,)


def settle_releases(
    connection: Conn, drained: Sequence[Release], paused: Sequence[Release], cursors: Mapping[int, UUID]
) -> None:
    """Delete the drained releases, set those of paused occurrences aside, move the cursors of the others."""
    if drained:
        connection.execute(_DROP_RELEASES, {"ids": [release.id for release in drained]})
    if paused:
        connection.execute(_POSTPONE_RELEASES, {"ids": [release.id for release in paused], "due_at": _NEVER})
    if cursors:
        connection.execute(_ADVANCE_RELEASES, {"ids": list(cursors), "cursors": uuids(cursors.values())})
