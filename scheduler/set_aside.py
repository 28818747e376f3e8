"""Leave rows out for a minute that have failed alone, so that the other rows of their batch go on."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable

R = TypeVar("R")
T = TypeVar("T")

_LOG = logging.getLogger("tidewheel.scheduler")

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

    def together(
        self, rows: Sequence[T], work: Callable[[Sequence[T]], int], name: str, *, field: str | None = None
    ) -> int:
        """Do work for rows together, or for one after the other if one of them fails; return the sum.

        Args:
            work: In transactions of its own.
            name: As for `alone`.
            field: That of the row in the line of the log.
        """
        if len(rows) > 1:
            try:
                return work(rows)
            except (Unavailable, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - one at a time finds the one that fails
                _LOG.warning("%s: %d failed together (%s); the scheduler does them one by one", name, len(rows), error)
        done = 0
        for row in rows:
            with self.alone(row, name, **({} if field is None else {field: str(row)})):
                done += work([row])
        return done

    def runs_together(self, rows: Mapping[T, R], work: Callable[[Sequence[R]], int], name: str) -> int:
        """Do work for the rows of runs by their ids, as `together` does."""
        return self.together([*rows], lambda ids: work([rows[each] for each in ids]), name, field="run_id")

    @contextmanager
    def alone(self, row: T, name: str, **fields: object) -> Generator[None]:
        """Do work for one row in the block; after an error of its own log it and leave the row out.

        Args:
            name: The work in words, such as `cancel run`.
            fields: Of the line in the log.

        Raises:
            Unavailable, MemoryError: No row is the cause.
        """
        try:
            yield
        except (Unavailable, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - the other rows must not wait for it
            _LOG.exception("the scheduler cannot %s %s; it tries again in a minute", name, row, extra=fields)
            self.add(row)
