"""`client.backfills`: pause, resume and cancel backfills. `Client.backfill` creates one."""

from uuid import UUID

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.results import BackfillResult, backfill_of


class Backfills:
    """Requests about existing backfills."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        document = {"type": kind, "backfill_id": str(backfill_id), "reason": reason}
        return backfill_of(self._connection.request(document))
