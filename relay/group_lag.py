"""Measure the lag of the installation's consumer groups: messages in Kafka that no member has read.

The relay that holds slice 0 measures for the whole installation, so each number is exported once. It does so on a
thread of its own, every fifteen seconds and for one part in a hundred of the time at most.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, cast

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub re-exports nothing else
    AdminClient,
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.relay")

_EVERY_SECONDS = 15.0
_SHARE = 100
_ANSWER_SECONDS = 5.0
_MAX_GROUPS = 100  # so many series: thirty queues


class _Offset(Protocol):
    offset: int


class _Committed(Protocol):
    topic_partitions: Sequence[TopicPartition]


class GroupLag:
    """Measures on its own thread and with its own client.

    Args:
        kafka: The configuration of Kafka clients.
        topics: The installation's topics.
    """

    def __init__(self, kafka: Mapping[str, str], topics: Topics) -> None:
        self._kafka, self._topics = kafka, topics
        self._pacer = FullScanPacer(_EVERY_SECONDS, at_once=False, share=_SHARE)
        self._thread: threading.Thread | None = None
        self._exported: dict[str, str] = {}
        self._admin: AdminClient | None = None
        self._reported: set[str] = set()

    def step(self, *, measures: bool) -> None:
        """Start a measurement when one is due; reset the gauges when another relay measures from now on."""
        if self._thread is not None and self._thread.is_alive():
            return
        if measures and self._pacer.start():
            # A daemon: the end of the relay waits for no answer of the broker.
            self._thread = threading.Thread(target=self._scan, name="group-lag", daemon=True)
            self._thread.start()
        elif not measures and self._admin is not None:
            self._export({})
            self._admin = None

    def measure(self) -> None:
        """Measure now.

        Raises:
            KafkaException: The broker refuses or does not answer.
            TimeoutError: It does not answer in time.
        """
        if self._admin is None:
            self._admin = AdminClient({**self._kafka, "client.id": "tidewheel-relay-lag", "log_level": 2})
        found = self._admin.list_topics(timeout=_ANSWER_SECONDS).topics
        groups = {group: topic for group, topic in self._groups(found).items() if topic in found}
        places = [TopicPartition(topic, number) for topic in groups.values() for number in found[topic].partitions]
        if not places:
            self._export({})
            return
        specs = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        first, last = (_offsets(self._admin, places, cast("OffsetSpec", spec)) for spec in specs)
        lags: dict[str, tuple[str, int]] = {}
        for group, topic in groups.items():
            committed = self._committed(group, [place for place in places if place.topic == topic])
            # Share groups have no offsets. One of executors that has never read anything looks the same.
            if committed is not None and (committed or not group.endswith(".executors")):
                read = ((end, max(committed.get(at[1], 0), first[at])) for at, end in last.items() if at[0] == topic)
                lags[group] = (topic, sum(max(end - after, 0) for end, after in read))
        self._export(lags)

    def _scan(self) -> None:
        began = monotonic_seconds()
        try:
            self.measure()
        except (KafkaException, TimeoutError) as error:
            self._report("the lag of consumer groups cannot be measured", error)
        self._pacer.record(monotonic_seconds() - began)

    def _groups(self, present: Mapping[str, object]) -> dict[str, str]:
        """Return the consumer groups, each with its topic; those of executors as far as the limit goes."""
        names, runs = self._topics, f"{self._topics.prefix}.runs."
        groups = {f"{names.requests}.intake": names.requests, f"{names.requests}.intake.replies": names.target_replies}
        groups |= {f"{topic}.executors": topic for topic in sorted(present) if topic.startswith(runs)}
        return dict([*groups.items()][:_MAX_GROUPS])

    def _committed(self, group: str, places: list[TopicPartition]) -> dict[int, int] | None:
        """Return the next offset of each partition that a group has read; None if this relay may not ask."""
        assert self._admin is not None  # noqa: S101 - `measure` made it
        asked = [ConsumerGroupTopicPartitions(group, places)]
        try:
            found = cast(
                "Mapping[str, Future[_Committed]]",
                self._admin.list_consumer_group_offsets(asked, request_timeout=_ANSWER_SECONDS),  # pyright: ignore[reportUnknownMemberType]
            )[group].result(_ANSWER_SECONDS)
        except KafkaException as error:
            self._report(f"the lag of {group} cannot be measured", error)
            return None
        return {place.partition: place.offset for place in found.topic_partitions if place.offset >= 0}

    def _report(self, problem: str, error: Exception) -> None:
        """Log a problem once."""
        if problem not in self._reported:
            self._reported.add(problem)
            _LOG.warning("%s: %s; the relay tries again, and runs go on", problem, error)

    def _export(self, lags: Mapping[str, tuple[str, int]]) -> None:
        for group in self._exported.keys() - lags.keys():
            metrics.set("group_lag", 0, group, self._exported[group])
        for group, (topic, lag) in lags.items():
            metrics.set("group_lag", lag, group, topic)
        self._exported |= {group: topic for group, (topic, _) in lags.items()}


def _offsets(admin: AdminClient, places: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    futures = cast(
        "Mapping[TopicPartition, Future[_Offset]]",
        admin.list_offsets(dict.fromkeys(places, spec), request_timeout=_ANSWER_SECONDS),  # pyright: ignore[reportUnknownMemberType]
    )
    return {(each.topic, each.partition): futures[each].result(_ANSWER_SECONDS).offset for each in places}
