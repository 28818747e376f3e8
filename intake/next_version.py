"""What a submitted spec becomes under its job's lock: the next version, its schedule in full, its first instant.

Pure but for the locks that its facts were read under.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.spec import JobSpec, policy_document, schedule_document
from tidewheel.jobs.strict_json import canonical
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import RunState
from tidewheel.schedules.calendars import ensure_open_days
from tidewheel.schedules.decide import next_wakeup
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.parse import ensure_can_fire, schedule_from_text
from tidewheel.schedules.policies import CatchUp
from tidewheel.schedules.ranges import nth_occurrence
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.simple import FixedDelay, Once
from tidewheel.schedules.timer_state import DaySets, timer_state

_SHIFTS_BY = ("exclude_calendars", "include_calendars", "on_excluded")

OLDEST_ONCE = timedelta(days=90)  # the retention of runs: an older one would lie in a partition that is gone


@dataclass(frozen=True, slots=True)
class Place:
    """Where the settled job stands as its next version is made.

    Args:
        now: The database's clock.
        left: The first instant that the version in force had still to fire; None where it has none.
        settled: Whether what was overdue has just used its timer up.
        chained: Whether the run that its timer stands at is open.
        goes_on: Whether it is paused, and its pause goes on as it was: `left` stays its cursor.
        spread: Whether an interval that is new counts from an instant that its job's id says, as of a bulk load.
    """

    now: datetime
    left: datetime | None
    settled: bool
    chained: bool
    goes_on: bool = False
    spread: bool = False


@dataclass(frozen=True, slots=True)
class NextVersion:
    """A version to be written.

    Args:
        job: The job, locked.
        number: The version's number.
        spec: As submitted.
        schedule_text: The schedule in full: the memo key of recurrence, with the policy.
        policy_text: How it is fired.
        anchor: When its interval was first accepted.
        interval_us: Its interval or fixed delay.
        paused: Whether it is.
        next_at: The first instant that nothing is recorded of; None where it can never fire again.
        due_at: When firing must look; as `next_at` where no calendar is named.
        hold_reason: Why it is not due then.
        effective: Its schedule without the days that its calendars exclude.
    """

    job: JobRow
    number: int
    spec: JobSpec
    schedule_text: str
    policy_text: str
    anchor: datetime | None
    interval_us: int | None
    paused: bool
    next_at: datetime | None
    due_at: datetime | None
    hold_reason: HoldReason | None
    effective: Schedule

    @property
    def created(self) -> bool:
        """Whether it is the first one since there is such a job."""
        return not self.job.exists

    @property
    def calendars(self) -> tuple[str, ...]:
        """The calendars it names."""
        return (*self.spec.exclude_calendars, *self.spec.include_calendars)

    @property
    def kind(self) -> str:
        """The schedule's kind."""
        return str(json.loads(self.schedule_text)["kind"])


def next_version(spec: JobSpec, job: JobRow, place: Place, day_sets: DaySets) -> NextVersion:
    """The version that a spec becomes.

    Raises:
        ScheduleRefused: It cannot be read; paths are relative to `job`.
    """
    interval_us, anchor = _interval_us(spec), _anchor(spec, job, place.now, spread=place.spread)
    text = schedule_text(spec, job, anchor or place.now, first=job.created_at if job.exists else place.now)
    policy = _policy_text(spec, job, text, place.now)
    paused = job.paused if job.exists else spec.paused
    held = HoldReason.PAUSE if paused else None
    schedule = schedule_from_text(text, job.job_id)
    where = timer_state(_Row(job, text, policy, place.now), day_sets)
    next_at: datetime | None
    due_at: datetime | None
    if place.goes_on and place.left is not None:
        next_at = due_at = place.left
    elif isinstance(schedule, Once):
        next_at = due_at = _once(schedule, job, text, place)
    elif isinstance(schedule, FixedDelay):
        next_at = due_at = _chain(schedule, job, interval_us or 0, place)
        held = held or (HoldReason.RUN if place.chained else None)
    else:
        nominal, due_at = schedule.after(place.now), next_wakeup(where, place.now)
        # What is shifted to another day may come before the next nominal instant.
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
        effective=where.effective,
    )


