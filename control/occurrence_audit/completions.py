"""Compare the ends of runs on Kafka with those in the database.

A fail-over to a server that lacks the last transactions leaves Kafka ahead. A run has a completion: the database has
it open, ended at another time, or not at all.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.control.occurrence_audit.compare import Finding
from tidewheel.control.occurrence_audit.records import Scope
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.kafka.clients import poll_batch
from tidewheel.kafka.offsets import offsets_client, read_end_offsets, read_partitions
from tidewheel.kafka.unreadable import end_of_batch, is_unreadable
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_FIND_UNRECORDED = Statements("tidewheel.control.occurrence_audit")["find_unrecorded_ends"]
_LOG = logging.getLogger(__name__)
_GROUP = "tidewheel.audit"
_MARGIN = timedelta(minutes=1)  # the longest transaction: an end may be younger than the snapshot
_SILENT_SECONDS = 30.0  # without a message
_BATCH = 1000
_KAFKA_SECONDS = 10.0


class EndedRun(NamedTuple):
    """A finding with the job of its run; tenant and key are empty if the database lacks the job."""

    tenant: str
    key: str
    job_id: UUID
    finding: Finding


class _End(NamedTuple):
    run_id: UUID
    job_id: UUID
    finished_at: datetime


class _Unrecorded(NamedTuple):
    """A row of `find_unrecorded_ends`, its columns in this order."""

    run_id: UUID
    job_id: UUID
    finished_at: datetime
    tenant: str | None
    key: str | None
    state: str | None
    ended_at: datetime | None


def unrecorded_ends(
    connection: Conn, kafka: Mapping[str, str], topic: str, scope: Scope, taken_at: datetime
) -> Iterator[EndedRun]:
    """Yield the completions of a range of ends that the snapshot of the connection lacks."""
    before = min(scope.before, taken_at - _MARGIN)
    with offsets_client({**kafka, "enable.partition.eof": "true"}, _GROUP) as client:
        for ends in _read_ends(client, kafka, topic, scope.first, before):
            wanted = [each for each in ends if scope.job_id in (None, each.job_id)]
            columns = {
                "run_ids": [each.run_id for each in wanted],
                "job_ids": [each.job_id for each in wanted],
                "instants": [each.finished_at for each in wanted],
                "tenant": scope.tenant,
            }
            with connection.cursor(row_factory=rows_of(_Unrecorded._make), binary=True) as cursor:
                yield from map(_finding, cursor.execute(_FIND_UNRECORDED, columns).fetchall())


def _finding(row: _Unrecorded) -> EndedRun:
    if row.ended_at is not None:
        words = f"the database has its end at {format_timestamp(row.ended_at)}: it was executed twice"
    elif row.state is not None:
        words = f"the database has it as {row.state}: it is executed again"
    else:
        words = "the database has no such run"
    words = f"run {row.run_id} has a completion on Kafka, and {words}"
    finding = Finding("unrecorded", row.finished_at, row.finished_at, 1, words)
    return EndedRun(row.tenant or "", row.key or "", row.job_id, finding)


def _read_ends(
    client: Consumer, kafka: Mapping[str, str], topic: str, first: datetime, before: datetime
) -> Iterator[Sequence[_End]]:
    """Yield the ends of a range, by their headers, as the topic has them now.

    A partition is read once its position is at the end of now, where no readable message may lie.
    """
    stamp = int((first - _MARGIN).timestamp() * 1000)
    partitions = read_partitions(client, topic).get(topic, [])
    ends = {part: end for (_, part), (_, end) in read_end_offsets(client, partitions).items()}
    places = [TopicPartition(*place, stamp) for place in partitions]
    try:
        found = client.offsets_for_times(places, timeout=_KAFKA_SECONDS) if places else []
    except KafkaException as error:
        message = f"offsets of {topic} cannot be read: {error.args[0].str()}"
        raise Unavailable(message) from error
    left = {each.partition: each.offset for each in found if 0 <= each.offset < ends[each.partition]}
    client.assign([TopicPartition(topic, part, offset) for part, offset in left.items()])
    deadline = monotonic_seconds() + _SILENT_SECONDS
    while left:
        batch = list[_End]()
        for received in poll_batch(client, _BATCH, 0.2):
            part, offset = received.partition(), received.offset()
            if part is None or offset is None or part not in left or offset < left[part]:
                continue  # read already, or of a later time
            position = _position_after(client, kafka, received, offset)
            if position is None:
                continue
            deadline = monotonic_seconds() + _SILENT_SECONDS
            if (end := _end_of(received)) is not None and first <= end.finished_at < before:
                batch.append(end)
            left[part] = position
            if position >= ends[part]:
                del left[part]
        yield batch
        if left and monotonic_seconds() > deadline:
            message = f"{topic} sends nothing for {_SILENT_SECONDS:.0f} s; repeat the audit when the brokers answer"
            raise Unavailable(message)


def _position_after(client: Consumer, kafka: Mapping[str, str], received: Message, offset: int) -> int | None:
    """Return the position behind a message, a batch that cannot be unpacked, or a partition."""
    error = received.error()
    if error is None:
        return offset + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return offset
    if not is_unreadable(error):
        return None
    at = TopicPartition(received.topic() or "", received.partition() or 0, offset)
    behind = end_of_batch(kafka, _GROUP, at)
    _LOG.warning(
        "%s/%d: completions from offset %d to %d are not compared: %s",
        at.topic, at.partition, offset, behind - 1, error.str(),
    )  # fmt: skip
    client.seek(TopicPartition(at.topic, at.partition, behind))
    return behind


def _end_of(received: Message) -> _End | None:
    """Return the end that a message tells; None if it tells none."""
    key, headers = received.key(), dict(cast("list[tuple[str, bytes]]", received.headers() or []))
    if received.error() is not None or not isinstance(key, bytes) or not {"ce_time", "ce_subject"} <= headers.keys():
        return None
    at = datetime.fromisoformat(headers["ce_time"].decode())
    return _End(UUID(headers["ce_subject"].decode()), UUID(key.decode()), at)
