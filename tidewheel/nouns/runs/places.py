"""The places of one run: its table and day, its outbox rows, and its messages on Kafka.

Coordinates of the request and of each claim are stored. The run's first message and its completion are not: they are
looked up on their topics by key, from the time on at which they were due. The look-up has a limit of messages and of
time, so it may end without a result. PostgreSQL alone is enough for the rest.
"""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Annotated, NamedTuple, cast
from uuid import UUID

from confluent_kafka import Consumer, KafkaException, TopicPartition
from psycopg.rows import class_row
from pydantic import Field

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import TidewheelError, UnknownRun
from tidewheel.kafka.clients import poll_batch
from tidewheel.kafka.offsets import offsets_client, read_end_offsets, read_offsets_since, read_partitions
from tidewheel.nouns.operation import Call
from tidewheel.nouns.runs.detail import claims_of
from tidewheel.nouns.runs.model import ClaimMessage
from tidewheel.nouns.runs.operations import Runs
from tidewheel.outbox import OutboxLane, slice_lane_of, slice_of
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import Installation, read_installation

_SQL = Statements("tidewheel.control")
_READ_RUN_PLACE = _SQL["read_run_place"]
_FIND_OUTBOX_ROWS = _SQL["find_outbox_rows"]

_MARGIN = timedelta(seconds=5)  # the relay's clock gives messages their time
_SECONDS = 10.0  # for each message
_MESSAGES = 200_000
_KAFKA_SECONDS = 3.0
_BRIEF_SECONDS = 3.0  # for each message, of a call that holds a thread for reads
_LOOKING = threading.Lock()  # one look at a time: the other threads for reads stay free
_BUSY = "another search on Kafka is in progress; retry in a few seconds"


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A message on Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A row of the outbox: the relay publishes it at `publish_at`, or soon after."""

    id: int
    topic: str
    publish_at: datetime


@dataclass(frozen=True, slots=True)
class RunWhere:
    """The places of a run."""

    table_name: Annotated[
        str | None,
        Field(description="Its table: for an ended run the partition of its day; null if the run is in the archive."),
    ]
    day: Annotated[date | None, Field(description="The day on which it ended; null while it is open.")]
    shard: Annotated[int | None, Field(description="Its job's shard.")]
    request_id: Annotated[str | None, Field(description="The id of the request that created it.")]
    requested_from: Annotated[str | None, Field(description="That request's message as topic/partition/offset.")] = None
    outbox: Annotated[tuple[PendingMessage, ...], Field(description="Its messages that are not published yet.")] = ()
    run_message: Annotated[
        MessagePlace | None, Field(description="Its first message; null if it was not found or not looked up.")
    ] = None
    completion: Annotated[
        MessagePlace | None,
        Field(description="Its completion; null while it is open, and if it was not found or not looked up."),
    ] = None
    kafka: Annotated[str | None, Field(description="Why Kafka was not read; null if it was.")] = None
    claims: Annotated[
        tuple[ClaimMessage, ...], Field(description="The messages through which its attempts were claimed.")
    ] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    table_name: str
    job_id: UUID
    shard: int
    queue: str
    lane: str
    state: str
    created_at: datetime
    publish_at: datetime | None
    finished_at: datetime | None
    request_id: str | None
    requested_from: str | None


class _Wanted(NamedTuple):
    """A message to look for: with a key, and with a subject unless that is empty."""

    key: bytes
    subject: bytes
    since: datetime


def run_where(call: Call, settings: Connections, run_id: UUID, *, kafka: bool) -> RunWhere:
    """Return the places of a run of the database or the archive, or raise UnknownRun."""
    run = Runs(call).detail(run_id)
    try:
        found = stored_places(call, settings, run_id, kafka=kafka)
    except UnknownRun:
        found = RunWhere(None, None, None, run.request_id, kafka="the archive has this run")
    return replace(found, claims=claims_of(run))


def stored_places(call: Call, settings: Connections, run_id: UUID, *, kafka: bool) -> RunWhere:
    """Return the places of a run that the database has; one call at a time looks on Kafka."""
    # The role of a tenant may not read the outbox. The statements name the tenant.
    snapshot = partial(call.snapshot, all_tenants=True)
    with looking(wanted=kafka) as looks:
        found = find_places(snapshot, settings, call.tenant, run_id, kafka=looks, look_seconds=_BRIEF_SECONDS)
    return replace(found, kafka=_BUSY) if kafka and not looks else found


@contextmanager
def looking(*, wanted: bool = True) -> Generator[bool]:
    """Yield True for the only look on Kafka, False while there is another."""
    is_first = wanted and _LOOKING.acquire(blocking=False)
    try:
        yield is_first
    finally:
        if is_first:
            _LOOKING.release()


def find_places(
    snapshot: Callable[[], AbstractContextManager[Conn]],
    settings: Connections,
    tenant: str,
    run_id: UUID,
    *,
    kafka: bool = True,
    look_seconds: float = _SECONDS,
) -> RunWhere:
    """Find the places of a run.

    Args:
        snapshot: Opens a transaction, which ends before Kafka is read.
        look_seconds: The longest look for each message on Kafka.
    """
    with snapshot() as connection:
        row = read_row(connection, class_row(_Row), _READ_RUN_PLACE, {"run_id": run_id, "tenant": tenant})
        if row is None:
            raise UnknownRun(str(run_id))
        installation = read_installation(connection, settings)
        outbox = _outbox(connection, installation, row, run_id)
    day = None if row.finished_at is None else row.finished_at.astimezone(UTC).date()
    messages = (
        _on_kafka(settings, installation, row, run_id, look_seconds) if kafka else (None, None, "it was left out")
    )
    return RunWhere(row.table_name, day, row.shard, row.request_id, row.requested_from, outbox, *messages)


def _outbox(connection: Conn, installation: Installation, row: _Row, run_id: UUID) -> tuple[PendingMessage, ...]:
    number = slice_of(row.shard, installation.shards)
    lanes = [row.lane, OutboxLane.EVENTS]
    columns: dict[str, object] = {
        "slice_lanes": [slice_lane_of(number, lane) for lane in lanes if lane in set(OutboxLane)],
        "instants": [at for at in (row.publish_at, row.finished_at) if at is not None],
        "run_id": str(run_id).encode(),
    }
    return tuple(read_rows(connection, class_row(PendingMessage), _FIND_OUTBOX_ROWS, columns))


def _on_kafka(
    settings: Connections, installation: Installation, row: _Row, run_id: UUID, look_seconds: float
) -> tuple[MessagePlace | None, MessagePlace | None, str | None]:
    """Return the run's first message and its completion, or the reason for which Kafka was not read."""
    topics, run = installation.topics, str(run_id).encode()
    published_from = max(row.created_at, row.publish_at or row.created_at)
    completion: MessagePlace | None = None
    try:
        with offsets_client(settings.kafka_config(), "tidewheel.places") as client:
            first = _find(client, topics.runs(row.queue, row.lane), _Wanted(run, b"", published_from), look_seconds)
            if row.finished_at is not None:
                wanted = _Wanted(str(row.job_id).encode(), run, row.finished_at)
                completion = _find(client, topics.completions, wanted, look_seconds)
    except (TidewheelError, KafkaException) as error:
        return None, None, str(error)
    return first, completion, None


