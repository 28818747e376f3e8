"""Everything a decision needs of one timer, built from its row: for firing, for edits and for previews alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tidewheel.schedules.calendars import CalendarSchedule, Excluding, is_occurrence
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import DaySet, Override
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.policies import Policies, policies_from_text
from tidewheel.schedules.schedule import Schedule

DaySets = Mapping[tuple[str, str], DaySet]
"""Calendars by (tenant, name)."""


class Timer(Protocol):
    """The part of a timer's row, with its version, that a decision needs."""

    @property
    def job_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def schedule(self) -> str: ...  # noqa: D102
    @property
    def policy(self) -> str: ...  # noqa: D102
    @property
    def scheduled_at(self) -> datetime: ...  # noqa: D102
    @property
    def catch_up_end(self) -> datetime | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class TimerState:
    """Where a timer stands.

    Args:
        schedule: What the schedule says, within its bounds.
        effective: The same without excluded days.
        live: The same without what people have skipped or moved: what fires by itself.
        policies: How it is fired.
        cursor: The first instant that nothing is recorded of yet.
        catch_up_end: Up to here a catch-up was decided.
        skipped: Instants that people have left out, from the cursor on.
        moved: Nominal instants that fire at another time and have not yet, with that time.
        dropped: Instants that were moved and that the schedule has no more.
        overridden_until: The last instant that anything was said about.
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
        """Whether every occurrence of the schedule fires at its instant."""
        return self.live is self.schedule and not self.moved


def timer_state(timer: Timer, day_sets: DaySets, overrides: Sequence[Override] = ()) -> TimerState:
    """Where a timer stands.

    Args:
        timer: Its row.
        day_sets: At least the calendars that its policy names.
        overrides: Its job's, from its cursor on, and moved ones that have not fired.

    Raises:
        ScheduleRefused: The stored schedule cannot be read.
        ValueError: The stored policy cannot be read.
        KeyError: A calendar is missing.
    """
    schedule = schedule_from_text(timer.schedule, timer.job_id)
    policies = policies_from_text(timer.policy)
    effective = effective_schedule(schedule, policies, timer.tenant, day_sets, since=_since(policies, timer, day_sets))
    if not overrides:
        return TimerState(schedule, effective, effective, policies, timer.scheduled_at, timer.catch_up_end)
    done = frozenset(each.scheduled_at for each in overrides if each.done)
    if done and isinstance(effective, CalendarSchedule):
        effective = replace(effective, taken=done)
    waiting = {each.scheduled_at: each.moved_to for each in overrides if each.moved_to is not None and not each.done}
    # What lies behind the cursor was an occurrence when its instant came, whatever the schedule says now.
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
    """The schedule without the days that its calendars exclude; itself where it names none.

    Args:
        schedule: The schedule.
        policies: Which calendars, and whether what they exclude is shifted.
        tenant: Whose calendars are meant.
        day_sets: At least those.
        since: What lies at or before it is shifted no more; None: all of it is, as if these had been the days always.
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
    """Since when both the version and the days that had come are as they are."""
    changes = [day_sets[timer.tenant, name].since for name in policies.calendars]
    return max((at for at in (policies.since, *changes) if at is not None), default=None)


def zone_name(schedule: Schedule) -> str:
    """The zone whose days are meant: the first expression's, else UTC."""
    return schedule.entries[0].zone_name if isinstance(schedule, CronSchedule) else "UTC"
