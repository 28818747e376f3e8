"""The partitions of one member: topics, stored offsets, partitions that wait, and suspects.

With the shared requests a member also reads the topics of single tenants. One is found by its name in the broker's
metadata. So it needs no setting and no restart. Two members of a process, or two processes, may know a new topic some
seconds apart: the group gives it to those that subscribe to it. The topic of a tenant that does not exist is left out
until the tenant is created. That of one that is being deleted is read: each of its messages is refused.

Stored offsets are rows of `intake_offsets`, updated in the transaction that applies the messages. Each assignment
raises the partition's epoch, so a previous owner's transaction updates no row. `StoredOffsets` is the owner's copy.

A deferred partition waits for a row that another transaction holds, or for an operator (`RequestBreaker`). Later
messages of it wait behind the first one. Deferred messages are held in memory only. Their offsets are not stored, so
the next owner reads them again.

The client unpacks batches ahead of the messages that it returns. One that unpacks to more than the memory of a
container kills the process, and the next one, since no offset has moved. So the next messages of such a partition come
from a process that has a limit of its own. Intake applies them as ever. It steps over the batch that ends that process.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from confluent_kafka import KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import bytes_of
from tidewheel.kafka.limited import TooLarge, end_of_large_batch, read_limited
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_LOG = logging.getLogger("tidewheel.intake")

_SQL = Statements("tidewheel.intake")
_STORE_OFFSETS = _SQL["store_offsets"]

Partition: TypeAlias = tuple[str, int]

# An honest start reads and stores within a second, so that three in a row were most likely killed by what they read.
_SUSPECT_FROM = 3
_KEPT_BYTES = 1 << 20  # of a deferred partition; a member may own dozens
_RETRY_SECONDS = 0.5  # a try waits 0.2 s at most for the lock: the other partitions get the rest
_AGE_SECONDS = 10.0  # a new topic is found within it; the broker's answer has all partitions of the cluster
_MESSAGES = 10_000  # read in this way; the client has fetched fewer when a process is killed before its first commit
_APPLIED_BYTES = 1 << 20  # of messages that are applied at once
_SECONDS = 120.0  # and 100 s for the last search: a group evicts a member that does not poll for 300 s


class Fenced(Exception):
    """Another member owns the partition, or a COMMIT's result is unknown: join the group again."""


@dataclass(slots=True)
class _Position:
    """The epoch and the next offset of an owned partition, and its assignments in a row without progress."""

    epoch: int
    next_offset: int
    unmoved: int

    @property
    def suspect_count(self) -> int:
        """The number of assignments without progress, if these are too many; else 0."""
        return self.unmoved if self.unmoved >= _SUSPECT_FROM else 0


class Subscription:
    """The subscription of one member during one membership of the group."""

    def __init__(self, find: Callable[[], list[str]], subscribe: Callable[[list[str]], None]) -> None:
        self._find, self._subscribe = find, subscribe
        self._subscribed: list[str] = []
        self._next = float("-inf")

    def refresh(self) -> None:
        """Subscribe to the topics that exist now, every ten seconds; raise only before the first success."""
        if (now := monotonic_seconds()) < self._next:
            return
        self._next = now + _AGE_SECONDS
        try:
            found = self._find()
        except (KafkaException, Unavailable) as error:
            if not self._subscribed:
                raise
            _LOG.info("new topics of tenants cannot be found now: %s", error)
            return
        if found != self._subscribed:
            self._subscribe(found)
            self._subscribed = found


