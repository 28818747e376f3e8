"""The six fields of a cron expression: their names, bounds and words."""

from dataclasses import dataclass

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class FieldKind:
    """One field.

    Args:
        name: As messages call it.
        low: Smallest number.
        high: Largest number.
        period: What the field begins anew with.
        names: What may be written instead of numbers, from `low` on, in lower case.
        unit: What an interval of that field is counted in; empty when intervals know no such unit.
    """

    name: str
    low: int
    high: int
    period: str
    names: tuple[str, ...] = ()
    unit: str = ""

    @property
    def size(self) -> int:
        """How many different values there are: 7 is Sunday too."""
        return 7 if self is DAY_OF_WEEK else self.high - self.low + 1


SECOND = FieldKind("second", 0, 59, "minute", unit="second")
MINUTE = FieldKind("minute", 0, 59, "hour", unit="minute")
HOUR = FieldKind("hour", 0, 23, "day", unit="hour")
DAY_OF_MONTH = FieldKind("day of month", 1, 31, "month", unit="day")
MONTH = FieldKind("month", 1, 12, "year", _MONTHS)
DAY_OF_WEEK = FieldKind("day of week", 0, 7, "week", _WEEKDAYS, unit="day")

FIVE = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
SIX = (SECOND, *FIVE)
"""Seconds come first, as in Spring, Quartz and Kubernetes' cron library; croniter's own order has them last."""
