"""Release quarantined jobs by the order of an operator."""

from collections.abc import Sequence
from uuid import UUID

from tidewheel.intake.locks import lock_jobs_by_id
from tidewheel.postgres.session import Conn
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.release import ReleasedJob, release_quarantined


def release_jobs(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> list[ReleasedJob]:
    """Release those of these jobs that are quarantined, in the caller's transaction; return them."""
    locked = lock_jobs_by_id(connection, installation, job_ids)
    timers = [locked.timers[job] for job in sorted(locked.quarantined)]
    return release_quarantined(connection, installation, timers, now=locked.now)
