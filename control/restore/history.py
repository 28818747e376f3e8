"""Read what Kafka has since the backup: the ends of runs, their messages, and the replies to requests."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.kafka.clients import poll_batch
from tidewheel.kafka.offsets import read_end_offsets, read_offsets_since, read_partitions
from tidewheel.kafka.topics import Topics, read_retention
from tidewheel.message_signatures import SIGNATURE_HEADER, MessageKeys, SignatureFlaw, digest_of
from tidewheel.runs import Cause, SkipReason
from tidewheel.schedules.decision import Skip
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import LifecycleEvent, Reply, RequestType, RunCompleted, RunRequest
from tidewheel.schemas.interop import from_json

R = TypeVar("R")
Place = tuple[str, int]
Origin = tuple[str, int, int]

_SILENT_POLLS = 60  # of a second each
_DECIDED_LATE = frozenset({SkipReason.MISFIRE, SkipReason.CATCH_UP_LIMIT, SkipReason.PAUSED, SkipReason.FROZEN})
"""Reasons that depend on when a scheduler decided; the others follow from the job and its calendars."""
_NEAR = timedelta(minutes=1)  # a relay publishes a reply some milliseconds after its transaction
_CREATED, _UPDATED = "io.tidewheel.job.created.v1", "io.tidewheel.job.updated.v1"
_SUBMITTED = (_CREATED, _UPDATED)
_PAUSED, _RESUMED = "io.tidewheel.job.paused.v1", "io.tidewheel.job.resumed.v1"
_DELETED = "io.tidewheel.job.deleted.v1"
_STOPPED = (_PAUSED, _DELETED)
_STATES = (*_STOPPED, _CREATED, _RESUMED)
_EVENTS = {
    RequestType.JOB_SUBMIT: _SUBMITTED,
    RequestType.JOB_ROLLBACK: (_UPDATED,),
    RequestType.JOB_PAUSE: (_PAUSED,),
    RequestType.JOB_RESUME: (_RESUMED,),
    RequestType.JOB_DELETE: (_DELETED,),
    RequestType.JOB_BACKFILL: ("io.tidewheel.job.backfill_started.v1",),
}
"""The events of the requests that change a job."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request that the lost database had applied."""

    reply: Reply
    replied_at: datetime


@dataclass(slots=True)
class Change:
    """A change of a job; a request takes the time of one that no other request has."""

    kind: str
    version: int | None
    at: datetime
    is_taken: bool = False


@dataclass(slots=True)
class History:
    """The records that Kafka has since the backup."""

    ends: dict[UUID, RunCompleted] = field(default_factory=dict[UUID, RunCompleted])
    requests: dict[UUID, RunRequest] = field(default_factory=dict[UUID, RunRequest])  # the last message of each run
    replies: dict[Origin, Answer] = field(default_factory=dict[Origin, Answer])  # by the coordinates of the request
    changes: dict[str, list[Change]] = field(default_factory=lambda: defaultdict(list))
    skips: dict[UUID, list[Skip]] = field(default_factory=lambda: defaultdict(list))  # decided late, by job
    unreadable: int = 0
    forged: int = 0  # run messages that no relay has signed; they are left out
    unknown_keys: int = 0  # run messages signed by a key that the database lacks

    @property
    def runs(self) -> dict[UUID, RunCompleted | RunRequest]:
        """The last record of each run."""
        return {**self.requests, **self.ends}

    @property
    def of_workflows(self) -> dict[UUID, UUID]:
        """The runs that the ends of their parents create, with their jobs."""
        return {run: UUID(each.job_id) for run, each in self.runs.items() if each.cause.value == Cause.WORKFLOW}

    def has(self, topics: Topics, topic: str, value: bytes) -> bool:
        """Return True if Kafka has this completion, run message or reply."""
        if topic == topics.completions:
            return UUID(_record(value, RunCompleted).run_id) in self.ends
        if topic.startswith(_run_topics(topics)):
            request = _record(value, RunRequest)
            last = self.requests.get(UUID(request.run_id))
            return last is not None and last.attempt >= request.attempt
        origin = _record(value, Reply).origin
        return origin is not None and (origin.topic, origin.partition, origin.offset) in self.replies

    def was_taken_back(self, run_id: UUID) -> bool:
        """Return True if a change of its job had taken back this run of a timer before its instant.

        A relay may have published its message nevertheless, and no claim found the run.
        """
        run = self.requests.get(run_id)
        if run is None or run_id in self.ends or run.cause.value != Cause.TIMER.value or run.attempt > 1:
            return False
        due = min(run.scheduled_at, run.publish_at)
        before = [each for each in self.changes.get(run.job_id, ()) if each.at < due]
        edited = any(each.kind in _SUBMITTED and (each.version or 0) > run.job_version for each in before)
        return edited or next((each.kind in _STOPPED for each in reversed(before) if each.kind in _STATES), False)

    def changed_at(self, answer: Answer, sent_at: datetime) -> datetime | None:
        """Return when a request had changed its job, and take that change; None if Kafka has no event of it."""
        reply = answer.reply
        possible = [
            each
            for each in self.changes.get(reply.job_id or "", ())
            if not each.is_taken
            and each.kind in _EVENTS.get(reply.type, ())
            and (each.version == reply.job_version or None in (each.version, reply.job_version))
            and answer.replied_at - _NEAR <= each.at <= answer.replied_at
        ]
        if not possible:
            return None
        found = next((each for each in possible if each.at >= sent_at), possible[-1])
        found.is_taken = True
        return found.at


