"""The input: `requests.jsonl`, one JSON object a line, produced to Kafka as any program would.

`@start+15s` becomes the instant 15 seconds after the start of sending, `@receiver/…` a URL of the demo's receiver.
Nothing else is changed or validated: intake validates.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidewheel.errors import Unavailable
from tidewheel.jobs.values import format_timestamp
from tidewheel.kafka.clients import producer
from tidewheel.kafka.topics import Topics

# What the file must lead to beside success: the fields for which a request is rejected, and the dead letters.
REJECTED: Mapping[str, frozenset[str]] = {
    "finance/month-end": frozenset({"job.schedule.timezone"}),
    "finance/year-end": frozenset({"job.retires", "job.retry.max_attempts"}),
}
DEAD_LETTERS = frozenset({"ledger/reconcile-2019"})

_FILE = Path(__file__).parent / "requests.jsonl"
_START = re.compile(r"@start\+(\d+(?:\.\d+)?)s")
_FLUSH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    """One request as it is sent, with the key of its message and job.

    `family` is a label of the job, empty for other requests. `recurs` is true for a job with an interval or a cron
    expression.
    """

    key: str
    document: Mapping[str, object]
    family: str = ""
    recurs: bool = False


def read_requests(start: datetime, receiver: str) -> list[Line]:
    """Read the file, with the values of `@start` and of `@receiver`."""
    text = _START.sub(lambda found: format_timestamp(start + timedelta(seconds=float(found[1]))), _FILE.read_text())
    return [_line(json.loads(each)) for each in text.replace("@receiver/", f"{receiver}/").splitlines()]


def _line(document: Mapping[str, Any]) -> Line:
    job = document.get("job")
    if job is None:
        return Line(document["key"], document)
    return Line(job["key"], document, job["labels"]["family"], bool({"interval", "cron"} & set(job["schedule"])))


def send(kafka: Mapping[str, str], lines: Sequence[Line]) -> None:
    """Produce requests and wait for their acknowledgements; raise Unavailable if one is missing."""
    failed: list[str] = []
    client = producer(
        kafka, role="demo", on_delivery=lambda error, message: failed.append(f"{message.key()!r}: {error}")
    )
    for line in lines:
        client.produce(Topics().requests, json.dumps(line.document).encode(), line.key)
    left = client.flush(_FLUSH_SECONDS)
    if left or failed:
        message = f"{left + len(failed)} requests did not reach Kafka: {'; '.join(failed[:3])}"
        raise Unavailable(message)