class StoredOffsets:
    """The partitions that one member owns during one membership of the group."""

    def __init__(self, owner: str, topic_ids: Mapping[str, str]) -> None:
        self._owner, self._topic_ids = owner, topic_ids
        self._positions: dict[Partition, _Position] = {}

    def acquire(self, connection: Conn, offsets: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Acquire partitions in the caller's transaction, and return their next offsets.

        Each is given with its first offset, which is the next one when none is stored, and the one behind its last
        message. One is left out if its stored offset belongs to a topic that was deleted and created again.
        """
        acquired: dict[Partition, int] = {}
        for (topic, number), (first_offset, end) in sorted(offsets.items()):
            columns = {
                "topic": topic,
                "partition": number,
                "topic_id": self._topic_ids[topic],
                "first_offset": first_offset,
                "end": end,
                "owner": self._owner,
            }
            row = connection.execute(_SQL["acquire_partition"], columns).fetchone()
            if row is not None:
                next_offset, epoch, unmoved = cast("tuple[int, int, int]", row)
                self._positions[topic, number] = _Position(epoch, next_offset, unmoved)
                acquired[topic, number] = next_offset
        return acquired

    @property
    def partitions(self) -> list[Partition]:
        """The owned partitions."""
        return list(self._positions)

    def is_suspect(self, partition: Partition) -> bool:
        """Return True if its offset has not moved at three assignments in a row, although there was a message."""
        return self._positions[partition].suspect_count > 0

    def trust(self, partition: Partition) -> None:
        """Let the next stored offset end the count of assignments."""
        self._positions[partition].unmoved = 0

    def drop(self, partition: Partition) -> None:
        """Forget a partition that is no longer owned."""
        self._positions.pop(partition, None)

    def is_pending(self, message: Message) -> bool:
        """Return True if a message is to be applied: owned partition, and not before its offset."""
        position = self._positions.get((message.topic(), message.partition()))  # type: ignore[arg-type]  # None is no key
        return position is not None and (message.offset() or 0) >= position.next_offset

    def store(self, connection: Conn, ends: Mapping[Partition, int]) -> None:
        """Store the offsets after a batch, in its transaction; Fenced if another member has a partition."""
        partitions = sorted(ends)
        columns = {
            "topics": [topic for topic, _ in partitions],
            "partitions": [number for _, number in partitions],
            "epochs": [self._positions[partition].epoch for partition in partitions],
            "bases": [self._positions[partition].next_offset for partition in partitions],
            "next_offsets": [ends[partition] for partition in partitions],
            # Not 0 while a suspect partition is read: a death meanwhile leaves it suspect.
            "unmoved": [self._positions[partition].suspect_count for partition in partitions],
        }
        if len(connection.execute(_STORE_OFFSETS, columns).fetchall()) < len(partitions):
            raise Fenced("another intake has acquired a partition")

    def committed(self, ends: Mapping[Partition, int]) -> None:
        """Advance the positions after that transaction has committed."""
        for partition, end in ends.items():
            self._positions[partition].next_offset = end

    def next_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the next offsets of those partitions that are still owned."""
        return {
            partition: self._positions[partition].next_offset
            for partition in partitions
            if partition in self._positions
        }


def hold_deletions(connection: Conn, tenants: Iterable[str]) -> set[str]:
    """Return those of these tenants whose rows are removed: no offset of their own topics may be stored.

    Until the caller's transaction has ended no deletion of the others ends.
    """
    rows = connection.execute(_SQL["hold_deletions"], {"tenants": sorted(set(tenants))}).fetchall()
    return {tenant for tenant, is_removed in cast("list[tuple[str, bool]]", rows) if is_removed}


def partition_of(message: Message) -> Partition:
    """Return the topic and the partition of a message."""
    return message.topic() or "", message.partition() or 0


def ends_of(messages: Sequence[Message]) -> dict[Partition, int]:
    """Return the offset after the last of these messages, by partition."""
    ends: dict[Partition, int] = {}
    for message in messages:
        partition, end = partition_of(message), (message.offset() or 0) + 1
        if end > ends.get(partition, 0):
            ends[partition] = end
    return ends


class DeferredPartitions:
    """Messages that wait, the first of each partition for a cause; one partition is retried at a time.

    1 MiB of a partition is kept, and one message more. Messages behind these are read again.
    """

    def __init__(self) -> None:
        self._deferred: dict[Partition, list[Message]] = {}
        self._bytes: dict[Partition, int] = {}
        self._cut: dict[Partition, int] = {}  # the first offset that is not kept
        self._rewinds: dict[Partition, int] = {}
        self._next_try = 0.0

    def __contains__(self, message: Message) -> bool:
        deferred = self._deferred.get(partition_of(message)) if self._deferred else None
        return deferred is not None and _offset(message) >= _offset(deferred[0])

    def __len__(self) -> int:
        return sum(map(len, self._deferred.values()))

    @property
    def partitions(self) -> list[Partition]:
        """The deferred partitions."""
        return list(self._deferred)

    def add(self, messages: Sequence[Message]) -> None:
        """Defer messages in their order; messages that are deferred already keep their position."""
        if not self._deferred:
            self._next_try = monotonic_seconds() + _RETRY_SECONDS
        for message in messages:
            partition = partition_of(message)
            deferred, held = self._deferred.setdefault(partition, []), self._bytes.get(partition, 0)
            if partition in self._cut or (deferred and _offset(message) <= _offset(deferred[-1])):
                continue
            if held < _KEPT_BYTES:
                deferred.append(message)
                self._bytes[partition] = held + bytes_of([message])
            else:
                self._cut[partition] = self._rewinds[partition] = _offset(message)

    def is_cut(self, partition: Partition) -> bool:
        """Return True if messages behind those kept have been read, and must be read again."""
        return partition in self._cut

    def rewinds(self) -> dict[Partition, int]:
        """Return the offset from which each partition is to be read again, once."""
        rewinds, self._rewinds = self._rewinds, {}
        return rewinds

    def take(self) -> list[Message]:
        """Take the messages of the partition to retry next; none before the retry is due."""
        if not self._deferred or monotonic_seconds() < self._next_try:
            return []
        self._next_try = monotonic_seconds() + _RETRY_SECONDS
        # A partition that is deferred again goes to the end, so that all are retried in turn.
        partition = next(iter(self._deferred))
        taken = self._deferred[partition]
        self.drop(partition)
        return taken

    def drop(self, partition: Partition) -> None:
        """Forget a partition that is no longer owned."""
        self._deferred.pop(partition, None)
        self._bytes.pop(partition, None)
        self._cut.pop(partition, None)
        self._rewinds.pop(partition, None)


def _offset(message: Message) -> int:
    return message.offset() or 0


class RequestWaits(Exception):
    """A request waits for a row or an operator, and the messages behind it are not read meanwhile."""


class SuspectReader:
    """Reads the suspect partitions of one topic.

    `apply` returns when the offsets of the messages are stored. `bury` stores a dead letter in the place of the batch
    between two offsets, and the second one. `on_step` is called before each step, and raises to end the work.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        group: str,
        *,
        batch: int,
        apply: Callable[[Sequence[Message]], None],
        bury: Callable[[TopicPartition, int], None],
        on_step: Callable[[], None],
    ) -> None:
        self._kafka, self._group, self._batch = kafka, group, batch
        self._apply, self._bury, self._on_step = apply, bury, on_step

    def read(self, at: TopicPartition) -> int | None:
        """Apply the next messages, and return the next offset to read; None if a batch has no end.

        Raises:
            Fenced: Another member owns the partition, or the time is over; what was applied is stored.
        """
        offset, end, deadline = at.offset, at.offset + _MESSAGES, monotonic_seconds() + _SECONDS
        while offset < end:
            if monotonic_seconds() > deadline:
                raise Fenced(f"{at.topic}/{at.partition}: the rest is read after joining again")
            begin = TopicPartition(at.topic, at.partition, offset)
            offset, is_readable = self._hand_over(begin, messages=end - offset)
            if is_readable:
                return offset
            if offset > begin.offset:
                continue
            # Perhaps the batch behind the next one ended the process, before it wrote the next one.
            offset, is_readable = self._hand_over(begin, messages=1, one_batch=True)
            if not is_readable:
                behind = end_of_large_batch(self._kafka, self._group, begin, self._on_step)
                if behind is None:
                    return None
                self._bury(begin, behind)
                offset = behind
        return offset

    def _hand_over(self, begin: TopicPartition, *, messages: int, one_batch: bool = False) -> tuple[int, bool]:
        """Apply messages from an offset on; return the next offset, and False if a batch ended the process."""
        self._on_step()
        read = read_limited(self._kafka, self._group, begin, messages=messages, one_batch=one_batch)
        offset, held, size, is_readable = begin.offset, list[Message](), 0, True
        try:
            for message in read:
                held.append(message)
                size += bytes_of([message])
                if len(held) >= self._batch or size >= _APPLIED_BYTES:
                    offset, held, size = self._applied(held), [], 0
        except TooLarge as error:
            _LOG.warning("%s: a batch behind %d messages is too large", error, len(held))
            is_readable = False
        if held:
            offset = self._applied(held)
        return offset, is_readable

    def _applied(self, messages: Sequence[Message]) -> int:
        self._apply(messages)
        self._on_step()
        return (messages[-1].offset() or 0) + 1
