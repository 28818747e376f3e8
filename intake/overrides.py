"""`job.skip`, `job.move` and `job.unskip`: what people say about one coming occurrence, named by its nominal instant.

Under the job's locks: what is overdue is settled, what was written ahead is taken back, and the timer is set to the
first instant that nothing is recorded of, due when firing must look. An occurrence whose run stands even then has begun
meanwhile: nothing is said about it any more. A pause goes on: what it has passed over is decided when it ends. Rows
written: overrides, timers; skips, where no timer comes by any more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, ScheduleRefused, UnknownJob
from tidewheel.intake.lifecycle import existing
from tidewheel.intake.locks import JobRow, Locked, apply_overdue, job_id_of, lock_jobs
from tidewheel.intake.override_rules import Coming, drop_moves, forget_overrides, read_coming_overrides
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, put_timers, read_timer_runs
from tidewheel.jobs.requests import JobMove, JobSkip, JobUnskip
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.pg_arrays import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState
from tidewheel.schedules.decide import next_wakeup
from tidewheel.schedules.decision import HoldReason, Override
from tidewheel.schedules.policies import policies_from_text
from tidewheel.schedules.timer_state import DaySets, timer_state
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_PUT_OVERRIDES = _SQL["put_overrides"]
_REVIVE_JOBS = _SQL["revive_jobs"]

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a request makes of one occurrence.

    Args:
        request: The request.
        coming: What was to come before it.
        says: What is said from now on; None: nothing.
    """

    request: JobSkip | JobMove | JobUnskip
    coming: Coming
    says: Override | None

    @property
    def job(self) -> JobRow:
        """Whose occurrence it is."""
        return self.coming.job

    @property
    def changes(self) -> bool:
        """Whether anything else was said before."""
        was = self.coming.overrides.get(self.request.at)
        return was is None or self.says is None or was.moved_to != self.says.moved_to

    @property
    def gives_up(self) -> bool:
        """Whether a moved occurrence is left out whose own instant has passed: no timer comes by that any more."""
        return self.says is not None and self.says.moved_to is None and self.request.at <= self.coming.now

    @property
    def shifts_timer(self) -> bool:
        """Whether firing must look at other times from now on; a job without known instants has its own rules."""
        return self.changes and self.coming.computed


@dataclass(frozen=True, slots=True)
class _Place:
    """A timer, as far as deciding needs one."""

    job_id: UUID
    tenant: str
    schedule: str
    policy: str
    scheduled_at: datetime
    catch_up_end: datetime | None = None


