"""A stored schedule in a few words, for lists."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.values import format_duration


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
