"""The runs of children: their jobs, the versions in force, new runs, and blocked runs that are queued."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import JobId, RunId
from tidewheel.outbox import append
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, Gate, Move, RunState, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.create import NewRun, RunInputs
from tidewheel.transitions.held_runs import hold_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.releases import Release
from tidewheel.transitions.run_messages import DEFINITIONS, build_requests, read_definitions, request_rows

_SQL = Statements("tidewheel.transitions")
_LOCK_JOBS_FOR_SHARE = _SQL["lock_jobs_for_share"]
_READ_CHILD_JOBS = _SQL["read_child_jobs"]
_READ_CHILD_VERSIONS = _SQL["read_child_versions"]
_LOCK_BLOCKED = _SQL["lock_blocked"]
_UNBLOCK_RUNS = _SQL["unblock_runs"]

NOW = datetime(9999, 1, 1, tzinfo=UTC)
"""In place of an instant: the version in force now."""

_AT_ONCE = timedelta(0)


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
    connection.execute(_LOCK_JOBS_FOR_SHARE, columns)
    with connection.cursor(row_factory=rows_of(ChildJob._make), binary=True) as cursor:
        return {job.job_id: job for job in cursor.execute(_READ_CHILD_JOBS, columns)}


def skip_reason(job: ChildJob, unmet: int) -> str | None:
    """Return the reason why a decided child is skipped; None if it runs."""
    if job.deleted:
        return "deleted"
    if unmet:
        return "parents"
    return "paused" if job.paused else None


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
        return {(row.job_id, row.at): row for row in cursor.execute(_READ_CHILD_VERSIONS, columns)}


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
    with connection.cursor(row_factory=rows_of(Blocked._make), binary=True) as cursor:
        return {run.run_id: run for run in cursor.execute(_LOCK_BLOCKED, columns)}


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
    with connection.cursor(row_factory=class_row(PromotedRun), binary=True) as cursor:
        unblocked = cursor.execute(_UNBLOCK_RUNS, columns).fetchall()
    if held:
        hold_runs(connection, {run.run_id: run.tenant for run in runs if run.run_id in held})
    queued = [run for run in unblocked if run.run_id not in held]
    append(
        connection, request_rows(queued, build_requests(connection, queued), installation), shards=installation.shards
    )
