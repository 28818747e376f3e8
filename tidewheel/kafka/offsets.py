"""Read the offsets and the ids of topics, and find the end of a batch that the client cannot unpack.

The admin client's requests for offsets end the whole process if a broker restarts meanwhile. The consumer's do not.
Source: https://github.com/confluentinc/librdkafka/issues/3663

The client reports the first offset of an unreadable batch, not the last one, and reads nothing behind it. Every
position inside the batch is refused with that same first offset, so a search finds the first position that is not.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Protocol, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined]  # its stub re-exports none

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import BOUNDED_FETCH, consumer

_SECONDS = 3.0  # `tidewheel status` goes on without
_SILENT = frozenset({KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._TRANSPORT})
_DESCRIBE_SECONDS = 10.0
_LOOK_UP_SECONDS = 10.0  # by time

GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors of a topic that was deleted, is not known yet, or may not be read."""

_SEARCH_SECONDS = 10.0  # for the answer at one position
_POLL_SECONDS = 0.2
_UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})


@contextmanager
def offsets_client(config: Mapping[str, str], group: str = "tidewheel.offsets") -> Generator[Consumer]:
    """Open a client that reads offsets and never joins its group."""
    reading = {"client.id": "tidewheel-offsets", "group.id": group, "enable.auto.commit": False, "log_level": 2}
    client = Consumer({**config, **reading, **BOUNDED_FETCH})
    try:
        yield client
    finally:
        client.close()


def read_partitions(client: Consumer, topic: str | None = None) -> dict[str, list[tuple[str, int]]]:
    """Return the partitions of one topic, or of all."""
    found = _list_topics(client, topic)
    return {name: [(name, partition) for partition in each.partitions] for name, each in found.items()}


def read_end_offsets(client: Consumer, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and the next offset of each partition."""
    if not places:
        return {}
    # The time of a request for the first or the next offset is that constant.
    asked = ([TopicPartition(*place, at) for place in places] for at in (OFFSET_BEGINNING, OFFSET_END))
    try:
        first, last = (client.offsets_for_times(each, timeout=_SECONDS) for each in asked)
    except KafkaException as error:
        raise Unavailable(f"offsets cannot be read: {error.args[0].str()}") from error
    for place in (*first, *last):
        if place.error is not None:
            raise Unavailable(f"the offsets of {place.topic} cannot be read: {place.error.str()}")
    return {place: (start.offset, end.offset) for place, start, end in zip(places, first, last, strict=True)}


def read_offsets_since(
    client: Consumer, places: Sequence[tuple[str, int]], since: datetime, *, what: str = "offsets"
) -> dict[tuple[str, int], int]:
    """Return the first offset of each partition from an instant on; negative where none is so late."""
    if not places:
        return {}
    stamp = int(since.timestamp() * 1000)
    try:
        asked = [TopicPartition(*place, stamp) for place in places]
        found = client.offsets_for_times(asked, timeout=_LOOK_UP_SECONDS)
    except KafkaException as error:
        raise Unavailable(f"{what} cannot be read: {error.args[0].str()}") from error
    return {(each.topic, each.partition): each.offset for each in found}


def read_led_offsets(client: Consumer, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and the next offset of those partitions whose leader answers.

    It takes two requests a leader.
    """
    if not places:
        return {}
    topics = _list_topics(client)
    by_leader: dict[int, list[tuple[str, int]]] = {}
    for topic, number in places:
        partition = topics[topic].partitions.get(number) if topic in topics else None
        if partition is not None and partition.leader >= 0:
            by_leader.setdefault(partition.leader, []).append((topic, number))
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for some in by_leader.values():
        found |= _read_readable(client, some)
    return found


def _list_topics(client: Consumer, topic: str | None = None) -> dict[str, TopicMetadata]:
    try:
        found = client.list_topics(topic, timeout=_SECONDS) if topic else client.list_topics(timeout=_SECONDS)
    except KafkaException as error:
        raise Unavailable(f"no broker answers: {error.args[0].str()}") from error
    return cast("dict[str, TopicMetadata]", found.topics)


def _read_readable(client: Consumer, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the offsets of those partitions of one leader that can be read.

    One that cannot be read fails a whole request.
    """
    try:
        return read_end_offsets(client, places)
    except Unavailable as error:
        silent = isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].code() in _SILENT
        if silent or len(places) == 1:
            return {}
    middle = len(places) // 2
    return _read_readable(client, places[:middle]) | _read_readable(client, places[middle:])


def read_committed(
    config: Mapping[str, str], group: str, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the next offset of each partition that a group has read; partitions without one are left out."""
    try:
        with offsets_client(config, group) as client:
            found = client.committed([TopicPartition(*place) for place in places], timeout=_SECONDS)
    except KafkaException as error:
        raise Unavailable(f"the offsets of {group} cannot be read: {error.args[0].str()}") from error
    return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}


class _TopicDescription(Protocol):
    topic_id: object


def read_topic_id(config: Mapping[str, str], name: str) -> str:
    """Return the id of a topic."""
    if (found := read_topic_ids(config, [name]).get(name)) is not None:
        return found
    message = f"{name} cannot be described: there is none, or it is not authorized; run `tidewheel admin topics apply`"
    raise Unavailable(message)


def read_topic_ids(config: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the ids of those topics that exist and may be described."""
    if not names:
        return {}
    # Kept until the result: its end would abort the request.
    admin = AdminClient({**config, "client.id": "tidewheel-topics", "log_level": 2})
    ids: dict[str, str] = {}
    found = cast(
        "dict[str, Future[_TopicDescription]]",
        admin.describe_topics(TopicCollection([*names]), request_timeout=_DESCRIBE_SECONDS),  # pyright: ignore[reportUnknownMemberType]
    )
    for name, future in found.items():
        try:
            ids[name] = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() not in GONE:
                raise Unavailable(f"{name} cannot be described: {error.args[0].str()}") from error
    return ids


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
    _, end = client.get_watermark_offsets(first, timeout=_SEARCH_SECONDS, cached=False)
    if offset >= end:
        return False
    client.assign([TopicPartition(first.topic, first.partition, offset)])
    deadline = monotonic_seconds() + _SEARCH_SECONDS
    while monotonic_seconds() < deadline:
        message: Message | None = client.poll(_POLL_SECONDS)
        if message is None:
            continue
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return False
        if is_unreadable(error):
            return message.offset() == first.offset
    raise Unavailable(f"{first.topic}/{first.partition}: no answer at offset {offset}")
