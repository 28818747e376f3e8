"""Apply requests again that the lost database had applied, each at its first time.

The stored offsets lie before them. Ids of runs and batches contain the time at which their request was applied, so the
same time gives the same ids. A request has been applied if Kafka has its reply or a run of it; so have those before it
on its partition. Later ones are left to intake. A refused request is not applied: its reply is stored.

A request may change a job or its runs. What these had done before is written first.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, Message

from tidewheel.control.restore.history import Answer, History, Place, read_messages, time_of
from tidewheel.control.restore.timers import LATEST, Past
from tidewheel.ids import instant_of, job_id, run_id
from tidewheel.intake.apply import store_reply
from tidewheel.intake.batch import apply_batch, decode_message
from tidewheel.intake.partitions import StoredOffsets, ends_of, partition_of
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.requests import (
    BatchAdd,
    BatchClose,
    BatchSubmit,
    JobTrigger,
    RunCancel,
    RunComplete,
    RunHeartbeat,
    RunRetry,
)
from tidewheel.kafka.offsets import read_end_offsets, read_partitions, read_topic_id
from tidewheel.postgres.database_clock import as_of
from tidewheel.postgres.session import Session, is_data_fault
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import Cause
from tidewheel.schemas.generated.records import Reply, ReplyStatus, RunCompleted
from tidewheel.transitions.batch_writer import member_id
from tidewheel.transitions.batches import batch_id_of
from tidewheel.transitions.installation import Installation

_READ_STORED_OFFSETS = Statements("tidewheel.control.restore")["read_stored_offsets"]
_ADDS = BatchAdd | BatchClose | BatchSubmit | JobTrigger | RunComplete | RunHeartbeat
"""These change no other run and no timer."""
_NEAR = timedelta(minutes=1)  # between the clocks of a producer and of the database
_EARLIEST = datetime.min.replace(tzinfo=UTC)


class _Applied(NamedTuple):
    """A message with its request, the recorded reply, and the time at which it was applied.

    The time may be known to the microsecond.
    """

    message: Message
    received: ReceivedRequest | None
    answer: Answer | None
    at: datetime
    is_exact: bool

    @property
    def is_refused(self) -> bool:
        """True if a request was refused; what cannot be decoded has no request."""
        refused = self.answer is not None and self.answer.reply.status is ReplyStatus.REJECTED
        return refused and self.received is not None

    @property
    def keeps_reply(self) -> bool:
        """True if only its reply is stored: a refusal, or an attempt made due, as the restored run is."""
        request = None if self.received is None else self.received.request
        return self.is_refused or (isinstance(request, RunRetry) and request.attempt is not None)


class Replayed(NamedTuple):
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
    past: Past,
) -> Replayed:
    """Apply requests in the order of their first application, one transaction each; a repeat continues."""
    runs = _Runs(history)
    wanted, expired = _ranges(session, installation, client, history, runs)
    if not wanted:
        return Replayed(0, expired)
    topic_ids = {topic: read_topic_id(kafka, topic) for topic, _ in wanted}
    offsets = StoredOffsets("tidewheel-restore", topic_ids)
    next_offsets = session.within(offsets.acquire, wanted)
    starts = {place: (max(wanted[place][0], first), wanted[place][1]) for place, first in next_offsets.items()}
    past.requested |= runs.made
    number = 0
    for each in _in_order(installation, client, starts, history, runs):
        request = None if each.received is None or each.is_refused else each.received.request
        if request is not None and not isinstance(request, _ADDS):
            run = UUID(request.run_id) if isinstance(request, RunCancel | RunRetry) else None
            past.reach(each.at, _job_of(history, each.answer, run), run)
        _apply(session, installation, offsets, each)
        number += 1
    return Replayed(number, expired)


class _Runs:
    """The runs that Kafka has, by which a request without a reply, or without a time in it, is dated."""

    def __init__(self, history: History) -> None:
        self._known = history.runs
        self._times: dict[UUID, list[datetime]] = defaultdict(list)
        self._retries: dict[str, list[UUID]] = defaultdict(list)
        self.made: set[UUID] = set()
        answered = {UUID(answer.reply.run_id) for answer in history.replies.values() if answer.reply.run_id}
        for run, each in self._known.items():
            cause = Cause(each.cause.value)
            if run in answered or (isinstance(each, RunCompleted) and each.origin is None):
                continue
            if cause in (Cause.TRIGGER, Cause.WORKFLOW):
                self._times[UUID(each.job_id)].append(each.scheduled_at.astimezone(UTC))
            elif cause is Cause.RETRY and each.parent_run_id is not None:
                self._retries[each.parent_run_id].append(run)
        for job, times in self._times.items():
            self._times[job] = sorted({*times})

    def __bool__(self) -> bool:
        return bool(self._times or self._retries)

    def find(
        self, received: ReceivedRequest, sent_at: datetime, until: datetime = LATEST
    ) -> tuple[bool, datetime | None]:
        """Find a run of a request.

        Returns true if there is one, and the time at which the request was applied if the run has it.
        """
        request, seed = received.request, received.seed() or b""
        match request:
            case JobTrigger():
                delay = request.delay or timedelta(0)
                for due in self._near(received.job_id, sent_at + delay, until + delay if until < LATEST else until):
                    if self._has(run_id(received.job_id, due, Cause.TRIGGER, seed)):
                        return True, None if due == request.run_at else due - delay
            case RunRetry(run_id=old, attempt=None):
                for new in self._retries.get(old, ()):
                    job, due = UUID(self._known[new].job_id), self._known[new].scheduled_at
                    if self._has(run_id(job, due, Cause.RETRY, UUID(old).bytes + seed, at=instant_of(new))):
                        return True, instant_of(new)
            case BatchSubmit() | BatchAdd():
                batch = UUID(request.batch_id) if isinstance(request, BatchAdd) else None
                for run in request.runs:
                    job, delay = (
                        job_id(received.tenant, run.key),
                        timedelta(0) if run.after else run.delay or timedelta(0),
                    )
                    for due in self._near(job, sent_at + delay, until + delay if until < LATEST else until):
                        at = due - delay
                        if self._has(member_id(job, at, batch or batch_id_of(received.tenant, seed, at), run.ref)):
                            return True, at
            case _:
                pass
        return False, None

    def _near(self, job: UUID, first: datetime, last: datetime) -> list[datetime]:
        times = self._times.get(job, [])
        return times[bisect_left(times, first - _NEAR) : bisect_right(times, last)]

    def _has(self, run: UUID) -> bool:
        if run in self._known:
            self.made.add(run)
        return run in self._known


def _ranges(
    session: Session, installation: Installation, client: Consumer, history: History, runs: _Runs
) -> tuple[dict[Place, tuple[int, int]], int]:
    """Return the offsets of what is applied again, by partition, and how many requests Kafka has no more.

    The offsets are the first one and the next after the last.
    """
    last: dict[Place, int] = defaultdict(int)
    origins = [end.origin for end in history.ends.values() if end.origin is not None]
    for topic, partition, offset in [
        *history.replies,
        *((each.topic, each.partition, each.offset) for each in origins),
    ]:
        last[topic, partition] = max(last[topic, partition], offset + 1)
    names = read_partitions(client)
    shared = [place for name in installation.topics.all_requests(names) for place in names.get(name, [])]
    kept = read_end_offsets(client, shared)
    with session.transaction() as connection:
        rows = connection.execute(_READ_STORED_OFFSETS, binary=True).fetchall()
    stored = {(str(topic), int(str(part))): int(str(offset)) for topic, part, offset in rows}
    begins = {place: max(stored.get(place, first), first) for place, (first, _) in kept.items()}
    if runs:
        rest = {place: (max(begins[place], last[place]), end) for place, (_, end) in kept.items()}
        for message in read_messages(client, rest):
            received = decode_message(installation, message)
            if isinstance(received, ReceivedRequest) and runs.find(received, time_of(message))[0]:
                last[partition_of(message)] = (message.offset() or 0) + 1
    expired = sum(max(0, min(first, last[each]) - stored.get(each, first)) for each, (first, _) in kept.items())
    return {each: (begin, last[each]) for each, begin in begins.items() if begin < last[each]}, expired


def _in_order(
    installation: Installation,
    client: Consumer,
    starts: Mapping[Place, tuple[int, int]],
    history: History,
    runs: _Runs,
) -> Iterator[_Applied]:
    """Yield messages by the time of their application; those of one partition stay in their order."""
    parts: dict[Place, list[_Applied]] = defaultdict(list)
    for message in read_messages(client, starts):
        place = partition_of(message)
        decoded = decode_message(installation, message)
        received = decoded if isinstance(decoded, ReceivedRequest) else None
        answer = history.replies.get((*place, message.offset() or 0))
        at = None if received is None else _exact_time(received, answer, time_of(message), history, runs)
        replied_at = time_of(message) if answer is None else answer.replied_at
        parts[place].append(_Applied(message, received, answer, at or replied_at, at is not None))
    ordered = [_between_neighbours(part) for part in parts.values()]
    yield from heapq.merge(*ordered, key=lambda each: (each.at, each.message.offset() or 0))


def _between_neighbours(part: list[_Applied]) -> list[_Applied]:
    """Move the times of a partition that are not exact between those that are."""
    latest = LATEST
    for number, each in reversed([*enumerate(part)]):
        at = each.at if each.is_exact else min(each.at, latest)
        part[number], latest = each._replace(at=at), at if each.is_exact else latest
    earliest = _EARLIEST
    for number, each in enumerate(part):
        at = each.at if each.is_exact else max(each.at, earliest)
        part[number], earliest = each._replace(at=at), at
    return part


def _job_of(history: History, answer: Answer | None, run: UUID | None) -> UUID | None:
    """Return the one job that a request is about; none if there may be several."""
    if answer is not None and answer.reply.job_id is not None:
        return UUID(answer.reply.job_id)
    known = None if run is None else history.ends.get(run) or history.requests.get(run)
    return None if known is None else UUID(known.job_id)


def _exact_time(
    received: ReceivedRequest, answer: Answer | None, sent_at: datetime, history: History, runs: _Runs
) -> datetime | None:
    """Return the time in the ids of a request's runs, or of its change of a job; none if it left none."""
    if answer is None or isinstance(received.request, BatchAdd):
        return runs.find(received, sent_at, LATEST if answer is None else answer.replied_at)[1]
    reply, at = answer.reply, None
    if reply.status is ReplyStatus.ACCEPTED and not reply.unchanged:
        match received.request:
            case JobTrigger() if reply.run_id is not None:
                at = _trigger_time(received, reply)
            case RunRetry(attempt=None) if reply.run_id is not None:
                at = instant_of(UUID(reply.run_id))
            case BatchSubmit() if reply.batch_id is not None:
                batch, seed = UUID(reply.batch_id), received.seed() or b""
                at = next((at for at in _micros(batch) if batch_id_of(reply.tenant, seed, at) == batch), None)
            case _:
                at = history.changed_at(answer, sent_at)
    return at


