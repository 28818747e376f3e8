"""Release quarantined jobs: their timers are due again from the position at which they stopped.

The next firing decides what passed meanwhile by the job's `catch_up`, as after any downtime. So each occurrence fires,
or is recorded as skipped. A job that fails again is quarantined again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, find_open_fixed_delay_runs

_RELEASE_TIMERS = Statements("tidewheel.transitions")["release_timers"]


@dataclass(frozen=True, slots=True)
class ReleasedJob:
    """A job that was released."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int


def release_quarantined(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    *,
    now: datetime,
    until: datetime | None = None,
    reason: str | None = None,
) -> list[ReleasedJob]:
    """Release the jobs of these locked timers, in the caller's transaction; return the released ones.

    Args:
        timers: The timers as they were quarantined. A job that was edited or released since then stays as it is.
        until: The time before which none of them is tried again; None for at once.
    """
    if not timers:
        return []
    columns: dict[str, object] = {
        "job_ids": [timer.job_id for timer in timers],
        "positions": [timer.scheduled_at for timer in timers],
        "waiting": list(find_open_fixed_delay_runs(connection, timers)),
        "until": until,
    }
    with connection.cursor(row_factory=class_row(ReleasedJob), binary=True) as cursor:
        released = cursor.execute(_RELEASE_TIMERS, columns).fetchall()
    reasons = {job.job_id: reason for job in released}
    append_job_events(connection, installation, "job.released", released, now=now, reasons=reasons)
    return released
