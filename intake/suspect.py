"""Partitions whose offset did not move at several assignments: read under a memory limit first.

The client unpacks batches ahead of the messages that it returns. One that unpacks to more than the memory of a
container kills the process, and the next one, since no offset has moved. So the next messages of such a partition come
from a process that has a limit of its own. Intake applies them as ever. It steps over the batch that ends that process.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.intake.offsets import Fenced
from tidewheel.kafka.clients import bytes_of
from tidewheel.kafka.limited import TooLarge, end_of_large_batch, read_limited

_LOG = logging.getLogger("tidewheel.intake")

_MESSAGES = 10_000  # read in this way; the client has fetched fewer when a process is killed before its first commit
_APPLIED_BYTES = 1 << 20  # of messages that are applied at once
_SECONDS = 120.0  # and 100 s for the last search: a group evicts a member that does not poll for 300 s


class RequestWaits(Exception):
    """A request waits for a row or an operator, and the messages behind it are not read meanwhile."""


class SuspectReader:
    """Reads the suspect partitions of one topic.

    Args:
        apply: Applies messages of one partition; returns when their offsets are stored.
        bury: Stores a dead letter in the place of the batch between two offsets, and the second one.
        on_step: Called before each step; raises to end the work.
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
                message = f"{at.topic}/{at.partition}: the rest is read after joining again"
                raise Fenced(message)
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
