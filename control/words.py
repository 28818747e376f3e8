"""Words for people: durations, schedules, and stored text without control characters.

Sentences and pages show measured durations to three figures, and settings exactly. A control character
must not steer the reader's terminal.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.values import format_duration

_SMALL = ("ms", 1000, 1000), ("s", 1, 60)  # the factor from seconds, and the end of the unit
_LARGE = ("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))
_ZERO, _SECOND, _MILLISECOND = timedelta(0), timedelta(seconds=1), timedelta(milliseconds=1)


def duration(span: timedelta | None, *, exact: bool = False) -> str:
    """Return a duration; a dash for None.

    One that is not `exact`, as a measured one, has three figures, or from a minute on at most two units.

    >>> [duration(timedelta(seconds=each)) for each in (0, 0.00544, 0.25, 2, 12.345, 59.96, 72, 3600, 7500, 200000)]
    ['0 s', '5.44 ms', '250 ms', '2.00 s', '12.3 s', '1 min', '1 min 12 s', '1 h', '2 h 5 min', '2 d 7 h']
    >>> [duration(timedelta(seconds=each), exact=True) for each in (0, 0.25, 45.123456, 61.7, 5400, 200000)]
    ['0 s', '250 ms', '45.123456 s', '1 min 1.7 s', '1 h 30 min', '2 d 7 h 33 min 20 s']
    """
    if span is None:
        return "\u2013"
    span = max(span, _ZERO)
    if exact and _ZERO < span < _SECOND:
        return f"{_plain(span / _MILLISECOND)} ms"
    if not exact and span:
        for unit, factor, end in _SMALL:
            text = f"{span.total_seconds() * factor:#.3g}"
            if float(text) < end:
                return f"{text.rstrip('.')} {unit}"
        span = timedelta(seconds=round(span.total_seconds()))
    parts = list[str]()
    for unit, each in _LARGE:
        count, span = divmod(span, each)
        parts += [f"{count} {unit}" if count else ""] if count or parts else []
    parts.append(f"{_plain(span.total_seconds())} s" if span or not parts else "")
    return " ".join(filter(None, parts if exact else parts[:2]))


def printable(text: str) -> str:
    r"""Return a text of one line with its control characters escaped.

    >>> printable("a\x1b[2Jb\tc")
    'a\\x1b[2Jb\tc'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    r"""Return a text of several lines with its control characters escaped, but line breaks.

    >>> printable_lines("a\r\nb\rc")
    'a\nb\\rc'
    """
    return text if text.isprintable() else "\n".join(map(printable, text.replace("\r\n", "\n").split("\n")))


def _plain(number: float) -> str:
    """Return a number of at most six decimal places without trailing zeros."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def schedule_words(schedule: Mapping[str, object]) -> str:
    """Return a stored schedule in a few words.

    >>> schedule_words({"kind": "interval", "interval_us": 90_000_000}), schedule_words({"kind": "manual"})
    ('every 1m30s', 'manual')
    >>> schedule_words({"kind": "after", "parents": [{"job": "a", "when": "success"}, {"job": "b", "when": "always"}]})
    'after a, b (always)'
    """
    interval = schedule.get("interval_us")
    span = format_duration(timedelta(microseconds=interval)) if isinstance(interval, int) else ""
    match schedule.get("kind"):
        case "interval":
            return f"every {span}"
        case "fixed_delay":
            return f"{span} after each end"
        case "once":
            return f"once at {_instant(str(schedule['at']))}"
        case "cron":
            expressions = ", ".join(map(str, as_list(schedule.get("expressions")) or ()))
            zone = schedule.get("timezone")
            return expressions if zone == "UTC" else f"{expressions} {zone}"
        case "after":
            parents = [as_object(parent) or {} for parent in as_list(schedule.get("parents")) or ()]
            named = [f"{one['job']}" + (f" ({one['when']})" if one["when"] != "success" else "") for one in parents]
            return f"after {', '.join(named[:10])}{', …' if len(named) > 10 else ''}"
        case kind:
            return str(kind)


def _instant(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
