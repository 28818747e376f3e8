"""Requests that Tidewheel publishes itself: intake applies them as it applies those of clients."""

from collections.abc import Mapping
from datetime import datetime

from tidewheel.jobs.strict_json import compact
from tidewheel.outbox import OutboxLane, OutboxRow
from tidewheel.schemas.codec import encode_fields
from tidewheel.transitions.installation import Installation


def request_row(
    installation: Installation, kind: str, facts: Mapping[str, object], *, key: str, shard: int, at: datetime
) -> OutboxRow:
    """Return the outbox row of a request such as `job.pause`, encoded as events; its reply likewise.

    Args:
        facts: Its fields as in JSON, with the `request_id`: a repeated one is applied once.
    """
    given = {name: value for name, value in facts.items() if value is not None}
    if installation.content_type == "application/json":
        value = compact({"type": kind, **given})
    else:
        payload = {"payload": compact(given["payload"])} if "payload" in given else {}
        value = encode_fields("Request", {**given, **payload, "type": kind.replace(".", "_")})
    return OutboxRow(shard, OutboxLane.EVENTS, installation.topics.requests, key.encode(), value, at)
