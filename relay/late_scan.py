"""Scan for late rows in the background: due rows before the low-water marks.

Deleted rows stay in the index while any transaction in the database is open. A full scan meets all of them: 15 s for
4.5 million rows. While full scans are quick the reader makes them itself. Slow ones run here, on their own thread and
session, one slice and lane after another.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.background import BackgroundQuery
from tidewheel.postgres.session import Session, is_time_limit
from tidewheel.relay.due_rows import MAX_BYTES, SESSION_OPTIONS, DueRow, Pair, RowRange, due_rows, position_of

_LOG = logging.getLogger("tidewheel.relay")

_PART_SECONDS = 2.0  # then the rows found so far are returned, and the scan goes on after it


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of one part of a scan.

    Args:
        more: True if the scan goes on.
        complete: True if no part of it has failed.
    """

    rows: Mapping[Pair, Sequence[DueRow]]
    seconds: float
    more: bool
    complete: bool


class LateRowScan:
    """At most one scan at a time. The reader starts it and takes its results."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "tidewheel-relay-scan", options=SESSION_OPTIONS, autocommit=True)
        self._background = BackgroundQuery[tuple[ScanResult, RowRange]](self._session, "relay-scan")

    @property
    def active(self) -> bool:
        """True if a scan is under way, or has a result that was not taken yet."""
        return self._background.busy

    def start(self, row_range: RowRange) -> None:
        """Start a scan up to the marks. All results of the scan before must have been taken."""
        self._background.start(partial(self._find, row_range))

    def take(self) -> ScanResult | None:
        """Return the result of a finished part once, else None; start the next part if there is one."""
        taken = self._background.take()
        if taken is None:
            return None
        found, rest = taken
        if found.more:
            self._background.start(partial(self._find, rest, found))
        return found

    def close(self) -> None:
        """Cancel the scan under way."""
        self._background.close()

    def _find(self, row_range: RowRange, earlier: ScanResult | None = None) -> tuple[ScanResult, RowRange]:
        """Scan one limit of rows of each slice and lane; return the result and what is left to scan."""
        rows: dict[Pair, Sequence[DueRow]] = {}
        complete = earlier is None or earlier.complete
        rest = dict(row_range.upto)
        after = dict(row_range.after)
        room = MAX_BYTES
        began = monotonic_seconds()
        for pair in row_range.upto:
            if room <= 0 or self._background.closing or monotonic_seconds() - began > _PART_SECONDS:
                break
            try:
                with self._session.transaction() as connection:
                    found, room = due_rows(connection, [pair], row_range, room)
            except (Unavailable, psycopg.Error) as error:
                if not self._background.closing:
                    _LOG.warning("slice %d, %s: the scan for late rows failed and is repeated later: %s", *pair, error)
                complete = False
                if not is_time_limit(error):
                    rest.clear()
                    break
                del rest[pair]
                continue
            if found:
                rows[pair], after[pair] = found, position_of(found[-1])
            if room > 0 and len(found) < row_range.limits[pair]:
                del rest[pair]
        seconds = monotonic_seconds() - began + (earlier.seconds if earlier else 0.0)
        return ScanResult(rows, seconds, bool(rest), complete), replace(row_range, after=after, upto=rest)
