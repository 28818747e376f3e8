"""Append lifecycle events of jobs to the outbox, for the topic `tidewheel.events`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tidewheel.ids import hashed_id, micros
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxLane, OutboxRow, append
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import Skip
from tidewheel.schemas.cloudevents import lifecycle_headers
from tidewheel.schemas.generated import records
from tidewheel.transitions.installation import Installation


def lifecycle_row(
    installation: Installation,
    *,
    kind: str,
    tenant: str,
    job_id: UUID,
    job_key: str,
    shard: int,
    now: datetime,
    job_version: int | None = None,
    reason: str | None = None,
    detail: Mapping[str, str] | None = None,
    run: tuple[UUID, int, int] | None = None,
    traceparent: str | None = None,
) -> OutboxRow:
    """Return the outbox row of one lifecycle event.

    Args:
        kind: The event's kind, such as `job.paused`.
        run: The run, its attempt, and the event's position within the run.
    """
    # The id is derived from the content, so that a repeated event has the same id.
    content = f"{job_id}|{kind}|{job_version}|{micros(now)}|{reason}|{sorted((detail or {}).items())}"
    run_id, attempt, sequence = run or (None, None, None)
    if run_id is not None:
        content = f"{run_id}|{kind}|{sequence}"
    event = records.LifecycleEvent(
        event_id=str(hashed_id(content.encode())),
        type=f"io.tidewheel.{kind}.v1",
        occurred_at=now,
        tenant=tenant,
        job_id=str(job_id),
        job_key=job_key,
        job_version=job_version,
        run_id=None if run_id is None else str(run_id),
        attempt=attempt,
        sequence=sequence,
        reason=reason,
        actor=None,
        detail=dict(detail or {}),
    )
    return OutboxRow(
        shard=shard,
        lane=OutboxLane.EVENTS,
        topic=installation.topics.events,
        key=event.job_id.encode(),
        value=installation.encode_event(event),
        publish_at=now,
        headers=lifecycle_headers(
            event, source=installation.source, traceparent=traceparent, content_type=installation.content_type
        ),
    )


class VersionFields(Protocol):
    """The columns of a job's version that its event needs."""

    @property
    def job_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def shard(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


class JobFields(VersionFields, Protocol):
    """The columns of a job that its event needs."""

    @property
    def key(self) -> str: ...  # noqa: D102


def append_job_events(
    connection: Conn,
    installation: Installation,
    kind: str,
    jobs: Sequence[JobFields],
    *,
    now: datetime,
    reasons: Mapping[UUID, str | None],
) -> None:
    """Append the lifecycle event of each changed job."""
    events = [
        lifecycle_row(
            installation,
            kind=kind,
            tenant=job.tenant,
            job_id=job.job_id,
            job_key=job.key,
            job_version=job.version,
            shard=job.shard,
            now=now,
            reason=reasons.get(job.job_id),
        )
        for job in jobs
    ]
    append(connection, events, shards=installation.shards)


def skip_event(installation: Installation, job: VersionFields, job_key: str, skip: Skip, now: datetime) -> OutboxRow:
    """Return the outbox row of the event of a span of occurrences that did not fire."""
    return lifecycle_row(
        installation,
        kind="occurrence.skipped",
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job_key,
        job_version=job.version,
        shard=job.shard,
        now=now,
        reason=skip.reason,
        detail={
            "first_at": format_timestamp(skip.first_at),
            "last_at": format_timestamp(skip.last_at),
            "occurrences": str(skip.occurrences),
            "is_exact": str(skip.exact).lower(),
        },
    )
