"""`client.backfills`: follow, pause, resume and cancel backfills. `Client.backfill` creates one."""

from collections.abc import Callable
from uuid import UUID

from tidewheel.control.client.arguments import as_id
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.polling import POLL_SECONDS, Polling
from tidewheel.control.client.results import BackfillResult, backfill_of
from tidewheel.control.reads.backfills import BackfillProgress, backfill


class Backfills:
    """Requests about existing backfills."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, backfill_id: UUID) -> BackfillProgress:
        """Return a backfill with the states of its runs.

        Raises:
            UnknownBackfill: The tenant has no backfill of this id.
        """
        backfill_id = as_id(backfill_id, "backfill_id")
        with self._connection.snapshot() as connection:
            return backfill(connection, self._connection.tenant, backfill_id)

    def wait(
        self,
        backfill_id: UUID,
        *,
        timeout: float | None = None,
        on_progress: Callable[[BackfillProgress], None] | None = None,
    ) -> BackfillProgress:
        """Wait until a backfill is finished or cancelled; return it.

        Args:
            timeout: The most seconds to wait.
            on_progress: Called with the backfill twice a second.

        Raises:
            UnknownBackfill: The tenant has no backfill of this id.
            TimeoutError: It has not ended in time.
        """
        polling = Polling("backfill", backfill_id, timeout, on_progress)
        while polling.goes_on(found := self.get(backfill_id), found.summary):
            self._connection.sleep(POLL_SECONDS)
        return found

    def pause(self, backfill_id: UUID, *, reason: str | None = None) -> BackfillResult:
        """Create no further run of a backfill until it is resumed."""
        return self._request("backfill.pause", backfill_id, reason)

    def resume(self, backfill_id: UUID) -> BackfillResult:
        """Resume a backfill."""
        return self._request("backfill.resume", backfill_id, None)

    def cancel(self, backfill_id: UUID, *, reason: str | None = None) -> BackfillResult:
        """Stop a backfill, and cancel its runs that have not started."""
        return self._request("backfill.cancel", backfill_id, reason)

    def _request(self, kind: str, backfill_id: UUID, reason: str | None) -> BackfillResult:
        backfill_id = as_id(backfill_id, "backfill_id")
        document = {"type": kind, "backfill_id": str(backfill_id), "reason": reason}
        return backfill_of(self._connection.request(document))
