"""Rows that failed alone, left out for a minute so that the others go on."""

from typing import Generic, TypeVar

from tidewheel.clock import monotonic_seconds

T = TypeVar("T")

_SECONDS = 60.0


class SetAside(Generic[T]):
    """Ids of rows that are tried again later: what failed them may be corrected by then."""

    def __init__(self) -> None:
        self._until: dict[T, float] = {}

    def add(self, row: T) -> None:
        """Leave a row out for a minute."""
        self._until[row] = monotonic_seconds() + _SECONDS

    def current(self) -> set[T]:
        """Return the rows to leave out now."""
        now = monotonic_seconds()
        self._until = {row: until for row, until in self._until.items() if until > now}
        return set(self._until)
