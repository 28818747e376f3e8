"""Read the job requests of `examples/`, fill in their placeholders and produce them.

The file has one JSON object a line. `@start+15s` becomes the instant 15 seconds after the start of sending.
`@receiver/…` becomes a URL of the demo's receiver. Nothing else is changed or validated: intake validates.
An ordinary producer sends the requests, keyed by the job's key.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tidewheel.clock import Clock
from tidewheel.errors import Unavailable
from tidewheel.jobs.strict_json import as_list, as_object, compact, read_object
from tidewheel.jobs.values import format_timestamp
from tidewheel.schemas.generated.records import RequestOrigin

_PACKAGE = "tidewheel.control"
_START = re.compile(r"@start\+(\d+(?:\.\d+)?)s")
_RECEIVER = "@receiver/"
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """One request as it is sent.

    Args:
        number: Its place in the file, from 0.
        key: The job's key; the message's key too, so that the requests of one job stay in order.
        family: The label `family` of its job, by which the summary counts.
        document: The request.
    """

    number: int
    key: str
    family: str
    document: Mapping[str, object]

    @property
    def job(self) -> Mapping[str, object] | None:
        """The job it submits; None for any other request."""
        return as_object(self.document.get("job"))

    @property
    def value(self) -> bytes:
        """The message's value."""
        return compact(self.document)


@dataclass(frozen=True, slots=True)
class Expected:
    """The results that `expected.json` requires.

    Args:
        rejected: The fields that intake rejects in each malformed request, by key.
        dead_letters: The keys of the jobs that end in a dead letter.
    """

    rejected: Mapping[str, frozenset[str]]
    dead_letters: frozenset[str]


def examples_folder() -> Path:
    """Return the folder `examples/`: inside an installed wheel, or beside the package in a checkout."""
    installed = Path(str(resources.files(_PACKAGE))) / "examples"
    return installed if installed.is_dir() else installed.parent.resolve().parent / "examples"


def read_requests(folder: Path) -> list[dict[str, object]]:
    """Read `requests.jsonl` with its placeholders."""
    return [read_object(line) for line in (folder / "requests.jsonl").read_bytes().splitlines() if line.strip()]


def read_expected(folder: Path) -> Expected:
    """Read `expected.json`."""
    found = read_object((folder / "expected.json").read_bytes())
    rejected = as_object(found["rejected"]) or {}
    return Expected(
        {key: frozenset(str(path) for path in as_list(paths) or ()) for key, paths in rejected.items()},
        frozenset(str(key) for key in as_list(found["dead_letters"]) or ()),
    )


def fill_in(requests: Sequence[Mapping[str, object]], start: datetime, receiver: str) -> list[Line]:
    """Fill in the placeholders of requests.

    Args:
        requests: The requests as read.
        start: The value of `@start`.
        receiver: The value of `@receiver`, such as `http://127.0.0.1:8000`.
    """
    lines: list[Line] = []
    families: dict[str, str] = {}
    for number, request in enumerate(requests):
        document = as_object(_filled(request, start, receiver)) or {}
        job = as_object(document.get("job")) or {}
        key = str(job.get("key", document.get("key", "")))
        labels = as_object(job.get("labels")) or {}
        family = families.setdefault(key, str(labels.get("family", "")))
        lines.append(Line(number, key, family, document))
    return lines


def _filled(value: object, start: datetime, receiver: str) -> object:
    if (parts := as_object(value)) is not None:
        return {name: _filled(part, start, receiver) for name, part in parts.items()}
    if (elements := as_list(value)) is not None:
        return [_filled(element, start, receiver) for element in elements]
    if isinstance(value, str) and (offset := _START.fullmatch(value)):
        return format_timestamp(start + timedelta(seconds=float(offset[1])))
    if isinstance(value, str) and value.startswith(_RECEIVER):
        return f"{receiver}/{value.removeprefix(_RECEIVER)}"
    return value


class Sender:
    """A producer that records the offset of each request.

    Args:
        config: Bootstrap servers and the user's client settings.
        topic: The requests topic.
        clock: The clock that stamps the sending.
    """

    def __init__(self, config: Mapping[str, str], topic: str, clock: Clock) -> None:
        self._topic, self._clock = topic, clock
        self._producer = Producer({**config, "client.id": "tidewheel-demo", "enable.idempotence": True, "log_level": 2})
        self._numbers: dict[tuple[int, int], int] = {}
        self._failed: list[str] = []
        self.lines: list[Line] = []
        self.sent_at: list[datetime] = []

    def send(self, lines: Sequence[Line]) -> None:
        """Produce requests and wait for their acknowledgements.

        Raises:
            Unavailable: The broker did not acknowledge all of them.
        """
        for line in lines:
            number = len(self.lines)
            self.lines.append(line)
            self.sent_at.append(self._clock.now())
            self._producer.produce(self._topic, line.value, line.key, on_delivery=self._delivery_callback(number))
            self._producer.poll(0)
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or self._failed:
            message = f"{left + len(self._failed)} requests did not reach Kafka: {'; '.join(self._failed[:3])}"
            raise Unavailable(message)

    def number_of(self, origin: RequestOrigin | None) -> int | None:
        """Return the number of the request at an origin, None if it is not the demo's."""
        return None if origin is None else self._numbers.get((origin.partition, origin.offset))

    def _delivery_callback(self, number: int) -> "_DeliveryCallback":
        return _DeliveryCallback(number, self._numbers, self._failed)


class _DeliveryCallback:
    """Record the delivery of one message."""

    def __init__(self, number: int, numbers: dict[tuple[int, int], int], failed: list[str]) -> None:
        self._number, self._numbers, self._failed = number, numbers, failed

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._failed.append(error.str() if error else "the broker returned no offset")
        else:
            self._numbers[partition, offset] = self._number
