"""A stage's use by its rate. Pure.

A stage works in batches. Where one thing comes at a time, each pays for a batch of its own; where many come, they share
one. How many share it follows from timers, locks and the machine, so the use is measured at several rates and
interpolated between them. It may fall as the rate grows, where batches grow faster.
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import exp, log

_LEAST = 1e-12  # for a use of zero, which has no logarithm


@dataclass(frozen=True, slots=True)
class Curve:
    """The use of one process, or of the whole, in units a second.

    Args:
        idle: Without any work.
        points: Rates, ascending, and the use beyond idling at each.
        full: For each run in a backlog, whose batches are full.
    """

    idle: float
    points: tuple[tuple[float, float], ...]
    full: float

    @property
    def least(self) -> float:
        """The least use of one run, at the highest rates."""
        rate, use = self.points[-1]
        return min(self.full, use / rate)

    def at(self, rate: float, processes: int = 1) -> float:
        """Return the use of all processes together; the rate is divided evenly among them.

        >>> curve = Curve(1.0, ((10.0, 20.0), (1000.0, 200.0)), 0.1)
        >>> [round(curve.at(rate), 3) for rate in (0, 5, 10, 100, 1000, 4000)]
        [1.0, 11.0, 21.0, 64.246, 201.0, 401.0]
        """
        return processes * (self.idle + self._use(rate / processes))

    def _use(self, rate: float) -> float:
        (first, least), (last, most) = self.points[0], self.points[-1]
        if rate <= first:
            return least * rate / first
        if rate >= last:
            return max(most, self.least * rate)
        after = bisect_left(self.points, (rate, 0.0))
        (low, below), (high, above) = self.points[after - 1], self.points[after]
        below, above = max(below, _LEAST), max(above, _LEAST)
        return below * exp(log(above / below) * log(rate / low) / log(high / low))
