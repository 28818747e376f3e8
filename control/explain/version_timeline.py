"""Versions of a job around an instant, with the schedule of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.explain.explanation import VersionInForce
from tidewheel.control.reads.stored import legible
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import DaySet, Override
from tidewheel.schedules.policies import Policies, policies_from_text
from tidewheel.schedules.schedule import TICK, UNBOUNDED, Interval, Schedule
from tidewheel.schedules.timer_state import DaySets, TimerPosition, TimerState, timer_state, zone_name
from tidewheel.transitions.decision_inputs import read_day_sets

_READ_VERSIONS_NEAR = Statements("tidewheel.control")["read_versions_near"]

MAX_NEIGHBOURS = 5  # versions on either side; neighbours of an instant in further versions are not shown

_EVERY_DAY = DaySet(weekdays=frozenset(range(7)))
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version's row."""

    version: int
    effective_at: datetime
    retired_at: datetime | None
    schedule_json: str
    policy_json: str
    overlap: str
    handler: str
    queue: str
    max_runs: int | None


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """One version, with its schedule and its time in force.

    Args:
        until: The last instant it counts for; None while it is current.
        effective: Its schedule without excluded days.
    """

    row: VersionRow
    until: datetime | None
    schedule: Schedule
    effective: Schedule
    policies: Policies
    days: DaySets
    place: TimerPosition

    @property
    def force(self) -> VersionInForce:
        """The version's number and time in force."""
        return VersionInForce(self.row.version, self.row.effective_at, self.until)

    @property
    def zone(self) -> str:
        """The zone of its schedule."""
        return zone_name(self.schedule)

    def has_occurrence(self, at: datetime) -> bool:
        """Return True if an instant is one of its occurrences, excluded or not."""
        return is_occurrence(self.schedule, at) or is_occurrence(self.effective, at)

    def fires(self, at: datetime) -> bool:
        """Return True if an instant is one of its occurrences and no calendar excludes it."""
        return is_occurrence(self.effective, at)

    def timer_state(self, overrides: Sequence[Override] = ()) -> TimerState:
        """Return the state of its timer, with the overrides."""
        return timer_state(self.place, self.days, overrides)

    def outside_bounds(self, at: datetime) -> bool:
        """Return True if only its bounds exclude an instant."""
        schedule = self.schedule
        if not isinstance(schedule, CronSchedule | Interval) or schedule.bounds.holds(at):
            return False
        return is_occurrence(replace(schedule, bounds=UNBOUNDED), at)

    def closed_by(self, day: date) -> list[str]:
        """Return the calendars that exclude a day, each in the form of the sentences."""
        tenant, named = self.place.tenant, f"{day:%Y-%m-%d} is a {_WEEKDAYS[day.isoweekday() % 7]}"
        closing = [
            f"calendar {name!r} contains {day:%Y-%m-%d}"
            if day in self.days[tenant, name].days
            else f"calendar {name!r} contains every {_WEEKDAYS[day.isoweekday() % 7]}, and {named}"
            for name in self.policies.exclude
            if day in self.days[tenant, name]
        ]
        included = self.policies.include
        if included and not any(day in self.days[tenant, name] for name in included):
            closing.append(f"{day:%Y-%m-%d} is in none of its include_calendars ({', '.join(included)})")
        return closing


@dataclass(frozen=True, slots=True)
class VersionTimeline:
    """Versions around an instant, the oldest first; `gone` are deleted calendars that they name."""

    version_spans: tuple[VersionSpan, ...]
    gone: frozenset[str]

    def in_force(self, at: datetime) -> VersionSpan | None:
        """Return the version in force; None before the first, and while the job was deleted."""
        earlier = [version_span for version_span in self.version_spans if version_span.row.effective_at < at]
        if not earlier or (earlier[-1].until is not None and earlier[-1].until < at):
            return None
        return earlier[-1]

    def before(self, at: datetime) -> datetime | None:
        """Return the last occurrence earlier than an instant, of the version in force at it."""
        for version_span in reversed(self.version_spans):
            end = at if version_span.until is None else min(at, version_span.until + TICK)
            found = version_span.effective.before(end)
            if found is not None and version_span.row.effective_at < found:
                return found
        return None

    def after(self, at: datetime) -> datetime | None:
        """Return the first occurrence later than an instant, of the version in force at it."""
        for version_span in self.version_spans:
            found = version_span.effective.after(max(at, version_span.row.effective_at))
            if found is not None and (version_span.until is None or found <= version_span.until):
                return found
        return None


def read_version_timeline(
    connection: Conn,
    job_id: UUID,
    tenant: str,
    at: datetime,
    *,
    cursor: datetime | None,
    catch_up_end: datetime | None,
) -> VersionTimeline:
    """Read the versions around an instant."""
    with connection.cursor(row_factory=class_row(VersionRow), binary=True) as reading:
        columns = {"job_id": job_id, "at": at, "limit": MAX_NEIGHBOURS}
        rows = reading.execute(_READ_VERSIONS_NEAR, columns).fetchall()
    policies = [
        legible("policy", f"version {row.version}", partial(policies_from_text, row.policy_json)) for row in rows
    ]
    names = {(tenant, name) for each in policies for name in each.calendars}
    known = read_day_sets(connection, names)
    # A calendar that only old versions name may be deleted: its days are no longer stored.
    included = {(tenant, name) for each in policies for name in each.include}
    days = {pair: known.get(pair, _EVERY_DAY if pair in included else DaySet()) for pair in names}
    version_spans = tuple(
        _version_span(
            row,
            following,
            days,
            TimerPosition(job_id, tenant, row.schedule_json, row.policy_json, cursor or at, catch_up_end),
        )
        for row, following in zip(rows, [*rows[1:], None], strict=True)
    )
    return VersionTimeline(version_spans, frozenset(name for _, name in names - known.keys()))


def _version_span(row: VersionRow, following: VersionRow | None, days: DaySets, place: TimerPosition) -> VersionSpan:
    until = row.retired_at or (following.effective_at if following else None)
    state = legible("schedule", f"version {row.version}", lambda: timer_state(place, days))
    return VersionSpan(row, until, state.schedule, state.effective, state.policies, days, place)
