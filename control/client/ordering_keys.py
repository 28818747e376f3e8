"""`client.ordering_keys`: ordering keys that a failed run blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.limits import BlockedKey, list_blocked_keys, read_blocked_key
from tidewheel.errors import refuse
from tidewheel.ids import RunId
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.transitions.order_keys import skip_blocker


@dataclass(frozen=True, slots=True)
class UnblockedKey:
    """The result of unblocking a key.

    Args:
        run_id: The retry; the run that had failed if it was skipped.
        skipped: True if the next run starts without a retry.
    """

    run_id: RunId
    skipped: bool


class OrderingKeys:
    """List and unblock keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def blocked(self, *, after: tuple[datetime, str] | None = None, limit: int = 50) -> Sequence[BlockedKey]:
        """Return the blocked keys, the longest first.

        Args:
            after: `blocked_at` and `key` of the last one of the page before.
        """
        with self._connection.snapshot() as connection:
            return list_blocked_keys(connection, self._connection.tenant, after=after, limit=as_int(limit, "limit"))

    def unblock(self, key: str, *, skip: bool = False, request_id: str | None = None) -> UnblockedKey:
        """Retry the failed run of a blocked key, whose success lets the next one start.

        Args:
            skip: True to let the next run start without a retry.
            request_id: A repeated id makes no second retry; not with `skip`.

        Raises:
            Refused: The key is not blocked, or a retry of the run is open.
        """
        own = self._connection
        if skip:
            if request_id is not None:
                refuse("request_id", "a skip makes no run", "leave it out")
            # Not twice: a repeat after a lost COMMIT would skip the failure of the next run.
            skipped = own.write(lambda connection: self._skip(connection, key), once=True)
            own.notify(Channel.OUTBOX)
            return UnblockedKey(RunId(skipped), skipped=True)
        with own.transaction() as connection:
            found = read_blocked_key(connection, own.tenant, key)
        if found is None:
            refuse(
                "key",
                f"the ordering key {key!r} is not blocked",
                "`tidewheel admin ordering-key list` lists those that are",
            )
        document = {"type": "run.retry", "run_id": str(found.blocked_by)}
        if found.retried_by is not None:
            refuse("key", f"run {found.retried_by} retries the failed run", "wait for its end")
        return UnblockedKey(RunId(UUID(own.request(document, request_id).run_id)), skipped=False)

    def _skip(self, connection: Conn, key: str) -> UUID:
        blocker = skip_blocker(connection, self._connection.installation, self._connection.tenant, key)
        self._connection.record(connection, "ordering_key.skip", f"ordering_key/{key}")
        return blocker
