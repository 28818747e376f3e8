"""Apply requests again that the lost database had applied, each at its first time.

The stored offsets lie before them. A trigger gets its old id, because the id is derived from the time of its
application and its coordinates. Later requests without a reply are left to intake.

A request may change a job or its runs. What these had done before is written first.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, Message

from tidewheel.control.restore.history import Answer, History, Place, read_messages, time_of
from tidewheel.errors import UndecodableMessage
from tidewheel.ids import instant_of
from tidewheel.intake.batch import apply_batch, origin_of
from tidewheel.intake.offsets import StoredOffsets, ends_of, partition_of
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.jobs.requests import BatchAdd, BatchSubmit, JobTrigger, RunComplete, RunHeartbeat, RunRetry
from tidewheel.kafka.offsets import read_end_offsets, read_partitions
from tidewheel.kafka.topic_ids import read_topic_id
from tidewheel.postgres.database_clock import as_of
from tidewheel.postgres.session import Session, is_data_fault
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.schemas.requests import read_request
from tidewheel.transitions.batches import batch_id_of
from tidewheel.transitions.installation import Installation

_READ_STORED_OFFSETS = Statements("tidewheel.control.restore")["read_stored_offsets"]
_ADDS = BatchAdd | BatchSubmit | JobTrigger | RunComplete | RunHeartbeat
"""These change no other run and no timer."""


class _Applied(NamedTuple):
    """A message with the time of its first application, which may be known to the microsecond."""

    at: datetime
    is_exact: bool
    message: Message


@dataclass(slots=True)
class Replayed:
    """The requests that were applied again, and those that Kafka no longer had."""

    requests: int = 0
    expired: int = 0


def replay_requests(
    session: Session,
    installation: Installation,
    client: Consumer,
    kafka: Mapping[str, str],
    history: History,
    *,
    reach: Callable[[datetime, UUID | None], None],
) -> Replayed:
    """Apply requests in the order of their first application, one transaction each; a repeat continues.

    Args:
        session: A session of the owner.
        installation: Its names and keys.
        client: Reads the requests.
        kafka: The settings of the client.
        history: What Kafka has.
        reach: Writes what a job, or all jobs, had done until a time. A request that may change that comes after it.
    """
    done = Replayed()
    wanted = _ranges(session, installation, client, history, done)
    if not wanted:
        return done
    topic_ids = {topic: read_topic_id(kafka, topic) for topic, _ in wanted}
    offsets = StoredOffsets("tidewheel restore", topic_ids)
    with session.transaction() as connection:
        next_offsets = offsets.acquire(connection, wanted)
    starts = {place: (max(wanted[place][0], first), wanted[place][1]) for place, first in next_offsets.items()}
    for at, message in _in_order(client, starts, history):
        received = _received(message)
        if received is not None and not isinstance(received.request, _ADDS):
            reach(at, _job_of(history, history.replies.get((*partition_of(message), message.offset() or 0))))
        _apply(session, installation, offsets, message, at)
        done.requests += 1
    return done


def _ranges(
    session: Session, installation: Installation, client: Consumer, history: History, done: Replayed
) -> dict[Place, tuple[int, int]]:
    """Return the first and the next offset of what is applied again, by partition."""
    last: dict[Place, int] = {}
    for topic, partition, offset in history.replies:
        last[topic, partition] = max(last.get((topic, partition), 0), offset + 1)
    names = read_partitions(client)
    shared = [place for name in installation.topics.all_requests(names) for place in names.get(name, [])]
    kept = read_end_offsets(client, [place for place in shared if place in last])
    with session.transaction() as connection:
        rows = connection.execute(_READ_STORED_OFFSETS, binary=True).fetchall()
    stored = {(str(topic), int(str(part))): int(str(offset)) for topic, part, offset in rows}
    ranges: dict[Place, tuple[int, int]] = {}
    for place, (first, _) in kept.items():
        begin = stored.get(place, first)
        done.expired += max(0, min(first, last[place]) - begin)
        if max(begin, first) < last[place]:
            ranges[place] = (max(begin, first), last[place])
    return ranges


def _in_order(
    client: Consumer, starts: Mapping[Place, tuple[int, int]], history: History
) -> Iterator[tuple[datetime, Message]]:
    """Yield messages by the time of their application; those of one partition stay in their order."""
    parts: dict[Place, list[_Applied]] = {}
    for message in read_messages(client, starts):
        place = partition_of(message)
        answer = history.replies.get((*place, message.offset() or 0))
        parts.setdefault(place, []).append(_applied(message, answer, history))
    ordered = [_between_neighbours(part) for part in parts.values()]
    for each in heapq.merge(*ordered, key=lambda each: (each.at, each.message.offset() or 0)):
        yield each.at, each.message


def _between_neighbours(part: list[_Applied]) -> list[_Applied]:
    """Move the times of a partition that are not exact between those that are."""
    latest = datetime.max.replace(tzinfo=UTC)
    for number, each in reversed([*enumerate(part)]):
        at = each.at if each.is_exact else min(each.at, latest)
        part[number], latest = each._replace(at=at), at if each.is_exact else latest
    earliest = datetime.min.replace(tzinfo=UTC)
    for number, each in enumerate(part):
        at = each.at if each.is_exact else max(each.at, earliest)
        part[number], earliest = each._replace(at=at), at
    return part


def _job_of(history: History, answer: Answer | None) -> UUID | None:
    """Return the one job that a request is about; none if there may be several."""
    if answer is None:
        return None
    job, run = answer.reply.job_id, answer.reply.run_id
    if job is None and run is not None:
        known = history.ends.get(UUID(run)) or history.requests.get(UUID(run))
        job = known.job_id if known is not None else None
    return UUID(job) if job is not None else None


def _received(message: Message) -> ReceivedRequest | None:
    """Return the request of a message; none if it has none that can be read."""
    value = message.value()
    if not isinstance(value, bytes):
        return None
    try:
        request, encoding = read_request(value)
    except (UndecodableMessage, RequestRefused):
        return None
    return ReceivedRequest(request, origin_of(message), encoding, None, message.timestamp()[1])


def _applied(message: Message, answer: Answer | None, history: History) -> _Applied:
    """Return a message with the time of its first application.

    That of a request that leaves no time is between those of its neighbours, and not after the reply.
    """
    if answer is None:
        return _Applied(time_of(message), is_exact=False, message=message)
    at = _exact_time(message, answer, history)
    return _Applied(at or answer.replied_at, is_exact=at is not None, message=message)


def _exact_time(message: Message, answer: Answer, history: History) -> datetime | None:
    """Return the time in the ids of a request's runs, or of its change of a job; none if it left none."""
    received, reply = _received(message), answer.reply
    if received is None or reply.unchanged:
        return None
    match received.request:
        case JobTrigger(run_at=run_at, delay=delay):
            due = reply.next_run_at if run_at is None else None
            return None if due is None else due - (delay or timedelta(0))
        case RunRetry() if reply.run_id is not None:
            return instant_of(UUID(reply.run_id))
        case BatchSubmit() if reply.batch_id is not None:
            batch_id, seed = UUID(reply.batch_id), received.seed() or b""
            instants = (instant_of(batch_id) + timedelta(microseconds=each) for each in range(1000))
            return next((at for at in instants if batch_id_of(reply.tenant, seed, at) == batch_id), None)
        case request if request.type.startswith("job."):
            return history.changed_at(answer)
        case _:
            return None


def _apply(
    session: Session, installation: Installation, offsets: StoredOffsets, message: Message, at: datetime
) -> None:
    ends = ends_of([message])
    failure: Exception | None = None
    for _ in range(2):
        try:
            with session.transaction() as connection:
                offsets.store(connection, ends)
                with as_of(at):
                    apply_batch(connection, installation, [message], failure, at)
                failpoint("restoring.request")
            break
        except psycopg.Error as error:
            if failure is not None or not is_data_fault(error):
                raise
            failure = error  # intake had rejected it too
    offsets.committed(ends)
