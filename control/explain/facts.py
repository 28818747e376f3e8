"""Read the rows and versions that explain one instant of a job, without a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from psycopg.rows import class_row, dict_row

from tidewheel.control.explain.explanation import AttemptFacts, RunFacts, SkipSpan, VersionInForce
from tidewheel.control.reads.job_position import JobPosition, read_job_error, read_job_position
from tidewheel.control.reads.stored import legible
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import DaySet, Override, Policies, policies_from_text
from tidewheel.schedules.schedule import TICK, UNBOUNDED, Interval, Once, Schedule
from tidewheel.schedules.timer_state import DaySets, TimerPosition, TimerState, timer_state, zone_name
from tidewheel.transitions.decision_inputs import read_day_sets

_SQL = Statements("tidewheel.control")

_NEIGHBOURS = 5  # versions on either side; neighbours of an instant in further versions are not shown
_FOREVER = datetime.max.replace(tzinfo=UTC)
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
        tenant, named = self.place.tenant, f"{_WEEKDAYS[day.isoweekday() % 7]} {day:%Y-%m-%d}"
        closing = [
            f"calendar {name!r} excludes {named}" for name in self.policies.exclude if day in self.days[tenant, name]
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


def read_version_timeline(connection: Conn, job: JobPosition, at: datetime) -> VersionTimeline:
    """Read the versions of a job around an instant."""
    tenant, cursor_at = job.tenant, job.cursor_at or at
    columns = {"job_id": job.job_id, "at": at, "limit": _NEIGHBOURS}
    rows = read_rows(connection, class_row(VersionRow), _SQL["read_versions_near"], columns)
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
            TimerPosition(job.job_id, tenant, row.schedule_json, row.policy_json, cursor_at, job.catch_up_end),
        )
        for row, following in zip(rows, [*rows[1:], None], strict=True)
    )
    return VersionTimeline(version_spans, frozenset(name for _, name in names - known.keys()))


def _version_span(row: VersionRow, following: VersionRow | None, days: DaySets, place: TimerPosition) -> VersionSpan:
    until = row.retired_at or (following.effective_at if following else None)
    state = legible("schedule", f"version {row.version}", lambda: timer_state(place, days))
    return VersionSpan(row, until, state.schedule, state.effective, state.policies, days, place)


@dataclass(frozen=True, slots=True)
class OverrideFacts:
    """A skip or a move of one occurrence."""

    scheduled_at: datetime
    moved_to: datetime | None
    created_at: datetime
    created_by: str | None
    reason: str | None
    done_at: datetime | None

    @property
    def of_timer(self) -> Override:
        """The part that decisions depend on."""
        return Override(self.scheduled_at, self.moved_to, self.done_at is not None)


@dataclass(frozen=True, slots=True)
class InstantFacts:
    """All rows that concern one instant.

    Args:
        runs: The runs of the instant, the timer's first.
        spans: The ledger rows of the instant, the shortest first.
    """

    connection: Conn
    at: datetime
    job: JobPosition
    timeline: VersionTimeline
    runs: tuple[RunFacts, ...]
    spans: tuple[SkipSpan, ...]
    override: tuple[OverrideFacts, ...]
    misfire_after: timedelta

    @property
    def run(self) -> RunFacts | None:
        """The occurrence's run."""
        return self.runs[0] if self.runs and self.runs[0].cause == Cause.TIMER else None

    @property
    def version_span(self) -> VersionSpan | None:
        """The version in force; for a `once` submitted after its time, that version."""
        found = self.timeline.in_force(self.at)
        if found is not None and found.has_occurrence(self.at):
            return found
        late = (
            each
            for each in self.timeline.version_spans
            if isinstance(each.schedule, Once) and each.schedule.at == self.at
        )
        return next(late, found)

    @property
    def own_override(self) -> OverrideFacts | None:
        """The skip or move of this occurrence."""
        return next((each for each in self.override if each.scheduled_at == self.at), None)

    @property
    def moved_here(self) -> OverrideFacts | None:
        """The occurrence that was moved to this instant."""
        return next((each for each in self.override if each.moved_to == self.at), None)

    @property
    def overrides(self) -> list[Override]:
        """The skips and moves that the timer's decisions depend on."""
        cursor = self.job.cursor_at or _FOREVER
        return [
            each.of_timer
            for each in self.override
            if each.scheduled_at >= cursor or (each.moved_to is not None and each.done_at is None)
        ]

    def error(self) -> tuple[str, datetime] | None:
        """Return the error that quarantined the job, and its time."""
        return read_job_error(self.connection, self.job.job_id)

    def freezes(self) -> tuple[Freeze, ...]:
        """Return the standing freezes that name the job's runs."""
        return freezes_of(self.connection, self.job.tenant, self.job.job_id)

    def chain(self, *causes: Cause) -> tuple[datetime | None, datetime | None]:
        """Return the nearest earlier and later instants with runs of these causes."""
        columns = {"job_id": self.job.job_id, "at": self.at, "causes": list(causes)}
        found = self.connection.execute(_SQL["find_chain"], columns, binary=True).fetchone()
        return cast("tuple[datetime | None, datetime | None]", found or (None, None))

    def oldest_day(self) -> datetime | None:
        """The oldest day with stored runs; None if there is none."""
        found = self.connection.execute(_SQL["oldest_day_of_runs"]).fetchone()
        text = found[0] if found else None
        return datetime.strptime(str(text), "%Y%m%d").replace(tzinfo=UTC) if text else None


