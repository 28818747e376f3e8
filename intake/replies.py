"""Answers, on their way to the replies topic."""

from datetime import datetime

from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.intake.incoming import Encoding
from tidewheel.outbox import OutboxClass, OutboxRow
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.records import Reply
from tidewheel.transitions.installation import Installation


def reply_row(
    installation: Installation, reply: Reply, key: bytes | None, encoding: Encoding, now: datetime
) -> OutboxRow:
    """The outbox row of an answer: under the request's own key, in the request's own encoding."""
    shard = shard_of(bucket_of(job_id(reply.tenant, reply.key or "")), installation.shards)
    json = encoding == "json"
    return OutboxRow(
        shard=shard,
        outbox_class=OutboxClass.EVENTS,
        topic=installation.topics.replies,
        key=key,
        value=encode_json(reply) if json else encode(reply),
        publish_at=now,
        headers=(("content-type", b"application/json" if json else b"application/avro"),),
    )
