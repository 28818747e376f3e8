"""Compute the next version of a job: its schedule in full, its policy, and its next fire time.

Pure functions of the spec and of facts read under the job's lock. A job that does not exist yet has the version 0.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, ScheduleRefused
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.spec import JobSpec, policy_document, schedule_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.jobs.targets import TARGETS, TargetSpec
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import RunState
from tidewheel.schedules.calendars import ensure_open_days
from tidewheel.schedules.decide import next_wakeup
from tidewheel.schedules.decision import CatchUp, HoldReason
from tidewheel.schedules.parse import ensure_can_fire, schedule_from_text
from tidewheel.schedules.ranges import nth_occurrence
from tidewheel.schedules.schedule import FixedDelay, Once, Schedule
from tidewheel.schedules.timer_state import DaySets, timer_state

_SHIFTS_BY = ("exclude_calendars", "include_calendars", "on_excluded")

_BESIDE_SCHEDULE = {"start_at", "end_at", "max_runs", "exclude_calendars", "include_calendars"}

WITHOUT_OCCURRENCES = ("manual", "after")  # kinds of schedules that need no timer


@dataclass(frozen=True, slots=True)
class VersionInputs:
    """The facts about a job, after its overdue occurrences were applied, that its next version depends on.

    With `keep_cursor` the cursor stays `remaining_from`: the job is on hold, and its schedule and policies stay.
    """

    now: datetime
    remaining_from: datetime | None = None  # the first instant that the version in force has still to fire
    timer_used_up: bool = False  # by applying the overdue occurrences
    run_open: bool = False  # of the timer's instant
    keep_cursor: bool = False
    spread_anchor: bool = False  # a new interval starts at an instant derived from the job's id, as in a bulk load


@dataclass(frozen=True, slots=True)
class NextVersion:
    """A version to write."""

    job: JobRow
    number: int
    spec: JobSpec
    schedule_text: str  # in full, as `job_versions.schedule_json` has it
    policy_text: str
    anchor: datetime | None  # the time when its interval was first accepted
    interval_us: int | None
    paused: bool
    next_at: datetime | None  # the first instant without a record; None if the job can never fire again
    due_at: datetime | None  # the time of the timer's next poll; equal to `next_at` without calendars
    hold_reason: HoldReason | None
    effective: Schedule

    @property
    def created(self) -> bool:
        """True if the job did not exist before it, or was deleted."""
        return not self.job.exists

    @property
    def calendars(self) -> tuple[str, ...]:
        """The calendars that the spec names."""
        return (*self.spec.exclude_calendars, *self.spec.include_calendars)

    @property
    def kind(self) -> str:
        """The schedule's kind."""
        return str(json.loads(self.schedule_text)["kind"])

    @property
    def finished(self) -> bool:
        """True if the job has nothing to fire any more."""
        return self.next_at is None and self.kind not in WITHOUT_OCCURRENCES


def next_version(spec: JobSpec, job: JobRow, inputs: VersionInputs, day_sets: DaySets) -> NextVersion:
    """Return the version that a spec becomes; paths of a ScheduleRefused are relative to `job`."""
    interval_us, anchor = _interval_us(spec), _anchor(spec, job, inputs.now, spread=inputs.spread_anchor)
    text = schedule_text(spec, job, anchor or inputs.now, first=job.created_at if job.exists else inputs.now)
    policy = _policy_text(spec, job, text, inputs.now)
    paused = job.paused if job.exists else spec.paused
    held = HoldReason.PAUSE if paused else None
    schedule = schedule_from_text(text, job.job_id)
    state = timer_state(NextTimer(job, text, policy, inputs.now), day_sets)
    next_at: datetime | None
    due_at: datetime | None
    if inputs.keep_cursor and inputs.remaining_from is not None:
        next_at = due_at = inputs.remaining_from
    elif isinstance(schedule, Once):
        next_at = due_at = _once(schedule, job, text, inputs)
    elif isinstance(schedule, FixedDelay):
        next_at = due_at = _chain(schedule, job, interval_us or 0, inputs)
        held = held or (HoldReason.RUN if inputs.run_open else None)
    else:
        nominal, due_at = schedule.after(inputs.now), next_wakeup(state, inputs.now)
        # An occurrence shifted to another day may come before the next nominal instant.
        next_at = due_at if due_at is None or nominal is None else min(nominal, due_at)
    return NextVersion(
        job=job,
        number=job.version + 1,
        spec=spec,
        schedule_text=text,
        policy_text=policy,
        anchor=anchor,
        interval_us=interval_us,
        paused=paused,
        next_at=next_at,
        due_at=due_at,
        hold_reason=held,
        effective=state.effective,
    )