def read_instant_facts(connection: Conn, tenant: str, key: str, at: datetime, misfire_after: timedelta) -> InstantFacts:
    """Read all rows that concern an instant."""
    job = read_job_position(connection, tenant, key)
    override = read_overrides_around(connection, job.job_id, job.cursor_at or _FOREVER, at)
    spans = tuple(read_rows(connection, class_row(SkipSpan), _SQL["read_skips_at"], {"job_id": job.job_id, "at": at}))
    own_override = next((each for each in override if each.scheduled_at == at), None)
    due = own_override.moved_to if own_override is not None and own_override.moved_to is not None else at
    return InstantFacts(
        connection=connection,
        at=at,
        job=job,
        timeline=read_version_timeline(connection, job, at),
        runs=_read_runs(connection, job.job_id, at, due),
        spans=spans,
        override=override,
        misfire_after=misfire_after,
    )


def read_overrides_around(connection: Conn, job: UUID, cursor_at: datetime, at: datetime) -> tuple[OverrideFacts, ...]:
    """Read skips and moves from `cursor_at` on, of pending moved occurrences, and of or to `at`."""
    columns = {"job_id": job, "at": at, "cursor_at": cursor_at}
    return tuple(read_rows(connection, class_row(OverrideFacts), _SQL["read_overrides_around"], columns))


def _read_runs(connection: Conn, job: UUID, at: datetime, due: datetime) -> tuple[RunFacts, ...]:
    rows = read_rows(connection, dict_row, _SQL["read_runs_at"], {"job_id": job, "at": at})
    return tuple(_facts(row, _read_attempts(connection, row), due) for row in rows)


def _read_attempts(connection: Conn, row: Mapping[str, Any]) -> Sequence[AttemptFacts]:
    over = read_rows(connection, class_row(AttemptFacts), _SQL["read_attempts_of"], {"run_id": row["run_id"]})
    if row["executor_id"] is None:
        return over
    return [*over, AttemptFacts(row["attempt"], None, row["executor_id"], row["started_at"], None, None, None)]


def _facts(row: Mapping[str, Any], attempts: Sequence[AttemptFacts], due: datetime) -> RunFacts:
    stored = {name: value for name, value in row.items() if name not in {"executor_id", "late_ms"}}
    is_late = row["cause"] == Cause.TIMER and row["created_at"] > due
    late = row["created_at"] - due if is_late else None
    return RunFacts(**stored, late=late, caught_up=row["late_ms"] is not None, attempts=tuple(attempts))
