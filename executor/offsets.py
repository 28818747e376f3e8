"""How far a lane has come on each of its partitions, told to its group.

Invariant: an offset is noted after the durable claim of what lies before it, and never told before it is noted. It is
told a few times a second, and at once when its partition goes: a commit for each claim was a tenth of what the broker
had to do. What is told late is read again after a crash, and the claim drops it.
"""

import logging
from collections.abc import Iterable, Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.process.failpoint import failpoint

_LOG = logging.getLogger("tidewheel.executor")

_TELL_SECONDS = 0.2


class Offsets:
    """The offsets of one topic; for one thread, and the callbacks of its polls."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._noted: dict[int, int] = {}  # of the partitions that are ours
        self._untold: set[int] = set()
        self._announced_at = 0.0

    def own(self, partitions: Iterable[int]) -> None:
        """These partitions are ours from now on."""
        self._noted |= dict.fromkeys(partitions, 0)

    def note(self, messages: Sequence[Message]) -> None:
        """These were claimed, refused or left to the sweep."""
        # The last of each partition counts, for they come in order; of those that are still ours: their next owner must
        # not be set back or forward. Nor are we set back by a message that was left before.
        for partition, message in {message.partition(): message for message in messages}.items():
            offset = message.offset()
            if partition is not None and offset is not None and offset >= self._noted.get(partition, offset + 1):
                self._noted[partition] = offset + 1
                self._untold.add(partition)

    def tell_in_time(self) -> None:
        """Tell what was noted, unless that was done a moment ago."""
        if self._untold and monotonic_seconds() - self._announced_at >= _TELL_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Tell what was noted; waits for nobody."""
        untold, self._untold = self._untold, set()
        if not untold:
            return
        self._announced_at = monotonic_seconds()
        offsets = [TopicPartition(self._topic, partition, self._noted[partition]) for partition in sorted(untold)]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            # A rebalance took the partition: its next owner reads the messages again and the claim drops them. Or the
            # client cannot now: nothing else may come on this partition, so it is told again.
            _LOG.info("offsets of %s not committed: %s", self._topic, error)
            self._untold |= untold & self._noted.keys()
            return
        failpoint("claim.offsets_committed")

    def drop(self, partitions: set[int]) -> None:
        """These are ours no more."""
        self._noted = {partition: end for partition, end in self._noted.items() if partition not in partitions}
        self._untold -= partitions
