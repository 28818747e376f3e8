"""The reader of stored specs.

`job_versions.spec` is the job as submitted, before defaults, in the canonical form of equal specs. Requests are read by
other rules, which change with releases: what is stored stays readable, however long the duration or strict the rule.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from tidewheel.jobs.concurrency import parse_rate, rate_words
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_duration, microseconds

_MICROSECONDS = re.compile(r"(\d{1,18})us", re.ASCII)  # a longer one is no time span of Python


def submitted_form(spec: object) -> dict[str, object]:
    """Return a stored spec as a job can be submitted again, without its payload.

    It becomes the same version: only durations and percentages are written in a readable form.

    >>> submitted_form({"window": "2592000000000us", "retry": {"jitter": 0.1}})
    {'window': '30d', 'retry': {'jitter': '10%'}}
    """
    return _readable(as_object(spec) or {}, _JOB)


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
    if isinstance(value, str) and (found := _MICROSECONDS.fullmatch(value)):
        return format_duration(timedelta(microseconds=int(found[1])))
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
    if not isinstance(value, str) or not (found := _MICROSECONDS.fullmatch(value)):
        return value
    every_us = int(found[1])
    with suppress(InvalidValue):  # outside of the bounds of this release
        words = rate_words(max(every_us, 1))
        return words if microseconds(parse_rate(words)) == every_us else value
    return value


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
    "concurrency_key": _within({"rate": _rate}),
    "dedupe": _within({"window": _duration, "longest": _duration}),
    "workflow": _within({"timeout": _duration}),
}