def fires_alike(spec: JobSpec, job: JobRow, now: datetime) -> bool:
    """Whether a new version of a job fires as the one in force does: only other fields are edited.

    Raises:
        ScheduleRefused: The spec's schedule cannot be read.
    """
    if not job.exists:
        return False
    text = schedule_text(spec, job, _anchor(spec, job, now) or now, first=job.created_at)
    return text == job.schedule and _policy_text(spec, job, text, now) == job.policy


def ensure_worth_it(spec: JobSpec, job: JobRow, now: datetime, day_sets: DaySets, *, spread: bool = False) -> None:
    """Refuse what can never fire; as for an edit, the first acceptance of a job that exists counts its `max_runs`.

    Raises:
        Refused: It can never fire, or not be read; paths are relative to `job` or its schedule.
    """
    anchor = _anchor(spec, job, now, spread=spread)
    text = schedule_text(spec, job, anchor or now, first=job.created_at if job.exists else now)
    schedule = schedule_from_text(text, job.job_id)
    ensure_can_fire(schedule, now)
    if isinstance(schedule, Once) and schedule.at < now - OLDEST_ONCE:
        problem = f"{format_timestamp(schedule.at)} is more than {OLDEST_ONCE.days} days ago, longer than runs are kept"
        raise ScheduleRefused(problem, "trigger the job instead", "once")
    if isinstance(schedule, Once) and schedule.at <= now and CatchUp(spec.catch_up) is CatchUp.SKIP:
        problem = f"{format_timestamp(schedule.at)} has passed, and catch_up is skip: it would never fire"
        raise ScheduleRefused(problem, "write a later time, or leave catch_up out to fire it late", "once")
    policy = canonical(policy_document(spec)).decode()
    ensure_open_days(timer_state(_Row(job, text, policy, now), day_sets).effective, now)


def ensure_not_fired(spec: JobSpec, job: JobRow, fired: RunState | None) -> None:
    """Refuse a `once` whose very instant has a run already, as of a job that was deleted and comes again.

    Raises:
        ScheduleRefused: It has; the path is relative to the job's schedule.
    """
    at = once_at(spec, job.job_id)
    if at is not None and fired is not None:
        problem = f"{format_timestamp(at)} has become a run of this job already, which is {fired}; it cannot fire again"
        raise ScheduleRefused(problem, "trigger the job, or write another time", "once")


def schedule_text(spec: JobSpec, job: JobRow, anchor: datetime, *, first: datetime) -> str:
    """The canonical schedule: what recurrence reads and remembers answers by.

    Args:
        spec: As submitted.
        job: Its job.
        anchor: When an interval without an anchor of its own was first accepted.
        first: When the job was; the n-th occurrence from then is the last one of `max_runs: n`.

    Raises:
        ScheduleRefused: It cannot be read, or its occurrences not be counted.
    """
    document = anchored(schedule_document(spec), anchor)
    text = canonical(document).decode()
    if spec.max_runs is None:
        return text
    last = nth_occurrence(schedule_from_text(text, job.job_id), first, spec.max_runs)
    return text if last is None else canonical({**document, "end_at": format_timestamp(last)}).decode()


def anchored(document: Mapping[str, object], anchor: datetime | None) -> Mapping[str, object]:
    """The document of a schedule, with an anchor for an interval that has none of its own."""
    if document["kind"] != "interval" or anchor is None:
        return document
    own = document["anchor"]
    return {**document, "anchor_fires": own is not None, "anchor": own or anchor.isoformat()}


