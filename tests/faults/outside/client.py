"""A plain Kafka client: produces requests in JSON, and records what became of them."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.outside.records import Log, now_us

_FLUSH_SECONDS = 60.0
_METADATA_SECONDS = 30.0


class Client:
    """Produces to the requests topic and reads the replies topic, without a line of Tidewheel's."""

    def __init__(self, settings: Mapping[str, str], prefix: str, path: Path) -> None:
        self._log, self._prefix = Log(path), prefix
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer = Consumer(
            {
                **settings,
                "group.id": f"outside-{uuid4()}",  # required by the client, never joined
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        topic = f"{prefix}.replies"
        known = self._consumer.list_topics(topic, timeout=_METADATA_SECONDS).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in known])
        self._answers = threading.Condition()
        self._open: dict[str, str] = {}  # request_id to key
        self._replies: dict[str, dict[str, Any]] = {}
        self._ended = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._read, name="replies", daemon=True)
        self._thread.start()

    def request(self, document: Mapping[str, Any], key: str) -> str:
        """Produce one request; return its request_id."""
        with self._answers:
            self._number += 1
            request_id = f"r-{self._number}"
            self._open[request_id] = key
        self._log.append({"kind": "invoke", "id": request_id, "at": now_us(), "request": document})
        value = json.dumps({**document, "request_id": request_id}).encode()

        def placed(error: object, message: Any) -> None:  # noqa: ANN401 - a message of the client
            place = {"topic": "requests", "partition": message.partition(), "offset": message.offset()}
            outcome = {"kind": "placed", **place} if error is None else {"kind": "info", "error": str(error)}
            self._log.append({"id": request_id, "at": now_us(), **outcome})

        self._producer.produce(f"{self._prefix}.requests", key=key.encode(), value=value, on_delivery=placed)
        return request_id

    def is_free(self, key: str) -> bool:
        """Return True if no request about a job is open."""
        with self._answers:
            return key not in self._open.values()

    def reply(self, request_id: str) -> dict[str, Any] | None:
        """Return the reply to a request, if it has come."""
        with self._answers:
            return self._replies.get(request_id)

    def wait_answered(self, seconds: float) -> bool:
        """Wait until no request is open; return False if one stays so."""
        with self._answers:
            return self._answers.wait_for(lambda: not self._open, seconds)

    def close(self) -> None:
        """Leave the broker; open requests become `info`."""
        self._ended.set()
        self._thread.join()
        self._producer.flush(_FLUSH_SECONDS)
        for request_id in self._open:
            self._log.append({"kind": "info", "id": request_id, "at": now_us()})
        self._consumer.close()
        self._log.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(0)
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self._take(json.loads(message.value() or b"{}"))

    def _take(self, reply: dict[str, Any]) -> None:
        request_id = str(reply["request_id"])
        with self._answers:
            if request_id not in self._open:
                return
            self._log.append(
                {
                    "kind": "ok" if reply["status"] == "accepted" else "fail",
                    "id": request_id,
                    "at": now_us(),
                    "reply": reply,
                }
            )
            self._replies[request_id] = reply
            del self._open[request_id]
            self._answers.notify_all()
