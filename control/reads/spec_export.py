"""A job's stored version as it can be submitted again.

`job_versions.spec` is the job as submitted, before defaults, in the canonical form of equal specs. The definition has
the payload. The export, submitted again, is the same version: only durations are written in a readable form.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping

from tidewheel.jobs.concurrency import parse_rate, rate_words
from tidewheel.jobs.credential_headers import without_literal_credentials
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_duration, parse_duration
from tidewheel.redaction import redact_query

_MICROSECONDS = re.compile(r"\d+us", re.ASCII)


def submitted_job(
    key: str, spec: object, payload: bytes, content_type: str, *, as_stored: bool = False
) -> dict[str, object]:
    """Return the `job` of the request that created a stored version.

    Args:
        key: The job's key; intake assigned one if it was submitted without.
        spec: The spec of `job_versions`.
        payload: The payload of its definition.
        content_type: The payload's type.
        as_stored: True for a change of the job, which keeps the secrets in its URL: output hides them.
    """
    job: dict[str, object] = {"key": key, **_readable(as_object(spec) or {}, _JOB)}
    target = as_object(job.get("target")) or {}
    if isinstance(url := target.get("url"), str) and not as_stored:
        job["target"] = {**target, "url": redact_query(url)}
    if content_type != JSON_CONTENT:
        job["payload_base64"] = b64encode(payload).decode()
    elif payload:
        job["payload"] = json.loads(payload)
    return job


Reading = Mapping[str, "Callable[[object], object]"]


def _readable(stored: Mapping[str, object], how: Reading) -> dict[str, object]:
    return {name: how[name](value) if name in how else value for name, value in stored.items()}


def _within(how: Reading) -> Callable[[object], object]:
    def read(value: object) -> object:
        parts = as_object(value)
        return value if parts is None else _readable(parts, how)

    return read


def _duration(value: object) -> object:
    """Return a duration in a readable form; another value, such as a percentage, unchanged."""
    if isinstance(value, str) and _MICROSECONDS.fullmatch(value):
        return format_duration(parse_duration(value))
    if (several := as_list(value)) is not None:
        return [_duration(one) for one in several]
    return value


def _fraction(value: object) -> object:
    """Return a fraction as the percentage that was submitted."""
    return _percentage(value * 100) if isinstance(value, int | float) else value


def _percentage(percent: float) -> str:
    return f"{percent:.6f}".rstrip("0").rstrip(".") + "%"  # six decimals are the most that intake accepts


def _jitter(value: object) -> object:
    """Return a duration or a percentage, even if both are stored as a pair."""
    match as_list(value):
        case [span, percent]:
            return _percentage(percent) if isinstance(percent, int | float) and percent else _duration(span)
        case _:
            return _duration(value)


def _rate(value: object) -> object:
    """Return a rate as submitted; as the stored text where no short one is the same rate."""
    if not isinstance(value, str) or not _MICROSECONDS.fullmatch(value):
        return value
    words = rate_words(int(value[:-2]))
    return words if parse_rate(words) == parse_rate(value) else value


_RETRY: Reading = {"initial": _duration, "max": _duration, "intervals": _duration, "jitter": _fraction}
_SCHEDULE: Reading = {"interval": _duration, "fixed_delay": _duration}
_TARGET: Reading = {name: _duration for target in TARGETS.values() for name in target.durations}


def _target(value: object) -> object:
    read = _within(_TARGET)(value)
    target = as_object(read) or {}
    headers = as_object(target.get("headers")) if target.get("type") == "http" else None
    return read if headers is None else {**target, "headers": without_literal_credentials(headers)}


_JOB: Reading = {
    "schedule": _within(_SCHEDULE),
    "target": _target,
    "retry": _within(_RETRY),
    "jitter": _jitter,
    "window": _duration,
    "start_to_close": _duration,
    "schedule_to_start": _duration,
    "schedule_to_close": _duration,
    "heartbeat": _duration,
    "concurrency_key": _within({"rate": _rate}),
    "dedupe": _within({"window": _duration, "longest": _duration}),
    "workflow": _within({"timeout": _duration}),
}
