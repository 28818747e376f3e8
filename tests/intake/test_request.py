"""Replies: encoded as the schema's own writer encodes them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fixtures.database import Database
from tidewheel.intake.request import reply_row
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.generated.records import Reply, ReplyError, ReplyStatus, RequestOrigin, RequestType

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACCEPTED: dict[str, Any] = {"type": RequestType.JOB_SUBMIT, "tenant": "default", "status": ReplyStatus.ACCEPTED}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"request_id": 'r-"1"\\é\u2028', "key": "a\tb", "job_id": "j", "job_version": 3, "next_run_at": NOW},
        {"type": RequestType.RUN_CANCEL, "run_id": "r", "run_status": "running", "unchanged": True},
        {"backfill_id": "b", "backfill_status": "paused", "occurrences": 0, "cancellation_id": 1 << 40},
        {"origin": RequestOrigin(topic="t", partition=3, offset=1 << 50)},
        {"status": ReplyStatus.REJECTED, "code": "invalid", "errors": (ReplyError(path="a", problem="b", remedy="c"),)},
    ],
)
def test_reply_is_encoded_like_its_schemas_writer(database: Database, facts: dict[str, Any]) -> None:
    known: dict[str, Any] = {"unchanged": False, "errors": (), **ACCEPTED, **facts}
    reply = Reply(**known)
    for encoding, wanted in (("json", encode_json(reply)), ("avro", encode(reply))):
        row = reply_row(database.installation, reply, b"k", encoding, NOW, topic="r")  # type: ignore[arg-type]  # as above
        assert (row.topic, row.value, row.key, row.publish_at) == ("r", wanted, b"k", NOW)