def same_schedule(spec: JobSpec, job: JobRow, now: datetime) -> bool:
    """Return True if a spec has the schedule and the policy of the version in force."""
    if not job.exists:
        return False
    text = schedule_text(spec, job, _anchor(spec, job, now) or now, first=job.created_at)
    return text == job.schedule_json and _policy_text(spec, job, text, now) == job.policy_json


def ensure_can_run(spec: JobSpec, job: JobRow, now: datetime, day_sets: DaySets, *, spread: bool = False) -> None:
    """Refuse a spec that can never fire; an edit counts `max_runs` from the first acceptance of the job."""
    anchor = _anchor(spec, job, now, spread=spread)
    text = schedule_text(spec, job, anchor or now, first=job.created_at if job.exists else now)
    schedule = schedule_from_text(text, job.job_id)
    ensure_can_fire(schedule, now)
    if isinstance(schedule, Once) and schedule.at <= now and CatchUp(spec.catch_up) is CatchUp.SKIP:
        problem = f"{format_timestamp(schedule.at)} has passed and catch_up is skip, so the job would never fire"
        raise ScheduleRefused(problem, "write a later time, or leave out catch_up to fire late", "once")
    policy = canonical(policy_document(spec)).decode()
    ensure_open_days(timer_state(NextTimer(job, text, policy, now), day_sets).effective, now)


def ensure_allowed(target: TargetSpec, allow_lists: AllowLists) -> None:
    """Refuse a target that no executor may run, by the allow-lists that intake knows."""
    try:
        TARGETS[target.type].check(allow_lists, target)
    except InvalidValue as refusal:
        paths = ((f"job.target.{error.path}", error) for error in refusal.errors)
        raise InvalidInput([FieldError(path, error.problem, error.remedy) for path, error in paths]) from refusal


def ensure_remembered(at: datetime, kept_since: datetime | None) -> None:
    """Refuse a `once` from before the first kept day: its run may be dropped, so that its id is free."""
    if kept_since is not None and at < kept_since:
        problem = f"{format_timestamp(at)} is too long ago; runs are kept since {format_timestamp(kept_since)}"
        raise ScheduleRefused(problem, "trigger the job instead, or write a later time", "once")


def ensure_not_fired(spec: JobSpec, job: JobRow, fired: RunState | None) -> None:
    """Refuse a `once` whose instant has a run already: its job was deleted and is submitted again."""
    at = once_at(spec, job.job_id)
    if at is not None and fired is not None:
        problem = f"{format_timestamp(at)} already became a run of this job (now {fired}) and cannot fire again"
        raise ScheduleRefused(problem, "trigger the job, or write another time", "once")


def schedule_text(spec: JobSpec, job: JobRow, anchor: datetime, *, first: datetime) -> str:
    """Return the canonical schedule; `schedules` caches parsed schedules by this text.

    The anchor is that of an interval without its own. `max_runs: n` ends with the n-th occurrence from `first` on, when
    the job was first accepted.
    """
    document = anchored(schedule_document(spec), anchor)
    text = canonical(document).decode()
    if spec.max_runs is None:
        return text
    last = nth_occurrence(schedule_from_text(text, job.job_id), first, spec.max_runs)
    return text if last is None else canonical({**document, "end_at": format_timestamp(last)}).decode()


def anchored(document: Mapping[str, object], anchor: datetime | None) -> Mapping[str, object]:
    """Return the document of a schedule, with an anchor for an interval that has none of its own."""
    if document["kind"] != "interval" or anchor is None:
        return document
    own = document["anchor"]
    return {**document, "anchor_fires": own is not None, "anchor": own or anchor.isoformat()}


