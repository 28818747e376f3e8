"""The state of one timer: everything `decide` needs, built from its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tidewheel.schedules.calendars import CalendarSchedule, Excluding, is_occurrence
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import DaySet, Override, Policies, policies_from_text
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import Schedule

DaySets = Mapping[tuple[str, str], DaySet]
"""Calendars by (tenant, name)."""


class Timer(Protocol):
    """The columns of a timer and its version that a decision needs."""

    @property
    def job_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def schedule_json(self) -> str: ...  # noqa: D102
    @property
    def policy_json(self) -> str: ...  # noqa: D102
    @property
    def scheduled_at(self) -> datetime: ...  # noqa: D102
    @property
    def catch_up_end(self) -> datetime | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class TimerPosition:
    """The columns of a timer that decisions need: a stored timer's, or computed ones."""

    job_id: UUID
    tenant: str
    schedule_json: str
    policy_json: str
    scheduled_at: datetime
    catch_up_end: datetime | None = None


@dataclass(frozen=True, slots=True)
class TimerState:
    """The state of one timer.

    Args:
        effective: The schedule without excluded days.
        live: The effective schedule without occurrences that users have skipped or moved.
        cursor: The first instant that is not recorded yet.
        skipped: Occurrences that users have skipped, from the cursor on.
        moved: Occurrences that users have moved and that have not fired, with their new instants.
        dropped: Moved instants that are no occurrences of the schedule any more.
        overridden_until: The last instant with an override.
    """

    schedule: Schedule
    effective: Schedule
    live: Schedule
    policies: Policies
    cursor: datetime
    catch_up_end: datetime | None = None
    skipped: frozenset[datetime] = frozenset()
    moved: Mapping[datetime, datetime] = field(default_factory=dict[datetime, datetime])
    dropped: frozenset[datetime] = frozenset()
    overridden_until: datetime | None = None

    @property
    def plain(self) -> bool:
        """True if every occurrence of the schedule fires at its instant."""
        return self.live is self.schedule and not self.moved


def timer_state(timer: Timer, day_sets: DaySets, overrides: Sequence[Override] = ()) -> TimerState:
    """Build the state of a timer from its row.

    Args:
        day_sets: At least the calendars that its policies name.
        overrides: Those of its job from the cursor on, and moved ones that have not fired.

    Raises:
        ScheduleRefused: The stored schedule cannot be read.
        ValueError: The stored policies cannot be read.
        KeyError: A calendar is missing.
    """
    schedule = schedule_from_text(timer.schedule_json, timer.job_id)
    policies = policies_from_text(timer.policy_json)
    effective = effective_schedule(schedule, policies, timer.tenant, day_sets, since=_since(policies, timer, day_sets))
    if not overrides:
        return TimerState(schedule, effective, effective, policies, timer.scheduled_at, timer.catch_up_end)
    done = frozenset(each.scheduled_at for each in overrides if each.done)
    if done and isinstance(effective, CalendarSchedule):
        effective = replace(effective, taken=done)
    waiting = {each.scheduled_at: each.moved_to for each in overrides if each.moved_to is not None and not each.done}
    # An instant behind the cursor was an occurrence at its time, whatever the schedule is now.
    dropped = {at for at in waiting if at >= timer.scheduled_at and not is_occurrence(effective, at)}
    return TimerState(
        schedule,
        effective,
        Excluding(effective, frozenset(each.scheduled_at for each in overrides)),
        policies,
        timer.scheduled_at,
        timer.catch_up_end,
        skipped=frozenset(each.scheduled_at for each in overrides if each.moved_to is None),
        moved={at: to for at, to in waiting.items() if at not in dropped},
        dropped=frozenset(dropped),
        overridden_until=max(each.scheduled_at for each in overrides),
    )


def effective_schedule(
    schedule: Schedule, policies: Policies, tenant: str, day_sets: DaySets, *, since: datetime | None = None
) -> Schedule:
    """Return the schedule under its calendars; itself if it names none.

    Args:
        since: Occurrences up to this instant are no longer shifted. None: all are, as if the days had never changed.
    """
    if not policies.calendars:
        return schedule
    return CalendarSchedule(
        schedule,
        tuple(day_sets[tenant, name] for name in policies.exclude),
        tuple(day_sets[tenant, name] for name in policies.include),
        zone_name(schedule),
        policies.shift,
        since,
    )


def _since(policies: Policies, timer: Timer, day_sets: DaySets) -> datetime | None:
    """Return the last change of the version or of past days of its calendars."""
    changes = [day_sets[timer.tenant, name].since for name in policies.calendars]
    return max((at for at in (policies.since, *changes) if at is not None), default=None)


def zone_name(schedule: Schedule) -> str:
    """Return the zone of a schedule's days: that of its first expression, else UTC."""
    return schedule.entries[0].zone_name if isinstance(schedule, CronSchedule) else "UTC"
