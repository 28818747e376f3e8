"""Where an intake stands in each partition it reads: the offsets that count, in the transaction that they are for.

They lie in `intake_offsets`, under an epoch that every assignment raises: what a previous owner still tries to commit
hits no row. What is here is only this owner's memory of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from confluent_kafka import Message

from tidewheel.db import Conn
from tidewheel.errors import Unusable
from tidewheel.sql import Statements

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
