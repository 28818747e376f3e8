"""Where an intake stands in each partition it reads: the offsets that count, in the transaction that they are for.

They lie in `intake_offsets`, under an epoch that every assignment raises: what a previous owner still tries to commit
hits no row. What is here is only this owner's memory of them.

Messages that met rows in somebody's hands: they wait with what comes after them in their partition, and nobody else.

Only this process's memory of them: their offsets have not moved, so whoever takes the partition over reads them again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from confluent_kafka import Message

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unusable
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.intake")
_TAKE_PARTITION = _SQL["take_partition"]
_MOVE_OFFSETS = _SQL["move_offsets"]

Partition: TypeAlias = tuple[str, int]


class Fenced(Exception):
    """The partition has another owner, or what was written is not known: join anew and read where it stands."""


@dataclass(slots=True)
class _Place:
    """Where this owner stands in one partition."""

    epoch: int
    next_offset: int


class Places:
    """One owner's partitions, of one membership of the group."""

    def __init__(self, owner: str, topic_ids: Mapping[str, str]) -> None:
        self._owner, self._topic_ids = owner, topic_ids
        self._at: dict[Partition, _Place] = {}

    def take(self, connection: Conn, partition: Partition, first_offset: int) -> int:
        """Make a partition this owner's own, in the caller's transaction; returns where to go on.

        Args:
            connection: Inside a transaction.
            partition: Which.
            first_offset: Where to begin, should nobody have read it before.

        Raises:
            Unusable: The topic is another one than that whose offsets are stored.
        """
        topic, number = partition
        columns = {
            "topic": topic,
            "partition": number,
            "topic_id": self._topic_ids[topic],
            "first_offset": first_offset,
            "owner": self._owner,
        }
        row = connection.execute(_TAKE_PARTITION, columns).fetchone()
        next_offset, epoch, topic_id = cast("tuple[int, int, str]", row)
        if topic_id != self._topic_ids[topic]:
            message = (
                f"{topic} was deleted and made again: its offsets mean nothing here any more. If its old requests"
                " are done with, delete the topic's rows from intake_offsets"
            )
            raise Unusable(message)
        self._at[partition] = _Place(epoch, next_offset)
        return next_offset

    def forget(self, partition: Partition) -> None:
        """Let go of a partition."""
        self._at.pop(partition, None)

    def ahead(self, message: Message) -> bool:
        """Whether a message is still to be applied: it is this owner's, and not before the place it stands at."""
        place = self._at.get((message.topic(), message.partition()))  # type: ignore[arg-type]  # None is found nowhere
        return place is not None and (message.offset() or 0) >= place.next_offset

    def move(self, connection: Conn, ends: Mapping[Partition, int]) -> None:
        """Move the stored offsets to the ends of some messages, in the transaction that applies them.

        Raises:
            Fenced: Another intake has taken one of the partitions over.
        """
        partitions = sorted(ends)
        columns = {
            "topics": [topic for topic, _ in partitions],
            "partitions": [number for _, number in partitions],
            "epochs": [self._at[partition].epoch for partition in partitions],
            "bases": [self._at[partition].next_offset for partition in partitions],
            "next_offsets": [ends[partition] for partition in partitions],
        }
        if len(connection.execute(_MOVE_OFFSETS, columns).fetchall()) < len(partitions):
            message = "another intake has taken a partition over"
            raise Fenced(message)

    def moved(self, ends: Mapping[Partition, int]) -> None:
        """That transaction has committed."""
        for partition, end in ends.items():
            self._at[partition].next_offset = end

    def stand(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where this owner stands in those of some partitions that are its own."""
        return {partition: self._at[partition].next_offset for partition in partitions if partition in self._at}


def partition_of(message: Message) -> Partition:
    """Where a message lies."""
    return message.topic() or "", message.partition() or 0


def ends_of(messages: Sequence[Message]) -> dict[Partition, int]:
    """The offsets after these messages."""
    ends: dict[Partition, int] = {}
    for message in messages:
        partition, end = partition_of(message), (message.offset() or 0) + 1
        if end > ends.get(partition, 0):
            ends[partition] = end
    return ends


_AGAIN_SECONDS = 0.5  # of which a try takes a fifth of a second at most: the other partitions go on


class HeldBack:
    """The partitions that are held back; one of them is tried at a time."""

    def __init__(self) -> None:
        self._held: dict[Partition, list[Message]] = {}
        self._next_try = 0.0

    def __contains__(self, message: Message) -> bool:
        """Whether a message has to wait, for itself or for one before it."""
        held = self._held.get(partition_of(message)) if self._held else None
        return held is not None and _offset(message) >= _offset(held[0])

    @property
    def partitions(self) -> list[Partition]:
        """Which they are."""
        return list(self._held)

    def add(self, messages: Sequence[Message]) -> None:
        """Hold messages back, in their order; those that are held already stay where they are."""
        if not self._held:
            self._next_try = monotonic_seconds() + _AGAIN_SECONDS
        for message in messages:
            held = self._held.setdefault(partition_of(message), [])
            if not held or _offset(message) > _offset(held[-1]):
                held.append(message)

    def take(self) -> list[Message]:
        """The messages of the partition whose turn it is to be tried again; none where it is too early."""
        if not self._held or monotonic_seconds() < self._next_try:
            return []
        self._next_try = monotonic_seconds() + _AGAIN_SECONDS
        # What is held back again goes to the end: all are tried in turn.
        return self._held.pop(next(iter(self._held)))

    def forget(self, partition: Partition) -> None:
        """Let go of a partition."""
        self._held.pop(partition, None)


def _offset(message: Message) -> int:
    return message.offset() or 0
