"""The file of job requests from `examples/`: one JSON object a line, with two placeholders filled in when it is sent.

`@start+15s` becomes the instant that many seconds after the demo begins to send; `@receiver/…` becomes a URL of the
demo's own receiver. Nothing else is changed, and a line is not looked at further: what is wrong with it, intake says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path

from tidewheel.jobs.strict_json import as_list, as_object, compact, read_object
from tidewheel.jobs.values import format_timestamp

_PACKAGE = "tidewheel.control"
_START = re.compile(r"@start\+(\d+(?:\.\d+)?)s")
_RECEIVER = "@receiver/"


@dataclass(frozen=True, slots=True)
class Line:
    """One request as it is sent.

    Args:
        number: Its place in the file, from 0.
        key: The job's key; the message's key too, so that the requests of one job stay in order.
        family: What the summary counts it under: the label `family` of its job.
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
    """What the file says must be found.

    Args:
        rejected: The fields each malformed request is refused for, by key.
        dead_letters: The keys of the jobs that end in a dead letter.
    """

    rejected: Mapping[str, frozenset[str]]
    dead_letters: frozenset[str]


def examples_folder() -> Path:
    """The folder `examples/`: inside the package where it was installed from a wheel, beside it in a checkout."""
    installed = Path(str(resources.files(_PACKAGE))) / "examples"
    return installed if installed.is_dir() else installed.parent.resolve().parent / "examples"


def read_requests(folder: Path) -> list[dict[str, object]]:
    """The requests of `requests.jsonl`, placeholders and all."""
    return [read_object(line) for line in (folder / "requests.jsonl").read_bytes().splitlines() if line.strip()]


def read_expected(folder: Path) -> Expected:
    """What `expected.json` says."""
    found = read_object((folder / "expected.json").read_bytes())
    rejected = as_object(found["rejected"]) or {}
    return Expected(
        {key: frozenset(str(path) for path in as_list(paths) or ()) for key, paths in rejected.items()},
        frozenset(str(key) for key in as_list(found["dead_letters"]) or ()),
    )


def fill_in(requests: Sequence[Mapping[str, object]], start: datetime, receiver: str) -> list[Line]:
    """The requests as they are sent.

    Args:
        requests: As read.
        start: What `@start` stands for.
        receiver: What `@receiver` stands for, such as `http://127.0.0.1:8000`.
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