def apply_overrides(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Skip, move or restore an occurrence each of different jobs, in the caller's transaction.

    Returns:
        An answer for each request, in their order.
    """
    locked = lock_jobs(connection, installation, batch)
    jobs = existing(locked, batch)
    day_sets = _day_sets(connection, jobs)
    said = read_coming_overrides(connection, [job.job_id for job in jobs], locked.now)
    changes: dict[UUID, _Change] = {}
    refused: dict[UUID, Refused] = {}
    for received in batch:
        job_id = job_id_of(received)
        try:
            if job_id not in said:
                raise UnknownJob(received.tenant, received.key or "")
            job = locked.jobs[job_id]
            changes[job_id] = _change(received, _coming(job, said[job_id].values(), day_sets, locked.now))
        except Refused as error:
            refused[job_id] = error
    wanted = [change for change in changes.values() if change.changes]
    after, begun = _make(connection, installation, locked, wanted, day_sets)
    refused |= begun
    return [
        rejected(received, refused[job_id_of(received)])
        if job_id_of(received) in refused
        else _answer(received, changes[job_id_of(received)], after, locked)
        for received in batch
    ]


def _day_sets(connection: Conn, jobs: Sequence[JobRow]) -> DaySets:
    wanted = {(job.tenant, name) for job in jobs for name in policies_from_text(job.policy or "{}").calendars}
    return read_day_sets(connection, wanted)


def _coming(
    job: JobRow, said: Iterable[Override], day_sets: DaySets, now: datetime, cursor: datetime | None = None
) -> Coming:
    """What is still to come of a locked job, from a cursor on, or from now.

    Raises:
        InvalidInput: Its schedule cannot be read.
    """
    overrides = {each.scheduled_at: each for each in said}
    place = _Place(job.job_id, job.tenant, job.schedule or "", job.policy or "{}", cursor or now + _TICK)
    try:
        return Coming(job, timer_state(place, day_sets, list(overrides.values())), overrides, now)
    except ScheduleRefused as unread:
        problem = f"the schedule of its version {job.version} cannot be read: {unread.errors[0].problem}"
        raise InvalidInput([FieldError("key", problem, "submit the job again")]) from unread


def _change(received: ReceivedRequest, coming: Coming) -> _Change:
    request = received.request
    match request:
        case JobSkip():
            return _Change(request, coming, coming.skipped(request.at))
        case JobMove():
            return _Change(request, coming, coming.moved(request.at, request.to))
        case _:
            assert isinstance(request, JobUnskip)  # noqa: S101 - by accept's table
            return _Change(request, coming, coming.restored(request.at))


def _make(
    connection: Conn, installation: Installation, locked: Locked, wanted: Sequence[_Change], day_sets: DaySets
) -> tuple[dict[UUID, Coming], dict[UUID, Refused]]:
    """Write changes of different jobs, but for those that come too late.

    Returns:
        What is to come of the jobs from now on, and why a change was not made.
    """
    if not wanted:
        return {}, {}
    shifting = [change for change in wanted if change.shifts_timer]
    # What a pause has passed over is for its end to decide, and nothing is written ahead in it.
    left = apply_overdue(connection, installation, locked, [c.job.job_id for c in shifting if not c.job.paused])
    begun = _begun(connection, shifting)
    made = [change for change in wanted if change.job.job_id not in begun]
    _write(connection, installation, made, locked.now)
    said = read_coming_overrides(connection, [change.job.job_id for change in wanted], locked.now)
    after: dict[UUID, Coming] = {}
    timers: list[TimerToPut] = []
    for change in wanted:
        job_id = change.job.job_id
        late = job_id in begun
        cursor = _cursor(change, locked, left.get(job_id), late=late)
        after[job_id] = _coming(change.job, said[job_id].values(), day_sets, locked.now, cursor)
        # Also where nothing is changed: what was taken back beside it must fire.
        if change.shifts_timer and (not late or job_id in left):
            timers.append(_timer(after[job_id], locked))
    put_timers(connection, timers)
    # What was written ahead may have been the last of its job.
    connection.execute(_REVIVE_JOBS, {"job_ids": [timer.job_id for timer in timers]})
    append(connection, [_event(change, installation, locked.now) for change in made], shards=installation.shards)
    return after, begun


def _begun(connection: Conn, shifting: Sequence[_Change]) -> dict[UUID, Refused]:
    """Those of settled jobs whose occurrence has a run all the same: an attempt has begun since the clock was read."""
    asked = [(change.job.job_id, change.request.at) for change in shifting]
    return {job: _has_a_run(at, state) for (job, at), state in read_timer_runs(connection, asked).items()}


def _has_a_run(at: datetime, state: RunState) -> InvalidInput:
    problem = f"{format_timestamp(at)} has become a run already, which is {state}"
    remedy = "trigger the job to run it again" if state in FINAL else "cancel its run"
    return InvalidInput([FieldError("at", problem, remedy)])


def _write(connection: Conn, installation: Installation, made: Sequence[_Change], now: datetime) -> None:
    """Write what is said from now on."""
    forget_overrides(connection, [(change.job.job_id, change.request.at) for change in made if change.says is None])
    drop_moves(connection, installation, [(each.job, each.request.at) for each in made if each.gives_up], now)
    said = [(change.job, change.says) for change in made if change.says is not None and not change.gives_up]
    reasons = {change.job.job_id: change.request.reason for change in made}
    if said:
        columns: dict[str, object] = {
            "job_ids": uuids(job.job_id for job, _ in said),
            "instants": instants(override.scheduled_at for _, override in said),
            "tenants": [job.tenant for job, _ in said],
            "moved_to": instants(override.moved_to for _, override in said),
            "reasons": [reasons[job.job_id] for job, _ in said],
            "now": now,
        }
        connection.execute(_PUT_OVERRIDES, columns)


def _cursor(change: _Change, locked: Locked, left: datetime | None, *, late: bool) -> datetime:
    """The first instant of a settled job that nothing is recorded of: whatever is ahead of now was taken back.

    What the request came too late for is recorded.
    """
    timer = locked.timers.get(change.job.job_id)
    stands = timer.scheduled_at if timer is not None and change.job.paused else left
    ahead = [change.request.at] if change.request.at > locked.now and not late else []
    return min([*ahead, stands] if stands is not None else ahead, default=locked.now + _TICK)


def _timer(coming: Coming, locked: Locked) -> TimerToPut:
    job, cursor = coming.job, coming.where.cursor
    return TimerToPut(
        job.job_id,
        job.tenant,
        job.shard,
        job.version,
        cursor,
        # Where nothing is left, firing finds that out, and the job is finished.
        due_at=next_wakeup(coming.where, cursor - _TICK) or cursor,
        hold_reason=_held(job, locked),
        until=job.paused_until,
    )


def _held(job: JobRow, locked: Locked) -> HoldReason | None:
    """Why the job's timer is not due at its instants; a fixed_delay's is not touched here."""
    if job.paused:
        return HoldReason.PAUSE
    timer = locked.timers.get(job.job_id)
    return HoldReason.QUARANTINED if timer is not None and timer.hold_reason == HoldReason.QUARANTINED else None


def _event(change: _Change, installation: Installation, now: datetime) -> OutboxRow:
    job, request = change.job, change.request
    happened = {JobSkip: "skipped", JobMove: "moved", JobUnskip: "restored"}[type(request)]
    detail = {"at": format_timestamp(request.at)}
    if isinstance(request, JobMove):
        detail["to"] = format_timestamp(request.to)
    return lifecycle_row(
        installation,
        kind=f"job.occurrence_{happened}",
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job.key,
        job_version=job.version,
        shard=job.shard,
        now=now,
        reason=request.reason,
        detail=detail,
    )


def _answer(received: ReceivedRequest, change: _Change, after: Mapping[UUID, Coming], locked: Locked) -> Reply:
    job = change.job
    coming = after.get(job.job_id, change.coming)
    return accepted(
        received,
        job_id=str(job.job_id),
        job_version=job.version,
        next_run_at=coming.next_run if _held(job, locked) is None else None,
        unchanged=not change.changes,
    )
