"""Requests that Tidewheel publishes itself: intake applies them as it applies those of clients."""

import json
from collections.abc import Mapping
from datetime import datetime

from tidewheel.outbox import OutboxLane, OutboxRow
from tidewheel.schemas.codec import encode
from tidewheel.schemas.generated import records
from tidewheel.transitions.installation import Installation


def request_row(
    installation: Installation, kind: str, facts: Mapping[str, str], *, key: str, shard: int, at: datetime
) -> OutboxRow:
    """Return the outbox row of a request such as `job.pause`, encoded as events; its reply likewise."""
    if installation.content_type == "application/json":
        value = json.dumps({"type": kind, **facts}).encode()
    else:
        value = encode(
            records.Request(
                type=records.RequestType(kind.replace(".", "_")),
                request_id=facts["request_id"],
                tenant=facts["tenant"],
                key=facts.get("key"),
                run_id=facts.get("run_id"),
                reason=facts["reason"],
            )
        )
    return own_row(installation, value, key=key, shard=shard, at=at)


def own_row(installation: Installation, value: bytes, *, key: str, shard: int, at: datetime) -> OutboxRow:
    """Return the outbox row of an encoded request."""
    return OutboxRow(shard, OutboxLane.EVENTS, installation.topics.requests, key.encode(), value, at)
