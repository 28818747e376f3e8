"""Batches that the client cannot unpack: find where they end.

The client reports the first offset of such a batch, not the last one, and reads nothing behind it. Every position
inside the batch is refused with that same first offset, so a search finds the first position that is not.
"""

from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import consumer

_SECONDS = 10.0  # for the answer at one position
_POLL_SECONDS = 0.2
_UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})


def is_unreadable(error: KafkaError) -> bool:
    """Return True if the error is about the bytes of a batch, so that another try fails again."""
    return error.code() in _UNREADABLE


def end_of_batch(config: Mapping[str, str], group: str, at: TopicPartition) -> int:
    """Return the offset behind an unreadable batch; the caller's group is neither joined nor changed."""
    ends = {**config, "enable.partition.eof": "true"}
    with closing(consumer(ends, group=group, role="unreadable", protocol="classic")) as client:
        inside, step = at.offset, 1
        while _is_inside(client, at, inside + step):
            inside, step = inside + step, 2 * step
        behind = inside + step
        while behind - inside > 1:
            middle = (inside + behind) // 2
            if _is_inside(client, at, middle):
                inside = middle
            else:
                behind = middle
    return behind


def _is_inside(client: Consumer, first: TopicPartition, offset: int) -> bool:
    _, end = client.get_watermark_offsets(first, timeout=_SECONDS, cached=False)
    if offset >= end:
        return False
    client.assign([TopicPartition(first.topic, first.partition, offset)])
    deadline = monotonic_seconds() + _SECONDS
    while monotonic_seconds() < deadline:
        message: Message | None = client.poll(_POLL_SECONDS)
        if message is None:
            continue
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return False
        if is_unreadable(error):
            return message.offset() == first.offset
    text = f"{first.topic}/{first.partition}: no answer at offset {offset}"
    raise Unavailable(text)
