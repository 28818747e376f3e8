"""Delete acknowledged rows: few on the caller's thread, many in the background.

Meanwhile the relay reads and produces the next batch. One batch is deleted at a time. A batch whose deletion failed is
kept and deleted again before the next one: dropping it would publish it once more. A crash does exactly that, and loses
nothing.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.relay.due_rows import SESSION_OPTIONS, Batch, DueRow, Published, addresses, ids

_SQL = Statements("tidewheel.relay")
_DELETE_OUTBOX = _SQL["delete_outbox"]
_QUARANTINE_OUTBOX_ROW = _SQL["quarantine_outbox_row"]
_POSTPONE_OUTBOX = _SQL["postpone_outbox"]


_SMALL_ROWS = 64  # deleted on the caller's thread: handing over so few costs more than their statement


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
        failpoint("relay.deleted")
