"""The topics that one member reads: with the shared requests also those of single tenants.

A tenant's topic is found by its name in the broker's metadata. So it needs no setting and no restart. Two members of a
process, or two processes, may know a new topic some seconds apart: the group gives it to those that subscribe to it.
"""

import logging
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import Topics

_LOG = logging.getLogger("tidewheel.intake")

_AGE_SECONDS = 10.0  # a new topic is found within it; the broker's answer has all partitions of the cluster
_KAFKA_SECONDS = 10.0


class Subscription:
    """The subscription of one member during one membership of the group.

    Args:
        client: The member's consumer.
        topics: The names of the topics.
        topic: The shared topic that the member reads.
        subscribe: Subscribes the consumer to topics, with the member's callbacks.
    """

    def __init__(self, client: Consumer, topics: Topics, topic: str, subscribe: Callable[[list[str]], None]) -> None:
        self._client, self._topics, self._topic, self._subscribe = client, topics, topic, subscribe
        self._subscribed: list[str] = []
        self._next = float("-inf")

    def refresh(self) -> None:
        """Subscribe to the topics that exist now, every ten seconds.

        Raises:
            KafkaException: The broker does not answer, and nothing is subscribed to yet.
        """
        if (now := monotonic_seconds()) < self._next:
            return
        self._next = now + _AGE_SECONDS
        try:
            found = self._find()
        except KafkaException as error:
            if not self._subscribed:
                raise
            _LOG.info("new topics of tenants cannot be found now: %s", error)
            return
        if found != self._subscribed:
            self._subscribe(found)
            self._subscribed = found

    def _find(self) -> list[str]:
        if self._topic != self._topics.requests:
            return [self._topic]
        return self._topics.all_requests(self._client.list_topics(timeout=_KAFKA_SECONDS).topics)
