"""Offsets of a lane's partitions, committed to its group.

Invariant: an offset is noted after the durable claim of all messages before it, and committed after it is noted. It is
committed five times a second, and at once when its partition is revoked: a commit for each claim was a tenth of the
broker's work. After a crash, messages behind a late commit are read again, and the claim drops them.

A batch that unpacks to more than the memory of a container kills the process before it commits. So each assignment
commits the same offset again, with a count as its metadata. The third one in a row starts behind all messages, and the
sweep finds their runs. A commit after a claim has no count.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.offsets import is_unreadable
from tidewheel.process.failpoint import failpoint

_LOG = logging.getLogger("tidewheel.executor")

_COMMIT_SECONDS = 0.2  # between two commits
_KAFKA_SECONDS = 10.0
_MAX_UNMOVED = 2  # assignments without progress; an honest start commits within a second


class Offsets:
    """The offsets of one topic; for one thread and the callbacks of its polls."""

    def __init__(self, consumer: Consumer, topic: str, kept: Callable[[], Mapping[int, int]] = dict) -> None:
        self._consumer, self._topic, self._kept = consumer, topic, kept
        self._noted: dict[int, int] = {}  # of the assigned partitions
        self._uncommitted: set[int] = set()
        self._unreadable: dict[int, tuple[int, int]] = {}  # by partition: a batch's first offset, and the last step
        self._committed_at = 0.0

    def assign(self, partitions: Iterable[int]) -> None:
        """Add partitions that were assigned."""
        self._noted |= dict.fromkeys(partitions, 0)

    def step_over_killers(self, partitions: Sequence[TopicPartition]) -> None:
        """Set the first offset of partitions that are about to be assigned, and count their assignments."""
        try:
            counted: list[TopicPartition] = []
            for known in self._consumer.committed(list(partitions), timeout=_KAFKA_SECONDS):
                low, end = self._consumer.get_watermark_offsets(known, timeout=_KAFKA_SECONDS, cached=False)
                first, unmoved = max(known.offset, low), int(known.metadata or 0)
                if first >= end:
                    continue
                if unmoved >= _MAX_UNMOVED:
                    _LOG.error(
                        "%s/%d: %d processes ended before they had read offset %d; the sweep finds the runs up to %d",
                        *(self._topic, known.partition, unmoved, first, end),
                    )
                    first, unmoved = end, -1
                counted.append(TopicPartition(self._topic, known.partition, first, str(unmoved + 1)))
            if counted:
                self._consumer.commit(offsets=counted, asynchronous=False)
        except KafkaException as error:
            _LOG.info("assignments of %s are not counted: %s", self._topic, error)
            return
        starts = {each.partition: each.offset for each in counted}
        for partition in partitions:
            partition.offset = starts.get(partition.partition, partition.offset)

    def note(self, messages: Sequence[Message]) -> None:
        """Note messages that were claimed, refused or left to the sweep."""
        # The last message of each partition counts, since they are in order. Only assigned partitions count: another
        # owner's offset must not move. A message that was left before does not set this one back.
        for partition, message in {message.partition(): message for message in messages}.items():
            offset = message.offset()
            if partition is not None and offset is not None and offset >= self._noted.get(partition, offset + 1):
                self._noted[partition] = offset + 1
                self._uncommitted.add(partition)

    def step_over(self, messages: Iterable[Message]) -> list[Message]:
        """Step over batches that the client cannot unpack, and return the other messages.

        The client names the first offset of such a batch, not the last. So the steps double while it names the same
        one. Readable messages that are stepped over are left to the sweep, as those of the batch are.
        """
        found: list[Message] = []
        for message in messages:
            error, partition, first = message.error(), message.partition(), message.offset()
            if error is None or partition is None or first is None or not is_unreadable(error):
                found.append(message)
                if error is not None:
                    self._assign_again()
                continue
            known, step = self._unreadable.get(partition, (first, 0))
            step = 2 * step or 1 if known == first else 1
            self._unreadable[partition] = first, step
            _LOG.error(
                "%s/%d: the batch at offset %d cannot be read (%s); the sweep starts its runs",
                *(self._topic, partition, first, error.str()),
            )
            try:
                self._consumer.seek(TopicPartition(self._topic, partition, first + step))
            except KafkaException as failure:  # a partition that was revoked meanwhile
                _LOG.info("%s/%d: %s", self._topic, partition, failure)
        return found

    def _assign_again(self) -> None:
        """Assign the partitions again, each where it is read.

        The client requests committed offsets once for each assignment. After an error in the answer, such as that of a
        broker that has just restarted, the client never reads the partitions. Source: librdkafka issue 5586.
        """
        try:
            partitions = self._consumer.position(self._consumer.assignment())
            self._consumer.incremental_unassign(partitions)
            self._consumer.incremental_assign(partitions)
        except KafkaException as error:  # partitions that were revoked meanwhile
            _LOG.info("%s is not assigned again: %s", self._topic, error)

    def commit_if_due(self) -> None:
        """Commit noted offsets, unless the last commit is less than 0.2 s old."""
        if self._uncommitted and monotonic_seconds() - self._committed_at >= _COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Commit noted offsets asynchronously."""
        uncommitted, self._uncommitted = self._uncommitted, set()
        if not uncommitted:
            return
        self._committed_at = monotonic_seconds()
        kept = self._kept()
        ends = {each: min(self._noted[each], kept.get(each, self._noted[each])) for each in sorted(uncommitted)}
        self._uncommitted |= {each for each, end in ends.items() if end < self._noted[each]}
        offsets = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            # After a rebalance the next owner reads the messages again, and the claim drops them. If the client fails
            # for another reason, the commit is repeated: this partition may get no further message.
            _LOG.info("offsets of %s not committed: %s", self._topic, error)
            self._uncommitted |= uncommitted & self._noted.keys()
            return
        failpoint("claim.offsets_committed")

    def drop(self, partitions: set[int]) -> None:
        """Drop partitions that were revoked or lost."""
        self._noted = {partition: end for partition, end in self._noted.items() if partition not in partitions}
        self._uncommitted -= partitions
