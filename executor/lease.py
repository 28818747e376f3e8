"""The lease of an executor: a time until which its attempts may have effects.

Every attempt keeps the lease under which it was claimed. A heartbeat in time extends that lease. A heartbeat that comes
too late starts another lease, and the old one stays over. So a process that was stopped sends nothing of what it had
claimed before, however soon its heartbeat renews the lease. The clock goes on while the process is stopped, and while
the machine is suspended.
"""

import math

from tidewheel.clock import boot_seconds


class LeaseOver(Exception):
    """The lease of an attempt was over before its request was complete; `begun` if a part was sent."""

    def __init__(self, *, begun: bool = False) -> None:
        self.begun = begun
        super().__init__("the lease was over")


class Lease:
    """A lease until an instant of `boot_seconds`; read by every thread, changed by the heartbeat only."""

    __slots__ = ("_until",)

    def __init__(self, until: float) -> None:
        self._until = until

    @property
    def until(self) -> float:
        """Its end, by `boot_seconds`."""
        return self._until

    def is_over(self) -> bool:
        """Return True if nothing may be sent any more. One look at the clock: 0.1 us."""
        return boot_seconds() > self._until

    def extend(self, until: float) -> None:
        """Set a later end; called for a lease that is not over."""
        self._until = until

    def end(self) -> None:
        """End it for good: another executor may own its attempts."""
        self._until = -math.inf


ENDLESS = Lease(math.inf)  # of an attempt without an executor, as in a unit test
