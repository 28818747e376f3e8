"""Delete acknowledged rows, and replies that no topic has taken for a day.

Few are deleted on the caller's thread, many in the background. Meanwhile the relay reads and produces the next batch.
One batch is deleted at a time. A batch whose deletion failed is kept and deleted again before the next one: dropping it
would publish it once more. A crash does exactly that, and loses nothing.

A tenant's topic of replies is made by an operator, and may never be. Without an end its rows would fill the outbox, and
each scan would meet them. A reply is not lost with its row: a repeated request gets it as long as it is remembered.
Shared topics have no such end. Their rows wait, whatever their age.

The age of a row proves no failure, since relays or Kafka may have been down. So the topic must also have failed for a
day in this process.
"""

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import cast

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.relay.due_rows import SESSION_OPTIONS, TOPIC, Batch, DueRow, Published, addresses, ids

_SQL = Statements("tidewheel.relay")
_DELETE_OUTBOX = _SQL["delete_outbox"]
_QUARANTINE_OUTBOX_ROW = _SQL["quarantine_outbox_row"]
_POSTPONE_OUTBOX = _SQL["postpone_outbox"]
_SMALL_ROWS = 64  # deleted on the caller's thread: handing over so few costs more than their statement
_LOG = logging.getLogger("tidewheel.relay")
_DELETE_EXPIRED_REPLIES = Statements("tidewheel.relay")["delete_expired_replies"]
_KEPT = timedelta(days=1)
_EVERY_SECONDS = 60.0
_LIMIT = 1000  # rows of one statement: about ten milliseconds
FAILED_SECONDS = _KEPT.total_seconds()
"""How long a topic must have failed before replies to it are deleted."""


class Deleter:
    """Delete rows of the outbox."""

    def __init__(self, url: str) -> None:
        # A delete by address is cheap, but for a small table the planner prefers a sequential scan. Each statement is a
        # transaction, since repeating it is harmless.
        self._session = Session(url, "tidewheel-relay-delete", options=SESSION_OPTIONS, autocommit=True)
        self._thread = ThreadPoolExecutor(1, "relay-delete")
        self._current: tuple[Batch, Published] | None = None
        self._deletion: Future[None] | None = None

    def in_flight(self) -> list[DueRow]:
        """Return the rows that may not be deleted yet."""
        if self._current is None:
            return []
        _, published = self._current
        return [*published.acknowledged, *published.set_aside()]

    def start(self, batch: Batch, published: Published) -> None:
        """Start to delete a batch, or leave a small one to `wait`; `wait` for the one before first."""
        assert self._current is None  # noqa: S101 - `wait` returns one batch: a second one would be lost
        self._current = batch, published
        if len(batch.rows) > _SMALL_ROWS:
            self._deletion = self._thread.submit(self._delete, published)

    def wait(self) -> tuple[Batch, Published] | None:
        """Wait until the current batch is deleted, and return it once; after Unavailable call it again."""
        if self._current is None:
            return None
        deletion, self._deletion = self._deletion, None
        if deletion is not None:
            deletion.result()
        else:
            self._delete(self._current[1])
        deleted, self._current = self._current, None
        return deleted

    def close(self) -> None:
        """Wait for the current batch and close. After a failure its rows are published again."""
        with suppress(Unavailable, psycopg.Error):
            self.wait()
        self._thread.shutdown()
        self._session.close()

    def _delete(self, published: Published) -> None:
        failpoint("relay.acknowledged")
        if published.acknowledged or published.refused or published.postponed:
            with self._session.transaction() as connection:
                for row, error in published.refused:
                    columns = {"ctids": addresses([row]), "ids": ids([row]), "error": error}
                    connection.execute(_QUARANTINE_OUTBOX_ROW, columns)
                for pause in {pause for _, pause in published.postponed}:
                    rows = [row for row, each in published.postponed if each == pause]
                    connection.execute(_POSTPONE_OUTBOX, {"ctids": addresses(rows), "ids": ids(rows), "pause": pause})
                if published.acknowledged:
                    acknowledged = {"ctids": addresses(published.acknowledged), "ids": ids(published.acknowledged)}
                    # A kept plan compares the ids one by one: cheap for few, and planning is half of their cost.
                    small = len(published.acknowledged) <= _SMALL_ROWS
                    connection.execute(_DELETE_OUTBOX, acknowledged, prepare=small)
        for row, error in published.refused:
            _LOG.error("a message for %s is in quarantine, since it cannot be published: %s", row[TOPIC], error)
        failpoint("relay.deleted")


class ExpiredReplies:
    """Deletes expired replies of the slices that this relay holds, on topics that begin with `prefix`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._session = Session(url, "tidewheel-relay-expired", options=SESSION_OPTIONS, autocommit=True)
        self._prefix = prefix
        self._pacer = FullScanPacer(_EVERY_SECONDS)

    def step(self, held: Sequence[int], failing: Collection[str]) -> None:
        """Delete some expired replies to topics that have failed for a day, if that is due."""
        topics = [topic for topic in failing if topic.startswith(self._prefix)]
        if not (held and topics and self._pacer.start()):
            return
        columns = {
            "slice_lanes": [slice_lane_of(number, OutboxLane.EVENTS) for number in held],
            "topics": topics,
            "kept": _KEPT,
            "limit": _LIMIT,
        }
        with self._session.transaction() as connection:
            found = cast("list[tuple[str, int]]", connection.execute(_DELETE_EXPIRED_REPLIES, columns).fetchall())
        self._pacer.finish()
        for topic, count in found:
            metrics.count("replies_expired", count)
            _LOG.error(
                "%d replies were deleted, since %s has taken none for a day; run `tidewheel admin topics apply "
                "--tenants %s`,"
                " or grant WRITE",
                count,
                topic,
                topic.removeprefix(self._prefix),
            )
        if sum(count for _, count in found) == _LIMIT:
            self._pacer.scan_soon()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
