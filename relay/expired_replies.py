"""Delete replies that no topic has taken for a day: that of a tenant is missing, or forbidden.

A tenant's topic of replies is made by an operator, and may never be. Without an end its rows would fill the outbox, and
each scan would meet them. A reply is not lost with its row: a repeated request gets it as long as it is remembered.
Shared topics have no such end. Their rows wait, whatever their age.

The age of a row proves no failure, since relays or Kafka may have been down. So the topic must also have failed for a
day in this process.
"""

import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import cast

from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.relay.due_rows import SESSION_OPTIONS

_LOG = logging.getLogger("tidewheel.relay")

_DELETE_EXPIRED_REPLIES = Statements("tidewheel.relay")["delete_expired_replies"]

_KEPT = timedelta(days=1)
_EVERY_SECONDS = 60.0
_LIMIT = 1000  # rows of one statement: about ten milliseconds

FAILED_SECONDS = _KEPT.total_seconds()
"""How long a topic must have failed before replies to it are deleted."""


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
