"""Jobs that there are not yet, and that nothing is to be looked up for: what a submit makes of each.

A new job has no timer, run, override or tombstone to settle. Only jobs of a known pattern come by here, and only where
nothing is refused; all others, and those that exist, are for `submit`.
"""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.errors import Refused
from tidewheel.intake.next_version import OLDEST_ONCE, anchored, first_anchor
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec_cache import CachedSpec, ScheduleTemplate
from tidewheel.jobs.strict_json import canonical
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules import simple as fixed_delay
from tidewheel.schedules import simple as once
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule, schedule_from_text
from tidewheel.schedules.policies import CatchUp

_FIND_JOBS = Statements("tidewheel.intake")["find_jobs"]

FIRST = 1  # the version of a job that is new
_NO_JOB = UUID(int=0)  # whose schedule names no job


class ScheduleStart(NamedTuple):
    """How a schedule begins.

    Args:
        text: The schedule in full, the memo key of recurrence.
        anchor: When its interval or fixed delay was first accepted.
        next_at: The first instant; None where there are triggers alone.
    """

    text: str
    anchor: datetime | None
    next_at: datetime | None


class NewJob(NamedTuple):
    """A job to be made.

    Args:
        job_id: Derived from tenant and key.
        job_text: The same as text.
        tenant: Whose.
        key: Its key.
        known: Its pattern and schedule.
        named: Whether the spec names its key itself.
        payload: What its runs are handed.
        spec_hash: Of the spec as submitted.
        start: How its schedule begins.
    """

    job_id: UUID
    job_text: str
    tenant: str
    key: str
    known: CachedSpec
    named: bool
    payload: bytes | None
    spec_hash: bytes
    start: ScheduleStart

    @property
    def next_run_at(self) -> datetime | None:
        """What replies say of it."""
        return None if self.known.pattern.spec.paused else self.start.next_at


class ScheduleStarts:
    """How schedules begin at one instant, each found out once.

    Args:
        now: The database's clock.
        spread: As of `first_anchor`.
    """

    def __init__(self, now: datetime, *, spread: bool = False) -> None:
        self.now, self._spread = now, spread
        self._found: dict[tuple[ScheduleTemplate, datetime | None], ScheduleStart | None] = {}

    def of(self, known: CachedSpec, job_id: UUID) -> ScheduleStart | None:
        """How a new job begins; None where it is out of the ordinary, or to be refused."""
        pattern, timing = known
        anchor = first_anchor(timing.document, job_id, self.now, spread=self._spread)
        try:
            found = self._found[timing, anchor]
        except KeyError:
            found = self._found[timing, anchor] = _begin(timing, anchor, self.now)
        skips = pattern.spec.catch_up == CatchUp.SKIP.value
        late = skips and found and timing.kind == "once" and found.next_at and found.next_at <= self.now
        return None if late else found


def new_job(received: ReceivedRequest, starts: ScheduleStarts) -> NewJob | None:
    """The job that a submit makes where there is none; None where it is out of the ordinary, or to be refused."""
    request = received.request
    assert isinstance(request, JobSubmit)  # noqa: S101 - by accept's table
    spec, known, key = request.job, request.known, received.key
    start = starts.of(known, received.job_id) if known and key else None
    if start is None or known is None or key is None:
        return None
    return NewJob(
        job_id=received.job_id,
        job_text=str(received.job_id),
        tenant=received.tenant,
        key=key,
        known=known,
        named=spec.key is not None,
        payload=spec.payload,
        spec_hash=received.spec_hash,
        start=start,
    )


def find_jobs(connection: Conn, job_ids: Collection[UUID]) -> set[UUID]:
    """Which of these jobs there are, deleted ones among them."""
    found = connection.execute(_FIND_JOBS, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return {job for (job,) in cast("list[tuple[UUID]]", found)}


def _begin(timing: ScheduleTemplate, anchor: datetime | None, now: datetime) -> ScheduleStart | None:
    if any(uses_hash(str(each)) for each in cast("list[object]", timing.document.get("expressions", ()))):
        return None  # each job has times of its own
    document = anchored(timing.document, anchor)
    text = canonical(document).decode()
    try:
        # A cron is shared with every batch; what names an instant of its own is not worth remembering.
        schedule = schedule_from_text(text, _NO_JOB) if timing.kind == "cron" else parse_schedule(document)
        ensure_can_fire(schedule, now)
    except Refused:
        return None
    match schedule:
        case once.Once():
            return ScheduleStart(text, None, schedule.at) if schedule.at >= now - OLDEST_ONCE else None
        case fixed_delay.FixedDelay():
            return ScheduleStart(text, anchor, schedule.due(now, None))
        case _:
            return ScheduleStart(text, anchor, schedule.after(now))
