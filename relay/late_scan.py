"""Looking for late rows, those that lie behind the marks, beside reading.

What has gone from the front of the index stays in it while a transaction is open anywhere in the database, and a walk
from the very start meets all of it: 15 s for 4.5 million rows. While walks are quick the reader makes them itself; then
they go on here, on a thread and a session of their own, one slice and class after another.
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
from tidewheel.relay.due_rows import MOST_BYTES, ONE_PLAN, DueRow, Pair, Stretch, due_rows, place_of

_LOG = logging.getLogger("tidewheel.relay")

_PART_SECONDS = 2.0  # what is found by then need not wait for the rest


@dataclass(frozen=True, slots=True)
class Found:
    """What a walk has found since it was asked last.

    Args:
        rows: Late rows, of the slices and classes that have any.
        seconds: What looking has taken, from the walk's beginning.
        more: Whether it goes on.
        whole: Whether nothing is missing, but for what goes on.
    """

    rows: Mapping[Pair, Sequence[DueRow]]
    seconds: float
    more: bool
    whole: bool


class Walker:
    """At most one walk at a time; the reader begins it, and takes what it finds."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "tidewheel-relay-walk", options=ONE_PLAN, autocommit=True)
        self._background = BackgroundQuery[tuple[Found, Stretch]](self._session, "relay-walk")

    @property
    def walking(self) -> bool:
        """Whether a walk is under way, or something that it has found was not taken yet."""
        return self._background.busy

    def begin(self, stretch: Stretch) -> None:
        """Look at everything up to the marks; the walk before must have been taken to its end."""
        self._background.start(partial(self._find, stretch))

    def take(self) -> Found | None:
        """What was found, once, and nothing while it is looked for; begins to look for the rest, if there is any."""
        taken = self._background.take()
        if taken is None:
            return None
        found, rest = taken
        if found.more:
            self._background.start(partial(self._find, rest, found))
        return found

    def close(self) -> None:
        """Give up the look that is under way."""
        self._background.close()

    def _find(self, stretch: Stretch, earlier: Found | None = None) -> tuple[Found, Stretch]:
        """One share of each slice and class, up to so many bytes and seconds; and what is left to look at then."""
        rows: dict[Pair, Sequence[DueRow]] = {}
        whole = earlier is None or earlier.whole
        rest = dict(stretch.upto)
        after = dict(stretch.after)
        room = MOST_BYTES
        began = monotonic_seconds()
        for pair in stretch.upto:
            if room <= 0 or self._background.closing or monotonic_seconds() - began > _PART_SECONDS:
                break
            try:
                with self._session.transaction() as connection:
                    found, room = due_rows(connection, [pair], stretch, room)
            except (Unavailable, psycopg.Error) as error:
                if not self._background.closing:
                    _LOG.warning("slice %d, %s: late rows cannot be looked for now: %s", *pair, error)
                whole = False
                if not is_time_limit(error):
                    rest.clear()
                    break
                del rest[pair]
                continue
            if found:
                rows[pair], after[pair] = found, place_of(found[-1])
            if room > 0 and len(found) < stretch.limits[pair]:
                del rest[pair]
        seconds = monotonic_seconds() - began + (earlier.seconds if earlier else 0.0)
        return Found(rows, seconds, bool(rest), whole), replace(stretch, after=after, upto=rest)
