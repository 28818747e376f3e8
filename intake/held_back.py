"""Messages that met rows in somebody's hands: they wait with what comes after them in their partition, and nobody else.

Only this process's memory of them: their offsets have not moved, so whoever takes the partition over reads them again.
"""

from collections.abc import Sequence

from confluent_kafka import Message

from tidewheel.clock import monotonic_seconds
from tidewheel.intake.places import Partition, partition_of

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