def _find(client: Consumer, topic: str, wanted: _Wanted, look_seconds: float) -> MessagePlace | None:
    """Return the first message of a topic with a key, and with a subject if one is given."""
    places = read_partitions(client, topic).get(topic, [])
    ends = {part: end for (_, part), (_, end) in read_end_offsets(client, places).items()}
    offsets = read_offsets_since(
        client, places, wanted.since - _MARGIN, what=f"offsets of {topic}", seconds=_KAFKA_SECONDS
    )
    left = {part: offset for (_, part), offset in offsets.items() if 0 <= offset < ends[part]}
    client.assign([TopicPartition(topic, part, offset) for part, offset in left.items()])
    deadline, seen = monotonic_seconds() + look_seconds, 0
    while left and seen < _MESSAGES and monotonic_seconds() < deadline:
        for received in poll_batch(client, 1000, 0.2):
            part, offset = received.partition(), received.offset()
            if received.error() is not None or part is None or offset is None:
                continue
            seen += 1
            if received.key() == wanted.key and (
                not wanted.subject or _headers(received.headers()).get("ce_subject") == wanted.subject
            ):
                stamped = received.timestamp()[1]
                at = None if stamped < 0 else datetime.fromtimestamp(stamped / 1000, UTC)
                return MessagePlace(topic, part, offset, at)
            if offset + 1 >= ends.get(part, 0):
                left.pop(part, None)
    return None


def _headers(headers: object) -> Mapping[str, object]:
    return dict(cast("list[tuple[str, object]]", headers)) if isinstance(headers, list) else {}