def _run_topics(topics: Topics) -> str:
    return f"{topics.prefix}.runs."


def read_history(client: Consumer, topics: Topics, since: datetime, keys: MessageKeys) -> History:
    """Read this installation's topics from an instant to their present ends; count unknown keys."""
    names = read_partitions(client)
    run_topics = _run_topics(topics)
    found = History()
    for message in read_messages(client, _ranges(client, names, topics, since)[0]):
        topic, value = message.topic() or "", message.value()
        if not isinstance(value, bytes):
            continue
        try:
            if topic == topics.completions:
                ended = _record(value, RunCompleted)
                found.ends[UUID(ended.run_id)] = ended
            elif topic.startswith(run_topics):
                flaw = _flaw(keys, message, value)
                if flaw in (SignatureFlaw.MISSING, SignatureFlaw.WRONG):
                    found.forged += 1
                    continue
                found.unknown_keys += flaw is SignatureFlaw.UNKNOWN_KEY
                request = _record(value, RunRequest)
                run_id = UUID(request.run_id)
                if run_id not in found.requests or found.requests[run_id].attempt <= request.attempt:
                    found.requests[run_id] = request
            elif topic == topics.events:
                event = _record(value, LifecycleEvent)
                if ".job." in event.type:
                    found.changes[event.job_id].append(Change(event.type, event.job_version, event.occurred_at))
                elif ".occurrence.skipped." in event.type and event.reason in _DECIDED_LATE:
                    found.skips[UUID(event.job_id)].append(_skip_of(event))
            else:
                reply = _record(value, Reply)
                if reply.origin is not None:
                    origin = (reply.origin.topic, reply.origin.partition, reply.origin.offset)
                    found.replies.setdefault(origin, Answer(reply, time_of(message)))
        except (UndecodableMessage, KeyError, ValueError):
            found.unreadable += 1
    return found


def find_expired(
    client: Consumer, kafka: Mapping[str, str], topics: Topics, *, since: datetime, now: datetime
) -> list[str]:
    """Return the topics that may have lost messages since an instant.

    Kafka drops their messages by age, the instant is older, and a partition begins after it.
    """
    ranges, stored = _ranges(client, read_partitions(client), topics, since)
    kept = read_retention(kafka, {topic for topic, _ in ranges})
    return sorted(
        {
            place[0]
            for place, (first, _) in ranges.items()
            if place[0] in kept and since < now - kept[place[0]] and first == stored[place] > 0
        }
    )


def read_messages(client: Consumer, starts: Mapping[Place, tuple[int, int]]) -> Iterable[Message]:
    """Yield the messages of partitions from their first offsets to before their last ones."""
    left = {place: end for place, (first, end) in starts.items() if first < end}
    client.assign([TopicPartition(*place, starts[place][0]) for place in left])
    silent = 0
    while left:
        received = poll_batch(client, 1000, 1.0)
        silent = 0 if received else silent + 1
        if silent > _SILENT_POLLS:
            raise Unavailable(f"no broker delivers the rest of {sorted(left)[:5]}")
        for one in received:
            place, error, offset = (one.topic() or "", one.partition() or 0), one.error(), one.offset() or 0
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    left.pop(place, None)
                    continue
                raise Unavailable(f"{place[0]} cannot be read: {error.str()}")
            if offset < left.get(place, 0):
                yield one
            if offset + 1 >= left.get(place, 0):
                left.pop(place, None)
    client.unassign()


def time_of(message: Message) -> datetime:
    """Return the time of a message."""
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)


def _ranges(
    client: Consumer, names: Mapping[str, list[Place]], topics: Topics, since: datetime
) -> tuple[dict[Place, tuple[int, int]], dict[Place, int]]:
    """Return the offsets to read of each partition, and the first that Kafka has."""
    read = [
        place
        for name, places in names.items()
        if name in {topics.completions, topics.events, topics.replies}
        or name.startswith((_run_topics(topics), f"{topics.replies}.t."))
        for place in places
    ]
    ends = read_end_offsets(client, read)
    first = read_offsets_since(client, read, since)
    ranges = {place: (first[place] if first[place] >= 0 else end, end) for place, (_, end) in ends.items()}
    return ranges, {place: stored for place, (stored, _) in ends.items()}


def _flaw(keys: MessageKeys, message: Message, value: bytes) -> SignatureFlaw | None:
    headers = dict(cast("Iterable[tuple[str, bytes | None]]", message.headers() or ()))
    key = message.key()
    return keys.flaw(
        headers.get(SIGNATURE_HEADER), message.topic() or "", key if isinstance(key, bytes) else b"", digest_of(value)
    )


def _skip_of(event: LifecycleEvent) -> Skip:
    detail = event.detail
    first_at, last_at = (datetime.fromisoformat(detail[name]).astimezone(UTC) for name in ("first_at", "last_at"))
    return Skip(SkipReason(str(event.reason)), first_at, last_at, int(detail["occurrences"]))


def _record(value: bytes, kind: type[R]) -> R:
    return from_json(value, kind) if value[:1] == b"{" else decode(value, kind)
