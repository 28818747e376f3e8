"""A job's stored version as it can be submitted again.

`job_versions.spec` is what was submitted, before defaults, in the one form that equal specs share; the payload lies in
the definition. Submitted again, what comes out of here is the same version: durations are only written as people do.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping

from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_duration, parse_duration

_MICROSECONDS = re.compile(r"\d+us", re.ASCII)


def submitted_job(key: str, spec: object, payload: bytes, content_type: str) -> dict[str, object]:
    """The `job` of the request that a stored version came by.

    Args:
        key: The job's; intake gave it one where it was submitted without.
        spec: As `job_versions` has it.
        payload: As its definition has it.
        content_type: The payload's.
    """
    job: dict[str, object] = {"key": key, **_readable(as_object(spec) or {}, _JOB)}
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
    """A span as people write it; what is none, such as a percentage, as it is."""
    if isinstance(value, str) and _MICROSECONDS.fullmatch(value):
        return format_duration(parse_duration(value))
    if (several := as_list(value)) is not None:
        return [_duration(one) for one in several]
    return value


def _fraction(value: object) -> object:
    """A fraction as the percentage it was submitted as."""
    return _percentage(value * 100) if isinstance(value, int | float) else value


def _percentage(percent: float) -> str:
    return f"{percent:.6f}".rstrip("0").rstrip(".") + "%"  # six decimals are the most that is read


def _jitter(value: object) -> object:
    """A duration or a percentage, also where the pair of both was stored."""
    match as_list(value):
        case [span, percent]:
            return _percentage(percent) if isinstance(percent, int | float) and percent else _duration(span)
        case _:
            return _duration(value)


_RETRY: Reading = {"initial": _duration, "max": _duration, "intervals": _duration, "jitter": _fraction}
_SCHEDULE: Reading = {"interval": _duration, "fixed_delay": _duration}
_TARGET: Reading = {name: _duration for target in TARGETS.values() for name in target.durations}
_JOB: Reading = {
    "schedule": _within(_SCHEDULE),
    "target": _within(_TARGET),
    "retry": _within(_RETRY),
    "jitter": _jitter,
    "window": _duration,
    "start_to_close": _duration,
    "schedule_to_start": _duration,
    "schedule_to_close": _duration,
    "heartbeat": _duration,
}
