"""Release quarantined jobs: their timers are due again from the position at which they stopped.

The next firing decides what passed meanwhile by the job's `catch_up`, as after any downtime. So each occurrence fires,
or is recorded as skipped. A job that fails again is quarantined again.
"""

from collections.abc import Sequence
from uuid import UUID

from tidewheel.intake.locks import JobRow, lock_jobs_by_id
from tidewheel.intake.timers import TimerToPut, put_timers
from tidewheel.postgres.session import Conn
from tidewheel.schedules.decision import HoldReason
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import find_open_fixed_delay_runs


def release_jobs(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> list[JobRow]:
    """Release those of these jobs that are quarantined, in the caller's transaction; return them."""
    locked = lock_jobs_by_id(connection, installation, job_ids)
    jobs = [locked.jobs[job] for job in sorted(locked.quarantined) if job in locked.jobs and locked.jobs[job].exists]
    waiting = find_open_fixed_delay_runs(connection, [locked.timers[job.job_id] for job in jobs])
    put_timers(
        connection,
        [
            TimerToPut(
                job_id=job.job_id,
                tenant=job.tenant,
                shard=job.shard,
                version=job.version,
                scheduled_at=locked.timers[job.job_id].scheduled_at,
                hold_reason=_hold(job, waits=job.job_id in waiting),
                until=job.paused_until,
            )
            for job in jobs
        ],
    )
    append_job_events(connection, installation, "job.released", jobs, now=locked.now, reasons={})
    return jobs


def _hold(job: JobRow, *, waits: bool) -> HoldReason | None:
    if job.paused:
        return HoldReason.PAUSE
    return HoldReason.RUN if waits else None