def _trigger_time(received: ReceivedRequest, reply: Reply) -> datetime | None:
    """Return the time of application in the id of a trigger's run; none if it has none, or is another's."""
    request, run, seed = received.request, UUID(reply.run_id or ""), received.seed() or b""
    assert isinstance(request, JobTrigger)  # noqa: S101 - the caller matches it
    dues = [] if reply.next_run_at is None else [reply.next_run_at]
    dues += _micros(run) if reply.dedupe is not None else []
    due = next((at for at in dues if run_id(received.job_id, at, Cause.TRIGGER, seed) == run), None)
    return None if due is None or due == request.run_at else due - (request.delay or timedelta(0))


def _micros(run: UUID) -> list[datetime]:
    """Return the microseconds of the millisecond in the id of a run or a batch."""
    return [instant_of(run) + timedelta(microseconds=each) for each in range(1000)]


def _apply(session: Session, installation: Installation, offsets: StoredOffsets, applied: _Applied) -> None:
    ends = ends_of([applied.message])
    failure: Exception | None = None
    for _ in range(2):
        try:
            with session.transaction() as connection:
                offsets.store(connection, ends)
                with as_of(applied.at):
                    if applied.keeps_reply and applied.received is not None and applied.answer is not None:
                        store_reply(connection, installation, applied.received, applied.answer.reply)
                    else:
                        apply_batch(connection, installation, [applied.message], failure, applied.at)
                failpoint("restoring.request")
            break
        except psycopg.Error as error:
            if failure is not None or not is_data_fault(error):
                raise
            failure = error  # intake had rejected it too
    offsets.committed(ends)
