"""The records of an audit: scheduled runs by job and day, versions, findings, instants in bulk.

PostgreSQL sends a `timestamptz` as big-endian microseconds since 2000. So computed occurrences are compared with the
recorded ones as bytes.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.schedule import TICK, FixedDelay, Interval, Schedule

MAX_FINDINGS = 100
"""Findings of one job that are listed; the rest is counted."""

_EARLIEST_MOVE = Statements("tidewheel.control.occurrence_audit")["earliest_move"]
_AHEAD = timedelta(hours=1)  # a run may be skipped within the lookahead of 60 s, and clocks are set back
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of an installation that is audited: instants from `first` until before `before`."""

    first: datetime
    before: datetime
    tenant: str | None = None
    job_id: UUID | None = None


class RecordedDay(NamedTuple):
    """The scheduled runs of a job with instants on one day of UTC."""

    job_id: UUID
    day: datetime
    instants: bytes  # in order, as big-endian microseconds since 2000; one twice if two runs have it
    succeeded: int
    failed: int
    timed_out: int
    cancelled: int
    skipped: int  # by the overlap policy
    open: int
    attempts: int
    by_message: int  # last attempts that have the coordinates of a Kafka message
    by_sweep: int  # last attempts that were claimed without a message


class WrongAttempts(NamedTuple):
    """An ended run without a record of each attempt."""

    job_id: UUID
    run_id: UUID
    scheduled_at: datetime
    attempt: int
    recorded: int


class ChainLink(NamedTuple):
    """Two successive scheduled runs of a fixed_delay job; the first may not have ended."""

    job_id: UUID
    scheduled_at: datetime
    previous_at: datetime
    previous_end: datetime | None


class MissingChild(NamedTuple):
    """A job of an ended occurrence of a workflow that has no run in it."""

    job_id: UUID
    scheduled_at: datetime
    root_run_id: UUID


class Skipped(NamedTuple):
    """A row of the ledger."""

    job_id: UUID
    reason: str
    first_at: datetime
    last_at: datetime
    occurrences: int
    is_exact: bool


class CalendarState(NamedTuple):
    """A schedule under some days of its calendars; `until` is None while they hold."""

    until: datetime | None
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class InForce:
    """A version in its time in force."""

    version: int
    after: datetime  # it counts for instants later than this
    until: datetime | None  # and up to this one; None while it is current
    schedule: Schedule | None
    calendars: tuple[CalendarState, ...] | None = ()  # its schedule under their days; None if one is gone
    shifts: bool = False
    calendars_after: datetime | None = None  # days that decided up to this instant may be forgotten

    def opened(self, low: datetime, high: datetime) -> Iterator[set[int]]:
        """Yield the occurrences in ``(low, high]`` under each of the days by which they may have been decided.

        An occurrence is decided at its instant, or later: after a pause by the days of that time. So the days that held
        then count, and all later ones.
        """
        for state in self.calendars or ():
            until = high if state.until is None else min(high, state.until)
            found = instants_between(state.schedule, low, until).numbers if low < until else ()
            yield {*found}

    def known(self, low: datetime) -> datetime:
        """Return the later one of an instant and that up to which days of its calendars may be forgotten."""
        return low if self.calendars_after is None else max(low, self.calendars_after)

    def holds(self, at: datetime) -> bool:
        """Return True if an instant of a fixed_delay lies in its time in force."""
        return self.after <= at and (self.until is None or at <= self.until)

    def within(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """Return the part of ``(start, end]`` in which it is in force.

        The part is empty if its start is not before its end. The first occurrence of a fixed_delay is the instant of
        its acceptance.
        """
        after = self.after - TICK if isinstance(self.schedule, FixedDelay) else self.after
        return max(start, after), end if self.until is None else min(end, self.until)


@dataclass(frozen=True, slots=True)
class AuditedJob:
    """A job with its versions and the position of its timer."""

    job_id: UUID
    tenant: str
    key: str  # empty if the job has no row
    versions: Sequence[InForce]
    cursor_at: datetime | None = None  # the first instant that its timer has not decided; None without a timer
    hold_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A disagreement between what is computed and what is recorded."""

    problem: str  # missing, doubled, unexpected, excluded, miscounted, attempts, unreadable or unrecorded
    first_at: datetime
    last_at: datetime
    occurrences: int
    words: str
    version: int | None = None  # in force then


@dataclass(slots=True)
class JobAudit:
    """The audit of one job."""

    job_id: UUID
    tenant: str
    key: str
    computed: int = 0
    fired: int = 0  # occurrences that became a run that was not skipped
    skipped: Counter[str] = field(default_factory=Counter[str])  # by reason
    undecided: Counter[str] = field(default_factory=Counter[str])  # by the reason of the timer's hold
    missing: int = 0
    runs: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    by_message: int = 0  # runs whose last attempt has the coordinates of a Kafka message
    by_sweep: int = 0  # runs whose last attempt was claimed without one
    findings: list[Finding] = field(default_factory=list[Finding])
    finding_count: int = 0

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self.finding_count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


def ended_from(connection: Conn, scope: Scope) -> datetime:
    """Return an instant before which no run of a scope has ended."""
    found = connection.execute(_EARLIEST_MOVE, asdict(scope), binary=True).fetchone()
    moved_to = cast("datetime | None", found[0] if found else None)
    return min(scope.first, moved_to or scope.first) - _AHEAD


class Instants(NamedTuple):
    """Ascending instants, as microseconds since 2000 and packed as PostgreSQL sends them."""

    numbers: "array[int]"
    packed: bytes


def number_of(at: datetime) -> int:
    """Return the microseconds since 2000."""
    return (at - _EPOCH) // TICK


def instant_of(number: int) -> datetime:
    """Return the instant of a number.

    >>> instant_of(number_of(datetime(2026, 3, 29, 1, tzinfo=UTC))).isoformat()
    '2026-03-29T01:00:00+00:00'
    """
    return _EPOCH + timedelta(microseconds=number)


def instants_between(schedule: Schedule, start: datetime, end: datetime) -> Instants:
    """Return the occurrences in ``(start, end]``."""
    if not isinstance(schedule, Interval):
        return _visited(schedule, start, end)
    first, last = schedule.after(start), schedule.before(end + TICK)
    if first is None or last is None or first > last:
        return _NONE
    return pack(array("q", range(number_of(first), number_of(last) + 1, schedule.interval_us)))


def pack(numbers: "array[int]") -> Instants:
    """Return instants with their bytes."""
    swapped = array("q", numbers)
    if sys.byteorder == "little":
        swapped.byteswap()
    return Instants(numbers, swapped.tobytes())


def unpack(packed: bytes) -> "array[int]":
    """Return the numbers of some bytes."""
    numbers = array("q")
    numbers.frombytes(packed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


@lru_cache(maxsize=32)  # jobs that share an expression share its occurrences; the longest entry has 1.6 MB
def _visited(schedule: Schedule, start: datetime, end: datetime) -> Instants:
    return pack(array("q", map(number_of, schedule.between(start, end))))


_NONE = pack(array("q"))
