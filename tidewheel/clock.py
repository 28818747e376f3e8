"""Clocks: the present instant, and seconds that never go back.

The database's clock alone decides what is *due* (`tidewheel_now()` in SQL). This module serves everything else:
durations inside a process (monotonic) and the instants that pure functions get.
"""

import time
from datetime import UTC, datetime
from typing import Protocol

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock goes on


class Clock(Protocol):
    """Protocol of a clock, so that a test can pass its own."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        ...


class SystemClock:
    """This machine's clock; never compared with a due time."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)


def monotonic_seconds() -> float:
    """Return seconds that never go back; only differences are meaningful."""
    return time.monotonic()


def boot_seconds() -> float:
    """Return seconds that never go back, and go on while the machine is suspended, as leases do."""
    return time.clock_gettime(_BOOT_CLOCK)
