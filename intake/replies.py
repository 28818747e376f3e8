"""Answers, on their way to the replies topic."""

from datetime import datetime
from functools import lru_cache
from json.encoder import encode_basestring
from uuid import UUID

from tidewheel.ids import bucket_of, job_id, shard_of
from tidewheel.intake.incoming import Encoding
from tidewheel.jobs.timestamps import format_timestamp
from tidewheel.outbox import OutboxClass, OutboxRow, pack
from tidewheel.schemas.codec import encode, encode_json
from tidewheel.schemas.records import Reply, ReplyStatus, RequestOrigin, RequestType
from tidewheel.transitions.installation import Installation

_HEADERS = {
    "json": pack([("content-type", b"application/json")]),
    "avro": pack([("content-type", b"application/avro")]),
}


def reply_row(
    installation: Installation,
    reply: Reply,
    key: bytes | None,
    encoding: Encoding,
    now: datetime,
    *,
    about: UUID | None = None,
) -> OutboxRow:
    """The outbox row of an answer: under the request's own key, in the request's own encoding.

    Args:
        installation: Topics and shards.
        reply: The answer.
        key: The request's own.
        encoding: The request's own.
        now: The database's clock.
        about: The id of the job concerned, where it is known.
    """
    shard = shard_of(bucket_of(about or job_id(reply.tenant, reply.key or "")), installation.shards)
    value = _json(reply) if encoding == "json" else encode(reply)
    topic = installation.topics.replies
    return OutboxRow(shard, OutboxClass.EVENTS, topic, key, value, now, _HEADERS[encoding])


def _json(reply: Reply) -> bytes:
    """What `encode_json` returns; an acceptance is written in place, which takes a fifth of the time."""
    if reply.status is not ReplyStatus.ACCEPTED or reply.errors or reply.code is not None:
        return encode_json(reply)
    return (
        f'{{"request_id":{_text(reply.request_id)},"type":"{_TYPES[reply.type]}","tenant":{_text(reply.tenant)}'
        f',"key":{_text(reply.key)},"status":"accepted","job_id":{_text(reply.job_id)}'
        f',"job_version":{_number(reply.job_version)},"run_id":{_text(reply.run_id)}'
        f',"run_status":{_text(reply.run_status)},"next_run_at":{_instant(reply.next_run_at)}'
        f',"backfill_id":{_text(reply.backfill_id)},"backfill_status":{_text(reply.backfill_status)}'
        f',"occurrences":{_number(reply.occurrences)},"cancellation_id":{_number(reply.cancellation_id)}'
        f',"unchanged":{"true" if reply.unchanged else "false"},"code":null,"errors":[]'
        f',"origin":{_origin(reply.origin)}}}'
    ).encode()


def _text(value: str | None) -> str:
    return "null" if value is None else encode_basestring(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


@lru_cache(maxsize=4096)  # the requests of a batch share theirs
def _instant(value: datetime | None) -> str:
    return "null" if value is None else f'"{format_timestamp(value)}"'


def _origin(origin: RequestOrigin | None) -> str:
    if origin is None:
        return "null"
    return f'{{"topic":{_text(origin.topic)},"partition":{origin.partition},"offset":{origin.offset}}}'


_TYPES = {kind: kind.value.replace("_", ".") for kind in RequestType}