def first_anchor(document: Mapping[str, object], job_id: UUID, now: datetime, *, spread: bool) -> datetime | None:
    """What the interval or the delay of a new job counts from where it says nothing of it; None of other schedules.

    Args:
        document: The schedule's.
        job_id: The job's.
        now: The database's clock.
        spread: Whether intervals without an anchor are spread by the jobs' ids, so that of thousands that are loaded at
            once not all are due at once. To whole seconds, so that those of one second share their answers.
    """
    interval_us = document.get("interval_us")
    if not isinstance(interval_us, int):
        return None
    if not spread or document["kind"] != "interval" or document["anchor"] is not None:
        return now
    return now.replace(microsecond=0) - timedelta(seconds=job_id.int % (interval_us // 1_000_000))


def once_at(spec: JobSpec, job_id: UUID) -> datetime | None:
    """The instant of a `once`; None of any other schedule, or of one that cannot be read."""
    text = once_text(spec)
    if text is None:
        return None
    try:
        schedule = schedule_from_text(text, job_id)
    except ScheduleRefused:
        return None
    return schedule.at if isinstance(schedule, Once) else None


def once_text(spec: JobSpec) -> str | None:
    """The canonical schedule of a `once`; None for any other."""
    document = schedule_document(spec)
    return canonical(document).decode() if document["kind"] == "once" else None


@dataclass(frozen=True, slots=True)
class _Row:
    """A timer that is not yet, as far as deciding needs one."""

    job: JobRow
    schedule: str
    policy: str
    scheduled_at: datetime
    catch_up_end: datetime | None = None

    @property
    def job_id(self) -> UUID:
        """The job's."""
        return self.job.job_id

    @property
    def tenant(self) -> str:
        """The job's."""
        return self.job.tenant


def _policy_text(spec: JobSpec, job: JobRow, schedule: str, now: datetime) -> str:
    """The canonical policy; where it shifts, with when the job began to: what lies before an edit stays as it was.

    An edit that leaves schedule, calendars and `on_excluded` alone changes nothing of it.
    """
    document: dict[str, object] = dict(policy_document(spec))
    if not job.version or document["on_excluded"] == "skip":
        return canonical(document).decode()
    was: dict[str, object] = json.loads(job.policy) if job.exists and job.policy else {}
    same = job.schedule == schedule and all(was.get(name) == document[name] for name in _SHIFTS_BY)
    since = was.get("since") if same else now.isoformat()
    return canonical(document if since is None else document | {"since": since}).decode()


def _interval_us(spec: JobSpec) -> int | None:
    every = schedule_document(spec).get("interval_us")
    return every if isinstance(every, int) else None


def _anchor(spec: JobSpec, job: JobRow, now: datetime, *, spread: bool = False) -> datetime | None:
    """When its interval was first accepted: kept across edits that leave the interval alone."""
    document = schedule_document(spec)
    first = first_anchor(document, job.job_id, now, spread=spread)
    kept = job.exists and job.interval_us == document.get("interval_us")
    return job.interval_anchor if first and kept and job.interval_anchor else first


def _once(schedule: Once, job: JobRow, text: str, place: Place) -> datetime | None:
    # One whose time has passed fires at once, unless this very instant has fired already and was not taken back.
    over = place.settled or (job.finished_at is not None and place.left is None)
    return None if job.exists and job.schedule == text and over else schedule.at


def _chain(schedule: FixedDelay, job: JobRow, interval_us: int, place: Place) -> datetime | None:
    """The next instant of a fixed_delay: an edit keeps the end of the last run that it counts from."""
    was: dict[str, object] = json.loads(job.schedule) if job.exists and job.schedule else {}
    if was.get("kind") != "fixed_delay" or place.left is None:
        return schedule.due(place.now, None)
    if place.chained:
        return place.left  # the instant whose run is open: its end, and start_at, say when the next one comes
    longer = timedelta(microseconds=interval_us - int(str(was["interval_us"])))
    return schedule.due(max(place.left + longer, place.now), None)
