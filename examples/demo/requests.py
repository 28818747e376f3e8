"""The requests of the demo: read, their placeholders filled in, and produced as any program would.

The file has one JSON object a line. `@start+15s` becomes the instant 15 seconds after the start of sending.
`@receiver/…` becomes a URL of the demo's receiver. Nothing else is changed or validated: intake validates.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

from confluent_kafka import KafkaError, Message, Producer

from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.kafka.topics import Topics

FOLDER = Path(__file__).parent

_START = re.compile(r'"@start\+(\d+(?:\.\d+)?)s"')
_RECEIVER = '"@receiver/'
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """One request as it is sent, with the key of its message and job, and its label `family`."""

    key: str
    family: str
    document: Mapping[str, object]

    @property
    def job(self) -> Mapping[str, object] | None:
        """The job it submits; None for any other request."""
        return cast("Mapping[str, object] | None", self.document.get("job"))


@dataclass(frozen=True, slots=True)
class Expected:
    """The refused fields of each malformed request, by key, and the jobs that end in a dead letter."""

    rejected: Mapping[str, frozenset[str]]
    dead_letters: frozenset[str]


def read_requests() -> list[str]:
    """Read `requests.jsonl` with its placeholders."""
    return (FOLDER / "requests.jsonl").read_text().splitlines()


def read_expected() -> Expected:
    """Read `expected.json`."""
    found = json.loads((FOLDER / "expected.json").read_text())
    rejected = {key: frozenset(paths) for key, paths in found["rejected"].items()}
    return Expected(rejected, frozenset(found["dead_letters"]))


def fill_in(requests: Sequence[str], start: datetime, receiver: str) -> list[Line]:
    """Fill in the placeholders of requests, with the value of `@start` and of `@receiver`."""
    lines: list[Line] = []
    families: dict[str, str] = {}
    for request in requests:
        timed = _START.sub(lambda found: f'"{format_timestamp(start + timedelta(seconds=float(found[1])))}"', request)
        document = json.loads(timed.replace(_RECEIVER, f'"{receiver}/'))
        job = document.get("job", {})
        key = str(job.get("key", document.get("key", "")))
        family = families.setdefault(key, str(job.get("labels", {}).get("family", "")))
        lines.append(Line(key, family, document))
    return lines


class Sender:
    """A producer of requests; `lines` are those that it has sent."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._producer = Producer({**kafka, "client.id": "tidewheel-demo", "enable.idempotence": True, "log_level": 2})
        self._failed: list[str] = []
        self.lines: list[Line] = []

    def send(self, lines: Sequence[Line]) -> None:
        """Produce requests and wait for their acknowledgements; raise Unavailable if one is missing."""
        for line in lines:
            self.lines.append(line)
            value = json.dumps(line.document).encode()
            self._producer.produce(Topics().requests, value, line.key, on_delivery=self._delivered)
            self._producer.poll(0)
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or self._failed:
            message = f"{left + len(self._failed)} requests did not reach Kafka: {'; '.join(self._failed[:3])}"
            raise Unavailable(message)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            self._failed.append(error.str())
