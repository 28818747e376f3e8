"""A stage's use by its rate. Pure.

A stage works in batches. Where one thing comes at a time, each pays for a batch of its own. Where many come, a batch
has begun less than `gather` seconds before, and they share it. So with `x` a second the use is

    idle + each * x + batch * x / (1 + gather * x)

The use never falls as the rate grows, and the use of one more never grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_GATHER_SECONDS = tuple(1e-4 * 1.5**step for step in range(22))  # to half a second: the longest gathering of a service


@dataclass(frozen=True, slots=True)
class Curve:
    """The use of one process, or of the whole, in units a second.

    Args:
        idle: Without any work.
        each: For each run, however many there are.
        batch: For each batch.
        gather: Seconds within which what comes shares a batch.
    """

    idle: float
    each: float
    batch: float
    gather: float

    def at(self, rate: float, processes: int = 1) -> float:
        """Return the use of all processes together; the rate is divided evenly among them.

        >>> Curve(1.0, 2.0, 10.0, 0.1).at(0), Curve(1.0, 2.0, 10.0, 0.1).at(90.0)
        (1.0, 271.0)
        """
        share = rate / processes
        return processes * (self.idle + self.each * share + self.batch * share / (1 + self.gather * share))


def fit(idle: float, full: tuple[float, float], points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve through measured points, by the least relative squares.

    Args:
        idle: The use without work.
        full: Rate and use, beyond idling, of a backlog: its batches are full, so all of it is that of `each`.
        points: Rates of a steady load, and the use beyond idling at each.
    """
    each = full[1] / full[0] if full[0] else 0.0
    fitted = [Curve(idle, each, _batch(each, points, gather), gather) for gather in _GATHER_SECONDS]
    return min(fitted, key=lambda curve: _squares(curve, points))


def _batch(each: float, points: Sequence[tuple[float, float]], gather: float) -> float:
    """Return `batch` for a given `gather`; a use below that of full batches is none."""
    rows = [(x / (1 + gather * x) / y, 1 - each * x / y) for x, y in points if y > 0]
    squares = sum(part * part for part, _ in rows)
    return max(0.0, sum(part * rest for part, rest in rows) / squares) if squares else 0.0


def _squares(curve: Curve, points: Sequence[tuple[float, float]]) -> float:
    return sum(((curve.at(x) - curve.idle) / y - 1) ** 2 for x, y in points if y > 0)
