"""Spreads jobs that share a nominal instant: a delay that is the same whenever it is computed anew."""

from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from tidewheel.scheduler.recurrence.instants import microseconds


def jittered(
    occurrence: datetime,
    following: datetime | None,
    job_id: UUID,
    *,
    longest: timedelta = timedelta(0),
    percent: float = 0.0,
) -> datetime:
    """When the run of an occurrence may leave: at it or later, before the next one, never part of the run's identity.

    Args:
        occurrence: The nominal instant, aware.
        following: The next one; None when there is none.
        job_id: Two jobs get different delays, one job for one occurrence always the same.
        longest: The delay is shorter than this.
        percent: Likewise, in percent of the time to `following`, 0 to 100; nothing without one.

    >>> from datetime import UTC
    >>> noon, job = datetime(2026, 1, 1, 12, tzinfo=UTC), UUID(int=7)
    >>> later = jittered(noon, noon + timedelta(hours=1), job, longest=timedelta(minutes=5))
    >>> noon <= later < noon + timedelta(minutes=5)
    True
    """
    if following is not None:
        to_next = following - occurrence
        longest = min(to_next, max(longest, to_next * percent / 100))
    width = longest // timedelta(microseconds=1)
    if width <= 0:
        return occurrence
    digest = sha256(job_id.bytes + microseconds(occurrence).to_bytes(8, "big", signed=True)).digest()
    return occurrence + timedelta(microseconds=int.from_bytes(digest[:8], "big") % width)
