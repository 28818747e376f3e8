"""Puts requests on the requests topic as any service would: with an ordinary producer, keyed by the job's key."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from confluent_kafka import KafkaError, Message, Producer

from tidewheel.clock import Clock
from tidewheel.control.demo.requests import Line
from tidewheel.errors import Unavailable
from tidewheel.schemas.generated.records import RequestOrigin

_FLUSH_SECONDS = 30.0


class Sender:
    """The producer, and where each request came to lie.

    Args:
        config: Bootstrap servers and what the user passes through.
        topic: The requests topic.
        clock: What the sending is timed by.
    """

    def __init__(self, config: Mapping[str, str], topic: str, clock: Clock) -> None:
        self._topic, self._clock = topic, clock
        self._producer = Producer({**config, "client.id": "tidewheel-demo", "enable.idempotence": True, "log_level": 2})
        self._numbers: dict[tuple[int, int], int] = {}
        self._failed: list[str] = []
        self.lines: list[Line] = []
        self.sent_at: list[datetime] = []

    def send(self, lines: Sequence[Line]) -> None:
        """Produce requests and await the broker's word for each.

        Raises:
            Unavailable: The broker did not take one of them.
        """
        for line in lines:
            number = len(self.lines)
            self.lines.append(line)
            self.sent_at.append(self._clock.now())
            self._producer.produce(self._topic, line.value, line.key, on_delivery=self._noted(number))
            self._producer.poll(0)
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or self._failed:
            message = f"{left + len(self._failed)} requests did not reach Kafka: {'; '.join(self._failed[:3])}"
            raise Unavailable(message)

    def number_of(self, origin: RequestOrigin | None) -> int | None:
        """Which request lies there; None if it is none of ours."""
        return None if origin is None else self._numbers.get((origin.partition, origin.offset))

    def _noted(self, number: int) -> "_Note":
        return _Note(number, self._numbers, self._failed)


class _Note:
    """Takes the broker's word for one message."""

    def __init__(self, number: int, numbers: dict[tuple[int, int], int], failed: list[str]) -> None:
        self._number, self._numbers, self._failed = number, numbers, failed

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._failed.append(error.str() if error else "the broker named no place")
        else:
            self._numbers[partition, offset] = self._number
