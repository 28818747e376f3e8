"""Occurrences as whole microseconds since 2000, in bulk.

PostgreSQL sends a `timestamptz` as the big-endian bytes of this number. So the computed occurrences of a job are
compared with the recorded ones as bytes.
"""

import sys
from array import array
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from tidewheel.schedules.schedule import TICK, Schedule
from tidewheel.schedules.simple import Interval

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Instants(NamedTuple):
    """Ascending instants.

    Args:
        numbers: Microseconds since 2000.
        packed: The same as PostgreSQL sends them.
    """

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
