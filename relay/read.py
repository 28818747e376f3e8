"""Reading what is due, from low-water marks on.

Reading from the front of the index would meet each dead row that vacuum could not remove yet, and each that is under
way. A mark says up to where everything of a slice and class has been read, if its transaction committed within a second
of its clock reading. What lies behind it all the same, because it came later or was read and not published, is found by
the walk from the very start, once a second at most. Marks are only in memory: a new relay begins with a walk.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import cast

from psycopg import capabilities

from tidewheel import arrays
from tidewheel.db import Conn, Session
from tidewheel.marks import Walks
from tidewheel.outbox import OutboxClass
from tidewheel.relay.batch import ID, POSITION, VALUE, Batch, DueRow, Pair, Place, Published, counts_of, ids
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.relay")
_READ_OUTBOX = _SQL["read_outbox"]
_READ_CLOCK = Statements("tidewheel")["read_clock"]
_PROBE_OUTBOX = _SQL["probe_outbox"]

# Shares of a batch, in the order they are produced: a class that has less leaves nothing to the others, so the sum may
# exceed 1; what matters is that a flood of one class cannot take another's share.
_WEIGHTS = {OutboxClass.CRITICAL: 1.0, OutboxClass.STANDARD: 0.6, OutboxClass.EVENTS: 0.6, OutboxClass.BATCH: 0.2}

# The planner takes a small table as a reason to read all of it, and it is often small. With one plan left, that of a
# look need not be made each time: half of what it costs. A read is never prepared, for its plan hashes the ids that are
# passed over, which needs to know them.
_ONE_PLAN = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c plan_cache_mode=auto"

_BEGINNING = (datetime(1970, 1, 1, tzinfo=UTC), 0)
_LATE_COMMIT = timedelta(seconds=1)  # between a transaction's clock reading and its commit; later ones meet the walk
_MOST_BYTES = 32 * 1024 * 1024  # of messages in one batch; three are in memory at a time
# Rows that are received together, so that their bytes are counted as they come: a sum in the statement would cost half
# as much again as reading. Older client libraries give single rows only.
_CHUNK_ROWS = 100 if capabilities.has_stream_chunked() else 1


class Reader:
    """Due rows of the slices that are held."""

    def __init__(self, url: str, most: int) -> None:
        self._session = Session(url, "tidewheel-relay", options=_ONE_PLAN, autocommit=True)
        self._most = most
        self._marks: dict[Pair, Place] = {}
        self._parked: frozenset[str] = frozenset()
        self._walks = Walks()
        self._behind = False  # the batch before was full

    def read(self, held: Sequence[int], parked: list[str], under_way: Sequence[DueRow]) -> Batch:
        """The next batch; it will not be read again, but by a walk, or after `forget`.

        Args:
            held: The slices that are ours.
            parked: Topics that are left alone.
            under_way: What was read before, and may still be there.

        Raises:
            Unavailable: PostgreSQL does not answer.
        """
        if not self._parked.issubset(parked):
            self._marks.clear()  # they went on past the rows of a topic that is served again, and those come first
        self._parked = frozenset(parked)
        walk = self._walks.begin()
        pairs = _pairs(held)
        limits = [max(1, int(self._most * _WEIGHTS[name] / len(held))) for _, name in pairs]
        columns = {
            **_columns(pairs, {} if walk else self._marks, parked),
            "limits": arrays.integers(limits),
            "under_way": ids(under_way),
        }
        with self._session.transaction() as connection, connection.cursor() as cursor:
            now = _clock(connection) if self._behind else _BEGINNING[0]
            found = cursor.stream(_READ_OUTBOX, columns, binary=True, size=_CHUNK_ROWS)
            rows, cut = _up_to(_MOST_BYTES, cast("Generator[DueRow]", found))
        self._walks.ended()
        counts, most = counts_of(rows, pairs), dict(zip(pairs, limits, strict=True))
        self._behind = cut or any(count == most[pair] for pair, count in counts.items())
        batch = Batch(rows, pairs, counts, full=self._behind)
        self._move_marks(batch, now - _LATE_COMMIT)
        return batch

    def earliest(
        self, held: Sequence[int], parked: list[str], *, all_read: bool = False
    ) -> tuple[datetime, dict[str, datetime]]:
        """The database's clock, and when the earliest row of each class is due.

        Args:
            held: The slices that are ours.
            parked: Topics that are left alone.
            all_read: Whether nothing is under way: then this look is the walk, when one is due, and where it finds
                something the next read is another.

        Raises:
            Unavailable: PostgreSQL does not answer.
        """
        walk = all_read and self._walks.begin()
        columns = _columns(_pairs(held), {} if walk else self._marks, parked)
        with self._session.transaction() as connection:
            rows = connection.execute(_PROBE_OUTBOX, columns, binary=True).fetchall()
        now = cast("datetime", rows[0][2])
        earliest = {str(name): at for name, at, _ in rows if isinstance(at, datetime)}
        if walk and all(at > now for at in earliest.values()):
            self._walks.ended()
        return now, earliest

    def forget(self) -> None:
        """Read everything again that is still there: something was read and not published."""
        self._marks.clear()

    def forget_what_stays(self, batch: Batch, published: Published) -> None:
        """Read again what was left of a batch, if anything was."""
        if len(batch.rows) > len(published.proven) + len(published.refused):
            done = {row[ID] for row in published.proven} | {row[ID] for row, _ in published.refused}
            for pair in {batch.pairs[row[POSITION] - 1] for row in batch.rows if row[ID] not in done}:
                self._marks.pop(pair, None)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _move_marks(self, batch: Batch, safe: datetime) -> None:
        for pair, (publish_at, row_id) in batch.last():
            # A walk that found a whole share behind the mark moves it back.
            if publish_at <= safe:
                self._marks[pair] = publish_at, row_id
            else:
                self._marks[pair] = max(safe, publish_at - _LATE_COMMIT), 0


def _pairs(held: Sequence[int]) -> list[Pair]:
    return [(number, name) for name in _WEIGHTS for number in held]


def _columns(pairs: Sequence[Pair], marks: dict[Pair, Place], parked: list[str]) -> dict[str, object]:
    behind = [marks.get(pair, _BEGINNING) for pair in pairs]
    return {
        "slices": arrays.integers(number for number, _ in pairs),
        "classes": arrays.words(name for _, name in pairs),
        "marks": arrays.instants(publish_at for publish_at, _ in behind),
        "mark_ids": arrays.integers(row_id for _, row_id in behind),
        "parked": parked,
    }


def _clock(connection: Conn) -> datetime:
    row = connection.execute(_READ_CLOCK, binary=True).fetchone()
    return cast("datetime", row[0] if row else None)


def _up_to(most_bytes: int, found: Generator[DueRow]) -> tuple[list[DueRow], bool]:
    """The rows that are found, up to so many bytes; and whether there are more."""
    rows: list[DueRow] = []
    size = 0
    with closing(found):  # what is not wanted is not sent
        for row in found:
            rows.append(row)
            if (value := row[VALUE]) is not None:
                size += len(value)
                if size >= most_bytes:
                    return rows, True
    return rows, False
