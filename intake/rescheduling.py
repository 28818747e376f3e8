"""`job.reschedule`: set when a fixed_delay job runs next, as `next_in` of a run does.

The time counts from the end of the last run by the timer, within the bounds of the job, and ends at the earliest now.
So `explain` and the audit need no rule of their own (ADR 0091). It moves a timer that waits for its instant. The others
wait for an end that sets their next time: that of a run, a pause, a freeze or a quarantine.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, refuse
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import JobReschedule
from tidewheel.jobs.values import format_duration, format_timestamp
from tidewheel.outbox import OutboxRow
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.parse import read_schedule
from tidewheel.schedules.schedule import FixedDelay
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.events import lifecycle_row

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
    delays: dict[UUID, timedelta] = {}
    refused: dict[UUID, Refused] = {}
    for received in batch:
        try:
            delays[received.job_id] = _delay(received, locked)
        except Refused as error:
            refused[received.job_id] = error.without_frames()
    at = _move(writing, delays, locked.now)
    refused |= {job: _never_ran(locked.timers[job].scheduled_at) for job in delays.keys() - at}
    moved = [each for each in batch if each.job_id in at and at[each.job_id] != locked.timers[each.job_id].scheduled_at]
    writing.append([_event(writing, each, locked, at[each.job_id]) for each in moved])
    return [
        rejected(each, refused[each.job_id])
        if each.job_id in refused
        else _accepted(each, locked.jobs[each.job_id], at[each.job_id], unchanged=each not in moved)
        for each in batch
    ]


def _delay(received: ReceivedRequest, locked: Locked) -> timedelta:
    """Return the time from the end of the last run, within the bounds of the job."""
    job, timer = locked.jobs.get(received.job_id), locked.timers.get(received.job_id)
    if job is None or not job.exists:
        raise UnknownJob(received.tenant, received.key or "")
    schedule = read_schedule(job.schedule_json or "", job.job_id)
    if not isinstance(schedule, FixedDelay):
        refuse("key", "the schedule of the job is no fixed_delay", "move one occurrence with job.move")
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
    return min(max(received.of(JobReschedule).next_in, least), most)


def _move(writing: Writing, delays: Mapping[UUID, timedelta], now: datetime) -> dict[UUID, datetime]:
    """Move timers; return the next instant of those that have had a run."""
    if not delays:
        return {}
    columns = {"job_ids": uuids(delays), "delays": list(delays.values()), "now": now}
    return dict(cast("list[tuple[UUID, datetime]]", writing.read(_SQL["reschedule_timers"], **columns)))


def _never_ran(at: datetime) -> InvalidInput:
    problem = "the job has not run yet, so there is no end to count from"
    return InvalidInput([FieldError("key", problem, f"its first run is due at {format_timestamp(at)}")])


def _event(writing: Writing, received: ReceivedRequest, locked: Locked, to: datetime) -> OutboxRow:
    job, timer = locked.jobs[received.job_id], locked.timers[received.job_id]
    return lifecycle_row(
        writing.installation,
        kind="job.occurrence_moved",
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job.key,
        job_version=job.version,
        shard=job.shard,
        now=locked.now,
        reason=received.of(JobReschedule).reason,
        detail={"at": format_timestamp(timer.scheduled_at), "to": format_timestamp(to)},
    )


def _accepted(received: ReceivedRequest, job: JobRow, at: datetime, *, unchanged: bool) -> Reply:
    facts = {"job_id": str(job.job_id), "job_version": job.version, "next_run_at": at}
    return accepted(received, **facts, unchanged=unchanged)
