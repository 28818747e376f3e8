"""Setting timers after a change; whoever calls has locked the jobs and settled what was overdue."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.arrays import uuids
from tidewheel.db import Conn
from tidewheel.occurrences import Held
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.intake")
_PUT_TIMERS = _SQL["put_timers"]
_READ_TIMERS = _SQL["read_timers"]
_FIND_CHAINED = _SQL["find_chained"]


@dataclass(frozen=True, slots=True)
class TimerToPut:
    """Where a job's timer is to stand.

    Args:
        job_id: The job.
        tenant: Its tenant.
        shard: Its shard.
        version: The version it fires.
        scheduled_at: The first instant that nothing is recorded of yet.
        due_at: When firing must look; None: at `scheduled_at`.
        held: Why it is not due then.
        until: When a pause ends by itself.
    """

    job_id: UUID
    tenant: str
    shard: int
    version: int
    scheduled_at: datetime
    due_at: datetime | None = None
    held: Held | None = None
    until: datetime | None = None


def put_timers(connection: Conn, timers: Sequence[TimerToPut]) -> None:
    """Set timers; what people said about single occurrences goes on counting."""
    if not timers:
        return
    columns: dict[str, object] = {
        "job_ids": [timer.job_id for timer in timers],
        "tenants": [timer.tenant for timer in timers],
        "shards": [timer.shard for timer in timers],
        "due_at": [_due_at(timer) for timer in timers],
        "scheduled_at": [timer.scheduled_at for timer in timers],
        "versions": [timer.version for timer in timers],
        "held": [timer.held for timer in timers],
    }
    connection.execute(_PUT_TIMERS, columns)


def next_instants(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """When these jobs' timers are due next; nothing for those that are held."""
    if not job_ids:
        return {}
    found = connection.execute(_READ_TIMERS, {"job_ids": list(job_ids)}, binary=True).fetchall()
    return {job: at for job, at in found if isinstance(job, UUID) and isinstance(at, datetime)}


def chained(connection: Conn, job_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these jobs have a timer-made run that is open: a fixed_delay's next instant waits for its end."""
    if not job_ids:
        return set()
    rows = connection.execute(_FIND_CHAINED, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return {job for (job,) in rows if isinstance(job, UUID)}


def _due_at(timer: TimerToPut) -> str:
    at = timer.due_at or timer.scheduled_at if timer.held is None else timer.until
    return "infinity" if at is None else at.isoformat()
