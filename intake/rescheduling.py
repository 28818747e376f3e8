"""`job.reschedule`: set when a fixed_delay job runs next, as `next_in` of a run does.

The time counts from the end of the last run by the timer, within the bounds of the job. The run is due at the earliest
now and at `start_at`. So `explain` and the audit need no rule of their own (ADR 0091). It moves a timer that waits for
its instant. The others wait for an end that sets their next time: that of a run, a pause, a freeze or a quarantine.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.errors import Refused, UnknownJob, refuse
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import JobReschedule
from tidewheel.jobs.values import format_duration, format_timestamp
from tidewheel.outbox import OutboxRow
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.parse import read_schedule
from tidewheel.schedules.schedule import FixedDelay, Manual
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.events import job_event
from tidewheel.transitions.timers import LockedTimer, move_timers

_SQL = Statements("tidewheel.intake")

_HELD: Mapping[str, tuple[str, str]] = {
    HoldReason.RUN: ("its run has not ended", "send this after its end, or call next_in in its handler"),
    HoldReason.PAUSE: ("the job is paused", "resume the job first"),
    HoldReason.FREEZE: ("the job is frozen", "thaw it first"),
    HoldReason.QUARANTINED: ("the job is quarantined", "release the job first"),
}


def apply_reschedules(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Move the timers of different jobs."""
    locked = lock_jobs(writing, batch)
    columns = {"job_ids": uuids({received.job_id for received in batch})}
    ends = dict(cast("list[tuple[UUID, datetime]]", writing.read(_SQL["find_last_ends"], **columns)))
    replies: list[Reply] = []
    moved: list[tuple[UUID, Decision]] = []
    events: list[OutboxRow] = []
    for received in batch:
        try:
            at = _next_at(received, locked, ends.get(received.job_id))
        except Refused as error:
            replies.append(rejected(received, error.without_frames()))
            continue
        timer = locked.timers[received.job_id]
        unchanged = at == timer.scheduled_at
        if not unchanged:
            moved.append((received.job_id, Decision(next_at=at, overridden=timer.overridden)))
            events.append(_event(writing, received, locked, at))
        replies.append(_accepted(received, locked.jobs[received.job_id], at, unchanged=unchanged))
    move_timers(writing.connection, moved)
    writing.append(events)
    return replies


def _next_at(received: ReceivedRequest, locked: Locked, end: datetime | None) -> datetime:
    schedule, timer = _movable(received, locked)
    if end is None:
        problem = "no run of the job is stored, so there is no end to count from"
        refuse("key", problem, f"send this after its next run, which is due at {format_timestamp(timer.scheduled_at)}")
    least, most = schedule.delays
    delay = min(max(received.of(JobReschedule).next_in, least), most)
    bounds = schedule.bounds
    at = max(end + delay, locked.now, bounds.start_at or locked.now)
    if bounds.end_at is not None and at > bounds.end_at:
        problem = f"the next run would be due at {format_timestamp(at)}, after end_at {format_timestamp(bounds.end_at)}"
        refuse("next_in", problem, "send a shorter one, or submit the job with a later end_at")
    return at


def _movable(received: ReceivedRequest, locked: Locked) -> tuple[FixedDelay, LockedTimer]:
    """Return the schedule and the timer of a job whose next instant may move."""
    job, timer = locked.jobs.get(received.job_id), locked.timers.get(received.job_id)
    if job is None or not job.exists:
        raise UnknownJob(received.tenant, received.key or "")
    schedule = read_schedule(job.schedule_json or "", job.job_id)
    if not isinstance(schedule, FixedDelay):
        remedy = "trigger it with job.trigger" if isinstance(schedule, Manual) else "move an occurrence with job.move"
        refuse("key", "the schedule of the job is no fixed_delay", remedy)
    least, most = schedule.delays
    if least == most:
        problem = f"the job allows no other interval than {format_duration(least)}"
        refuse("next_in", problem, "add min or max beside its fixed_delay")
    if timer is None:
        refuse("key", "the job has no next run", "submit it with a later end_at")
    if timer.hold_reason is not None:
        refuse("key", *_HELD[HoldReason(timer.hold_reason)])
    if timer.scheduled_at <= locked.now:
        refuse("key", "its next run is due now", "send this after the end of that run")
    return schedule, timer


def _event(writing: Writing, received: ReceivedRequest, locked: Locked, to: datetime) -> OutboxRow:
    job, timer = locked.jobs[received.job_id], locked.timers[received.job_id]
    reason = received.of(JobReschedule).reason
    detail = {"at": format_timestamp(timer.scheduled_at), "to": format_timestamp(to)}
    return job_event(writing.installation, "job.occurrence_moved", job, locked.now, reason=reason, detail=detail)


def _accepted(received: ReceivedRequest, job: JobRow, at: datetime, *, unchanged: bool) -> Reply:
    facts = {"job_id": str(job.job_id), "job_version": job.version, "next_run_at": at}
    return accepted(received, **facts, unchanged=unchanged)
