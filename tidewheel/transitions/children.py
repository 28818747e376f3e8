"""Runs of children in workflows: released by ended parents, with their jobs and versions in force.

A release is the only trace of an end that the children need. `drain` reads it, in the scheduler. So the end of a run
waits for no join, and a completion in a client's own transaction writes one more row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId, RunId, run_bucket, shard_of
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.tracing import child_traceparent_of
from tidewheel.runs import Cause, Gate, Move, RunState, SkipReason, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.finished import ClosedRun, FinishedRun, opens
from tidewheel.transitions.held_back import hold_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, append_requests, read_definitions
from tidewheel.transitions.new_runs import NewRun, RunInputs

_SQL = Statements("tidewheel.transitions")

NOW = datetime(9999, 1, 1, tzinfo=UTC)
"""In place of an instant: the version in force now."""

NO_GRAPH = datetime(1970, 1, 1, tzinfo=UTC)
"""In place of the instant of the graph, in the occurrence of a batch."""

_NEVER = "infinity"
_MAX_FAILURES = 5  # drains a minute apart; then an operator looks at it
_MAX_ERROR = 1000  # characters
_AT_ONCE = timedelta(0)


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
    connection.execute(_SQL["add_releases"], columns)
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
    statement = _SQL["take_releases"] if ids is None else _SQL["take_given_releases"]
    return read_rows(connection, class_row(Release), statement, columns)


def postpone_releases(connection: Conn, ids: Sequence[int], until: datetime) -> None:
    """Set releases aside until an instant; the caller has locked them or no drain takes them."""
    connection.execute(_SQL["postpone_releases"], {"ids": list(ids), "due_at": until})


def fail_release(connection: Conn, release: int, error: Exception, pause: timedelta) -> bool:
    """Postpone a release that could not be drained; return True if it is quarantined now.

    A resume of its occurrence, or a cancel, makes it due again.
    """
    text = f"{type(error).__name__}: {error}".replace("\0", " ")[:_MAX_ERROR]
    columns: dict[str, object] = {"id": release, "error": text, "last": _MAX_FAILURES, "pause": pause}
    return connection.execute(_SQL["fail_release"], columns).fetchone() == (True,)


def settle_releases(
    connection: Conn, drained: Sequence[Release], paused: Sequence[Release], cursors: Mapping[int, UUID]
) -> None:
    """Delete the drained releases, set those of paused occurrences aside, move the cursors of the others."""
    if drained:
        connection.execute(_SQL["drop_releases"], {"ids": [release.id for release in drained]})
    if paused:
        connection.execute(_SQL["postpone_releases"], {"ids": [release.id for release in paused], "due_at": _NEVER})
    if cursors:
        connection.execute(_SQL["advance_releases"], {"ids": list(cursors), "cursors": uuids(cursors.values())})


class ChildJob(NamedTuple):
    """A child's job, locked for share."""

    job_id: UUID
    shard: int
    paused: bool
    deleted: bool


class Version(NamedTuple):
    """The version of a job that was in force at an instant."""

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
    workflow_timeout_us: int | None
    holds_place: bool
    priority: int


class Blocked(NamedTuple):
    """A blocked run, locked."""

    run_id: UUID
    job_id: UUID
    job_version: int
    tenant: str


class _Unblocked(NamedTuple):
    run_id: UUID
    tenant: str
    publish_at: datetime


def lock_children(connection: Conn, job_ids: Iterable[UUID]) -> dict[UUID, ChildJob]:
    """Lock the children's jobs against deletion until their runs are written."""
    columns = {"job_ids": uuids(job_ids)}
    connection.execute(_SQL["lock_jobs_for_share"], columns)
    return {job.job_id: job for job in read_rows(connection, rows_of(ChildJob._make), _SQL["read_child_jobs"], columns)}


def skip_reason(job: ChildJob, unmet: int) -> SkipReason | None:
    """Return the reason why a decided child is skipped; None if it runs."""
    if job.deleted:
        return SkipReason.DELETED
    if unmet:
        return SkipReason.PARENTS
    return SkipReason.PAUSED if job.paused else None


def instant_of(release: Release) -> datetime:
    """Return the instant whose versions hold; a resume follows a correction and takes the current."""
    return release.graph_at if release.generation == 0 else NOW


def read_versions_at(connection: Conn, wanted: Iterable[tuple[UUID, datetime]]) -> dict[tuple[UUID, datetime], Version]:
    """Return the versions of jobs that were in force at an instant."""
    listed = sorted(wanted)
    if not listed:
        return {}
    columns = {"job_ids": uuids(job for job, _ in listed), "instants": instants(at for _, at in listed)}
    with connection.cursor(row_factory=rows_of(Version._make), binary=True) as cursor:
        return {(row.job_id, row.at): row for row in cursor.execute(_SQL["read_child_versions"], columns)}


def new_child(version: Version, run_id: RunId, release: Release, shard: int, now: datetime, *, blocked: bool) -> NewRun:
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
        priority=version.priority,
        blocked=blocked,
        inputs=None if release.traceparent is None else RunInputs(traceparent=release.traceparent),
    )


def lock_blocked(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, Blocked]:
    """Lock those of these runs that are blocked."""
    if not run_ids:
        return {}
    columns = {"run_ids": uuids(run_ids), "blocked": RunState.BLOCKED}
    return {run.run_id: run for run in read_rows(connection, rows_of(Blocked._make), _SQL["lock_blocked"], columns)}


def unblock(
    connection: Conn,
    installation: Installation,
    runs: Sequence[Blocked],
    now: datetime,
    delays: Mapping[UUID, timedelta],
) -> None:
    """Queue blocked runs that are locked, with their messages, as the rates of their tenants allow."""
    if not runs:
        return
    due = [_Unblocked(run.run_id, run.tenant, now + delays.get(run.run_id, _AT_ONCE)) for run in runs]
    delayed, held = installation.rates.shape(connection, due)
    stored = read_definitions(connection, [(run.job_id, run.job_version) for run in runs])
    definitions = [DEFINITIONS.of(stored[run.job_id, run.job_version]) for run in runs]
    columns: dict[str, object] = {
        "run_ids": uuids(run.run_id for run in runs),
        "starts_ms": [definition.schedule_to_start_ms for definition in definitions],
        "closes_ms": [definition.schedule_to_close_ms for definition in definitions],
        "publish_at": instants(delayed.get(run.run_id, run.publish_at) for run in due),
        "target": target(Move.PROMOTE),
    }
    unblocked = read_rows(connection, class_row(PromotedRun), _SQL["unblock_runs"], columns)
    if held:
        hold_runs(connection, {run.run_id: run.tenant for run in runs if run.run_id in held})
    queued = [run for run in unblocked if run.run_id not in held]
    append_requests(connection, installation, queued)
