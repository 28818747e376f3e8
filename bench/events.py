"""How many completion events are on Kafka, and when they came: asked of the broker, for reading them would cost."""

import threading
from concurrent.futures import Future
from typing import Protocol, cast

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports none of these

from tidewheel.bench.complete import STALL_SECONDS
from tidewheel.bench.floors import now_seconds
from tidewheel.bench.measured import Incomplete
from tidewheel.bench.stage import Stage
from tidewheel.clock import monotonic_seconds

_ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 0.5  # each look is work for the broker


class _Told(Protocol):
    offset: int


class Ends:
    """Counts the messages of one topic."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self._admin = AdminClient({**stage.kafka, "client.id": "tidewheel-bench", "log_level": 2})
        partitions = self._admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        latest = cast("OffsetSpec", OffsetSpec.latest())  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(topic, number): latest for number in partitions}

    def count(self) -> int:
        """How many the topic has been given."""
        asked = self._admin.list_offsets(self._asked, request_timeout=_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        told = cast("dict[TopicPartition, Future[_Told]]", asked)
        return sum(each.result().offset for each in told.values())

    def watch(self, wanted: int) -> list[tuple[float, int]]:
        """Wait until so many are there; returns how many there were when.

        Raises:
            Incomplete: None has come for a minute.
        """
        seen = [(now_seconds(), self.count())]
        since = monotonic_seconds()
        while seen[-1][1] < wanted:
            threading.Event().wait(_LOOK_SECONDS)
            before = seen[-1][1]
            seen.append((now_seconds(), self.count()))
            since = monotonic_seconds() if seen[-1][1] > before else since
            if monotonic_seconds() - since > STALL_SECONDS:
                message = f"{seen[-1][1]:,} of {wanted:,} completion events, and none for {STALL_SECONDS:.0f} s"
                raise Incomplete(message)
        return seen
