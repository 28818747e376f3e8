"""Append the events `run.started` and `run.retrying`, where `events.runs` is `all`.

The transaction of the claim, or of the attempt's end, writes them. While the setting is `ends`, nothing is read or
written here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process import tracing
from tidewheel.runs import sequence_of
from tidewheel.schemas.generated import records
from tidewheel.transitions.claim import Started
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import DEFINITIONS

if TYPE_CHECKING:
    from tidewheel.transitions.requeue import Requeue, RequeuedRun

_READ_STARTED = Statements("tidewheel.transitions")["read_started"]


class _StartedRun(NamedTuple):
    """The columns of a started run that its event needs."""

    run_id: UUID
    job_id: UUID
    job_key: str
    tenant: str
    shard: int
    queue: str
    lane: str
    job_version: int
    traceparent: str | None


def append_started(connection: Conn, installation: Installation, started: Sequence[Started], executor_id: UUID) -> None:
    """Append the event of each attempt that this transaction has started."""
    if not installation.run_events or not started:
        return
    with connection.cursor(row_factory=rows_of(_StartedRun._make), binary=True) as cursor:
        found = cursor.execute(_READ_STARTED, {"run_ids": uuids(one.run_id for one in started)})
        runs = {run.run_id: run for run in found}
    rows = (
        lifecycle_row(
            installation,
            kind="run.started",
            tenant=run.tenant,
            job_id=run.job_id,
            job_key=run.job_key,
            job_version=run.job_version,
            shard=run.shard,
            now=one.started_at,
            detail={"executor_id": str(executor_id), "queue": run.queue, "lane": run.lane},
            run=(one.run_id, one.attempt, sequence_of(one.attempt, ended_running=None)),
            traceparent=tracing.traceparent_of(one.run_id, run.traceparent),
        )
        for one in started
        if (run := runs.get(one.run_id)) is not None
    )
    append(connection, rows, shards=installation.shards)


def append_retrying(
    connection: Conn,
    installation: Installation,
    requeued: "Iterable[tuple[Requeue, RequeuedRun]]",
    requests: Mapping[UUID, records.RunRequest],
) -> None:
    """Append the event of each attempt that this transaction ends, and that another one follows."""
    if not installation.run_events:
        return
    rows = (
        lifecycle_row(
            installation,
            kind="run.retrying",
            tenant=run.tenant,
            job_id=run.job_id,
            job_key=DEFINITIONS.of(requests[run.run_id].definition).job_key,
            job_version=run.job_version,
            shard=run.shard,
            now=run.ended_at,
            reason=end.outcome.value,
            detail=_detail(end, run),
            run=(run.run_id, end.attempt, sequence_of(end.attempt, ended_running=True)),
            traceparent=tracing.traceparent_of(run.run_id, requests[run.run_id].traceparent),
        )
        for end, run in requeued
    )
    append(connection, rows, shards=installation.shards)


def _detail(end: "Requeue", run: "RequeuedRun") -> dict[str, str]:
    error = {"error_type": end.error_type, "error_message": end.error_message}
    given = {name: value for name, value in error.items() if value is not None}
    return {"next_attempt_at": format_timestamp(run.publish_at), **given}
