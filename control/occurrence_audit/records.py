"""The recorded side of an audit: scheduled runs by job and day, and their instants in bulk.

PostgreSQL sends a `timestamptz` as big-endian microseconds since 2000. So computed occurrences are compared with the
recorded ones as bytes.
"""

import sys
from array import array
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.schedule import TICK, Interval, Schedule

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
