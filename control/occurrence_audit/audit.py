"""Read an installation in the order of its jobs, and compare job by job.

Each stream (versions, runs, the ledger, overrides, attempts) is a cursor of the server in one transaction of one
snapshot, in the order of job ids. So memory is bounded by the records of one job's window, whatever their number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from itertools import chain, groupby
from typing import Generic, LiteralString, NamedTuple, Protocol, TypedDict, TypeVar, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.occurrence_audit.compare import compare
from tidewheel.control.occurrence_audit.records import (
    AuditedJob,
    CalendarState,
    ChainLink,
    Finding,
    InForce,
    JobAudit,
    MissingChild,
    RecordedDay,
    Scope,
    Skipped,
    WrongAttempts,
    ended_from,
    instant_of,
    unpack,
)
from tidewheel.errors import ScheduleRefused, refuse
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn, read_row, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decision import DaySet, Override, Policies, policies_from_text
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.timer_state import DaySets, TimerPosition, timer_state
from tidewheel.schedules.zones import tzdata_version
from tidewheel.transitions.decision_inputs import read_day_sets

_SQL = Statements("tidewheel.control.occurrence_audit")

_SETS = 100  # of days that a calendar keeps when it changes: `update_calendar`
_ROWS = 1_000  # in one round trip
_DAYS = 100  # likewise: a day of a job that fires each second has 0.7 MB


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """The state of the installation that an audit reads."""

    taken_at: datetime
    database: str
    snapshot: str
    stored_tzdata: object  # by which the timers were computed
    tzdata_changes: object  # each with its time; None if there was none
    runs_from: datetime | None  # from this day on all runs are stored
    deleting: list[str]  # tenants that the audit leaves out
    tzdata: str = tzdata_version()  # by which the audit computes


class _HasJob(Protocol):
    @property
    def job_id(self) -> UUID: ...


R = TypeVar("R", bound=_HasJob)


class _ByJob(Generic[R]):
    """A stream in the order of jobs, read job by job."""

    def __init__(self, rows: Iterator[R]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def before(self, job_id: UUID | None) -> Iterator[R]:
        """Yield the rows of earlier jobs: no version of theirs was in force."""
        while self._next is not None and (job_id is None or self._next.job_id < job_id):
            row, self._next = self._next, next(self._rows, None)
            yield row

    def of(self, job_id: UUID) -> Iterator[R]:
        """Yield the rows of a job."""
        while self._next is not None and self._next.job_id == job_id:
            row, self._next = self._next, next(self._rows, None)
            yield row


class _VersionRow(NamedTuple):
    """A version with its job; `read_audited_versions` returns its columns in this order."""

    job_id: UUID
    tenant: str
    key: str
    cursor_at: datetime | None
    hold_reason: str | None
    version: int
    schedule_json: str
    policy_json: str
    after: datetime
    until: datetime | None


class _OverrideRow(NamedTuple):
    job_id: UUID
    scheduled_at: datetime
    moved_to: datetime | None
    done: bool


def read_facts(connection: Conn, tenant: str | None) -> AuditFacts:
    """Return the state of the installation; it opens the snapshot."""
    found = read_row(connection, class_row(AuditFacts), _SQL["read_audit_facts"], {"tenant": tenant})
    assert found is not None  # noqa: S101 - it always has one row
    return found


def ensure_kept(connection: Conn, facts: AuditFacts, scope: Scope) -> None:
    """Refuse a range whose records are not all there: it is ahead, or beyond the retention."""
    if scope.before > facts.taken_at:
        problem = f"{format_timestamp(scope.before)} is ahead: it is {format_timestamp(facts.taken_at)}"
        refuse("--to", problem, "leave it out to audit up to now")
    if scope.first >= scope.before:
        refuse("--from", "it is not before --to", "write an earlier instant")
    oldest = facts.runs_from
    if oldest is None or scope.first >= oldest:
        return
    columns = {"before": oldest, "tenant": scope.tenant, "job_id": scope.job_id}
    if connection.execute(_SQL["has_versions_before"], columns, binary=True).fetchone() == (True,):
        problem = f"runs that ended before {format_timestamp(oldest)} are no longer kept"
        refuse("--from", problem, f"write {format_timestamp(oldest)} or later; TIDEWHEEL_RETENTION keeps them longer")


def audit(connection: Conn, scope: Scope) -> Iterator[JobAudit]:
    """Yield the audit of each job that had occurrences or runs in a range, by job id."""
    columns = {**asdict(scope), "ended_from": ended_from(connection, scope)}

    def by_job(name: str, statement: LiteralString, make: Callable[[Iterable[object]], R]) -> _ByJob[R]:
        return _ByJob(_stream(connection, name, statement, columns, make))

    days = by_job("days", _SQL["read_timer_runs"], RecordedDay._make)
    wrong = by_job("wrong_attempts", _SQL["read_wrong_attempts"], WrongAttempts._make)
    chains = by_job("chains", _SQL["read_chains"], ChainLink._make)
    missing = by_job("missing_children", _SQL["read_missing_children"], MissingChild._make)
    skips = by_job("skips", _SQL["read_audited_skips"], Skipped._make)
    overrides = by_job("overrides", _SQL["read_audited_overrides"], _OverrideRow._make)
    calendars = _Calendars(connection, scope)
    versions = _stream(connection, "versions", _SQL["read_audited_versions"], columns, _VersionRow._make)
    for job_id, rows in groupby(versions, key=lambda row: row.job_id):
        yield from _without_version(days, missing, job_id)
        for _ in chain(*(stream.before(job_id) for stream in (wrong, chains, skips, overrides))):
            pass  # of a job without a version in the range
        found = compare(
            _audited([*rows], calendars),
            days.of(job_id),
            skips=[*skips.of(job_id)],
            overrides={each.scheduled_at: Override(*each[1:]) for each in overrides.of(job_id)},
            wrong_attempts=wrong.of(job_id),
            links=chains.of(job_id),
            missing=missing.of(job_id),
            scope=scope,
        )
        if found.computed or found.finding_count or found.runs.total():
            yield found
    yield from _without_version(days, missing, None)


def _stream(
    connection: Conn,
    name: str,
    statement: LiteralString,
    columns: Mapping[str, object],
    make: Callable[[Iterable[object]], R],
) -> Iterator[R]:
    with connection.cursor(name, row_factory=rows_of(make)) as cursor:
        cursor.itersize = _DAYS if statement is _SQL["read_timer_runs"] else _ROWS
        yield from cursor.execute(statement, columns, binary=True)


def _without_version(
    days: _ByJob[RecordedDay], missing: _ByJob[MissingChild], job_id: UUID | None
) -> Iterator[JobAudit]:
    """Yield the records of jobs without a version in the range: none of their runs is computed."""
    for day in days.before(job_id):
        found = JobAudit(day.job_id, "", "")
        for number in unpack(day.instants):
            at = instant_of(number)
            found.add(Finding("unexpected", at, at, 1, "a run of the timer is recorded, but no version was in force"))
        yield found
    for child in missing.before(job_id):
        found = JobAudit(child.job_id, "", "")
        at, words = child.scheduled_at, f"no version was in force, and no run in the occurrence of {child.root_run_id}"
        found.add(Finding("missing", at, at, 1, words))
        yield found


class _Calendars:
    """The calendars of an installation, with the days that held before."""

    def __init__(self, connection: Conn, scope: Scope) -> None:
        rows = connection.execute(_SQL["read_audited_calendars"], {"tenant": scope.tenant}, binary=True).fetchall()
        found = cast("list[tuple[str, str, list[_Past]]]", rows)
        self._days: DaySets = read_day_sets(connection, [(tenant, name) for tenant, name, _ in found])
        self._cut = {(tenant, name): _held(past[0]).until for tenant, name, past in found if len(past) >= _SETS}
        self._past = {
            (tenant, name): [held for each in past if (held := _held(each)).until > scope.first]
            for tenant, name, past in found
        }

    def states(self, tenant: str, policies: Policies) -> list[tuple[datetime | None, DaySets]] | None:
        """Return the days of all calendars that policies name, each with the time until which they held.

        None if a calendar is gone.
        """
        named = {(tenant, name) for name in policies.calendars}
        if not named <= self._days.keys():
            return None
        changes = sorted({held.until for pair in named for held in self._past[pair]})
        return [(until, {pair: self._at(pair, until) for pair in named}) for until in (*changes, None)]

    def forgotten(self, tenant: str, policies: Policies) -> datetime | None:
        """Return the instant up to which days of the named calendars may be forgotten; None if none are.

        It is the end of the oldest set, since its begin is not stored.
        """
        cuts = (self._cut[pair] for name in policies.calendars if (pair := (tenant, name)) in self._cut)
        return max(cuts, default=None)

    def _at(self, pair: tuple[str, str], until: datetime | None) -> DaySet:
        """Return the days of a calendar that held up to an instant."""
        past = () if until is None else (held.days for held in self._past[pair] if until <= held.until)
        return next(iter(past), self._days[pair])


class _Past(TypedDict):
    until: str
    days: list[str]
    weekdays: list[int]
    since: str | None


class _Held(NamedTuple):
    until: datetime
    days: DaySet


def _held(past: _Past) -> _Held:
    days = frozenset(date.fromisoformat(day) for day in past["days"])
    since = None if past["since"] is None else datetime.fromisoformat(past["since"])
    return _Held(datetime.fromisoformat(past["until"]), DaySet(days, frozenset(past["weekdays"]), since))


def _audited(rows: list[_VersionRow], calendars: _Calendars) -> AuditedJob:
    last = rows[-1]
    versions = [_in_force(row, calendars) for row in rows]
    return AuditedJob(last.job_id, last.tenant, last.key, versions, last.cursor_at, last.hold_reason)


def _in_force(row: _VersionRow, calendars: _Calendars) -> InForce:
    try:
        schedule, policies = schedule_from_text(row.schedule_json, row.job_id), policies_from_text(row.policy_json)
    except (ScheduleRefused, ValueError):
        return InForce(row.version, row.after, row.until, None)
    if not policies.calendars:
        return InForce(row.version, row.after, row.until, schedule)
    states = calendars.states(row.tenant, policies)
    place = TimerPosition(row.job_id, row.tenant, row.schedule_json, row.policy_json, row.after)
    opened = (
        None
        if states is None
        else tuple(CalendarState(until, timer_state(place, days).effective) for until, days in states)
    )
    forgotten = calendars.forgotten(row.tenant, policies)
    return InForce(row.version, row.after, row.until, schedule, opened, policies.shift, forgotten)
