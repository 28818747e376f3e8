"""Deleting what is proven, on a thread and a connection of its own, while the next batch is read and produced.

One batch at a time. One whose deletion failed is kept and tried again before another is taken: forgetting it would
publish it once more. A crash meanwhile does just that, and loses nothing.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.relay.due_rows import Batch, DueRow, Published, addresses, ids

_SQL = Statements("tidewheel.relay")
_DELETE_OUTBOX = _SQL["delete_outbox"]
_SET_ROW_ASIDE = _SQL["set_row_aside"]


class Deleter:
    """Takes rows out of the outbox in the background."""

    def __init__(self, url: str) -> None:
        # By address is cheap, but the planner takes a small table as a reason to read all of it.
        self._session = Session(url, "tidewheel-relay-delete", options="-c enable_seqscan=off")
        self._thread = ThreadPoolExecutor(1, "relay-delete")
        self._taken: tuple[Batch, Published] | None = None
        self._deletion: Future[None] | None = None

    def under_way(self) -> list[DueRow]:
        """Rows that may not be deleted yet."""
        if self._taken is None:
            return []
        _, published = self._taken
        return [*published.proven, *(row for row, _ in published.refused)]

    def take(self, batch: Batch, published: Published) -> None:
        """Delete a batch; the one before must be settled."""
        assert self._taken is None  # noqa: S101 - two at once would be one that nobody waits for
        self._taken = batch, published
        self._deletion = self._thread.submit(self._delete, published)

    def settle(self) -> tuple[Batch, Published] | None:
        """Wait until the batch that was taken is deleted; returns it once.

        Raises:
            Unavailable: It could not be deleted; it is tried again at the next call.
        """
        if self._taken is None:
            return None
        deletion = self._deletion or self._thread.submit(self._delete, self._taken[1])
        self._deletion = None
        deletion.result()
        settled, self._taken = self._taken, None
        return settled

    def close(self) -> None:
        """Wait for what is under way; never raises for it: what is not deleted is published once more."""
        with suppress(Unavailable, psycopg.Error):
            self.settle()
        self._thread.shutdown()
        self._session.close()

    def _delete(self, published: Published) -> None:
        failpoint("relay.acknowledged")
        if published.proven or published.refused:
            with self._session.transaction() as connection:
                for row, error in published.refused:
                    aside = {"places": addresses([row]), "ids": ids([row]), "error": error}
                    connection.execute(_SET_ROW_ASIDE, aside)
                if published.proven:
                    gone = {"places": addresses(published.proven), "ids": ids(published.proven)}
                    connection.execute(_DELETE_OUTBOX, gone)
        failpoint("relay.deleted")