def first_anchor(document: Mapping[str, object], job_id: UUID, now: datetime, *, spread: bool) -> datetime | None:
    """Return the anchor of a new job's interval or fixed delay; None for other schedules.

    `spread` shifts it by the job's id, so that thousands of loaded jobs are not due at one time. Anchors are whole
    seconds, so that the jobs of one second share a cached start.
    """
    interval_us = document.get("interval_us")
    if not isinstance(interval_us, int):
        return None
    if not spread or document["kind"] != "interval" or document["anchor"] is not None:
        return now
    return now.replace(microsecond=0) - timedelta(seconds=job_id.int % (interval_us // 1_000_000))


def once_at(spec: JobSpec, job_id: UUID) -> datetime | None:
    """Return the instant of a `once`; None for another schedule, or for one that cannot be read."""
    text = once_text(spec)
    if text is None:
        return None
    try:
        schedule = schedule_from_text(text, job_id)
    except ScheduleRefused:
        return None
    return schedule.at if isinstance(schedule, Once) else None


def once_text(spec: JobSpec) -> str | None:
    """Return the canonical schedule of a `once`; None for any other."""
    document = schedule_document(spec)
    return canonical(document).decode() if document["kind"] == "once" else None


@dataclass(frozen=True, slots=True)
class NextTimer:
    """A timer as a decision needs it: of a version that is not written yet, or at another position."""

    job: JobRow
    schedule_json: str
    policy_json: str
    scheduled_at: datetime
    catch_up_end: datetime | None = None

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self.job.job_id

    @property
    def tenant(self) -> str:
        """The job's tenant."""
        return self.job.tenant


def at_root(refused: Refused) -> InvalidInput:
    """Return the refusal of a spec, with its path from the request's root."""
    error = refused.errors[0]
    base = "job" if error.path in _BESIDE_SCHEDULE else "job.schedule"
    path = f"{base}.{error.path}" if error.path else base
    return InvalidInput([FieldError(path, error.problem, error.remedy)])


def _policy_text(spec: JobSpec, job: JobRow, schedule: str, now: datetime) -> str:
    """Return the canonical policy.

    A policy that shifts excluded days has the time since when: occurrences before an edit keep their days. An edit that
    leaves schedule, calendars and `on_excluded` as they are keeps that time.
    """
    document: dict[str, object] = dict(policy_document(spec))
    if not job.version or document["on_excluded"] == "skip":
        return canonical(document).decode()
    previous: dict[str, object] = json.loads(job.policy_json) if job.exists and job.policy_json else {}
    same = job.schedule_json == schedule and all(previous.get(name) == document[name] for name in _SHIFTS_BY)
    since = previous.get("since") if same else now.isoformat()
    return canonical(document if since is None else document | {"since": since}).decode()


def _interval_us(spec: JobSpec) -> int | None:
    every = schedule_document(spec).get("interval_us")
    return every if isinstance(every, int) else None


def _anchor(spec: JobSpec, job: JobRow, now: datetime, *, spread: bool = False) -> datetime | None:
    document = schedule_document(spec)
    first = first_anchor(document, job.job_id, now, spread=spread)
    kept = job.exists and job.interval_us == document.get("interval_us")
    return job.interval_anchor if first and kept and job.interval_anchor else first


def _once(schedule: Once, job: JobRow, text: str, inputs: VersionInputs) -> datetime | None:
    # A `once` whose time has passed fires at once, unless this instant has fired already and was not retracted.
    over = inputs.timer_used_up or (job.finished_at is not None and inputs.remaining_from is None)
    return None if job.exists and job.schedule_json == text and over else schedule.at


def _chain(schedule: FixedDelay, job: JobRow, interval_us: int, inputs: VersionInputs) -> datetime | None:
    """Return the next instant of a fixed_delay; an edit still counts from the end of the last run."""
    previous: dict[str, object] = json.loads(job.schedule_json) if job.exists and job.schedule_json else {}
    if previous.get("kind") != "fixed_delay" or inputs.remaining_from is None:
        return schedule.due(inputs.now, None)
    if inputs.run_open:
        return inputs.remaining_from  # the instant of the open run: the run's end and start_at decide the next one
    longer = timedelta(microseconds=interval_us - int(str(previous["interval_us"])))
    latest = inputs.now + schedule.delays[1]  # a run may have set the time within the bounds of the version before
    return schedule.due(min(max(inputs.remaining_from + longer, inputs.now), latest), None)
