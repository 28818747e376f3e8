"""The topics that one member reads: with the shared requests also those of single tenants.

A tenant's topic is found by its name in the broker's metadata. So it needs no setting and no restart. Two members of a
process, or two processes, may know a new topic some seconds apart: the group gives it to those that subscribe to it.

The topic of a tenant that does not exist is left out until the tenant is created. That of one that is being deleted is
read: each of its messages is refused.
"""

import logging
from collections.abc import Callable

from confluent_kafka import KafkaException

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable

_LOG = logging.getLogger("tidewheel.intake")

_AGE_SECONDS = 10.0  # a new topic is found within it; the broker's answer has all partitions of the cluster


class Subscription:
    """The subscription of one member during one membership of the group."""

    def __init__(self, find: Callable[[], list[str]], subscribe: Callable[[list[str]], None]) -> None:
        self._find, self._subscribe = find, subscribe
        self._subscribed: list[str] = []
        self._next = float("-inf")

    def refresh(self) -> None:
        """Subscribe to the topics that exist now, every ten seconds.

        Raises:
            KafkaException: The broker does not answer, and nothing is subscribed to yet.
            Unavailable: The database does not answer, and nothing is subscribed to yet.
        """
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
