"""Cron fields in English words."""

import re
from collections.abc import Iterable

from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, SECOND, FieldKind

# fmt: off
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)
# fmt: on
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_FEW = 6  # times of day that are listed one by one; more of them read better as a rule


def time_words(second: str, minute: str, hour: str) -> str:
    """When in the day.

    >>> time_words("0", "30", "2,14")
    'at 02:30 and 14:30'
    >>> time_words("0", "*/5", "9-17")
    'every 5 minutes of hours 9 to 17'
    """
    seconds, minutes, hours = _numbers(second), _numbers(minute), _numbers(hour)
    if 0 < len(seconds) * len(minutes) * len(hours) <= _FEW:
        to_second = [f":{s:02}" for s in seconds] if second != "0" else [""]
        return "at " + listed(f"{h:02}:{m:02}{s}" for h in hours for m in minutes for s in to_second)
    parts = [_field(second, SECOND), _field(minute, MINUTE), _field(hour, HOUR)]
    if second == "0":
        parts.pop(0)
    while len(parts) > 1 and parts[-1] in ("every hour", "every minute") and parts[-2].startswith("every"):
        parts.pop()  # "every 5 minutes" says it all
    words = " of ".join(parts)
    return words if words.startswith("every") else f"at {words}"


def day_words(by_date: str, month: str, by_week: str) -> str:
    """On which days.

    >>> day_words("13", "*", "5")
    'on day 13 of the month or on Friday'
    >>> day_words("*/2", "6-8", "MON-FRI")
    'on every 2nd day of the month where that is Monday to Friday, in June to August'
    """
    by_date, by_week = by_date.replace("?", "*"), by_week.replace("?", "*")
    date_open, week_open = by_date == "*", by_week == "*"
    dates, weekdays = _field(by_date, DAY_OF_MONTH), _field(by_week, DAY_OF_WEEK)
    if date_open or week_open:
        days = "every day" if date_open and week_open else f"on {weekdays if date_open else dates}"
    elif by_date.startswith("*") or by_week.startswith("*"):
        days = f"on {dates} where that is {weekdays}"
    else:
        days = f"on {dates} or on {weekdays}"
    return days if month == "*" else f"{days}, in {_field(month, MONTH)}"


def listed(items: Iterable[str]) -> str:
    """Items as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def _numbers(text: str) -> list[int]:
    """The numbers of a field that is a plain list of them; none for any other."""
    return sorted({int(word) for word in text.split(",")}) if re.fullmatch(r"\d+(,\d+)*", text, re.ASCII) else []


def _field(text: str, kind: FieldKind) -> str:
    return listed(_special(element, kind) or _element(element, kind) for element in text.lower().split(","))


def _special(element: str, kind: FieldKind) -> str:
    """An element with H, L, W or #; empty for a plain one."""
    if element.startswith("h"):
        return f"{'some' if '/' in element else 'one'} {kind.name} of the job's own ({element.upper()})"
    if kind is DAY_OF_MONTH and {"l", "w"} & {*element}:
        return _special_date(element)
    if kind is DAY_OF_WEEK and "#" in element:
        days, _, which = element.partition("#")
        return f"the {_ORDINALS[int(which)]} {_element(days, kind)} of the month"
    if kind is DAY_OF_WEEK and element.strip("l") != element:
        return f"the last {_name(element.strip('l'), kind)} of the month"
    return ""


def _special_date(element: str) -> str:
    if element in ("lw", "wl"):
        return "the month's last day from Monday to Friday"
    if "w" in element:
        return f"the day from Monday to Friday nearest to day {element.strip('w')} of the month"
    back = int(element[2:] or 0)
    return f"the day {back} before the last of the month" if back else "the last day of the month"


def _element(element: str, kind: FieldKind) -> str:
    body, _, step = element.partition("/")
    first, _, last = body.partition("-")
    tail = " of the month" if kind is DAY_OF_MONTH else ""
    noun = {DAY_OF_MONTH: "day", DAY_OF_WEEK: "day of the week"}.get(kind, kind.name)
    if body == "*":
        even = kind in (SECOND, MINUTE, HOUR) and step and kind.size % int(step) == 0
        return (f"every {step} {noun}s" if even else f"every {_nth(step)}{noun}") + tail
    if step:
        until = f" to {_name(last, kind)}" if last else " on"
        return f"every {_nth(step)}{noun} from {_name(first, kind)}{until}{tail}"
    named = "" if kind.names else f"{noun}s " if last else f"{noun} "
    return f"{named}{_name(first, kind)}{f' to {_name(last, kind)}' if last else ''}{tail}"


def _nth(step: str) -> str:
    """The step as an ordinal and a blank; empty for every single one."""
    number = int(step or 1)
    if number == 1:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} "


def _name(word: str, kind: FieldKind) -> str:
    if not kind.names:
        return str(int(word))
    number = int(word) if word.isdigit() else kind.low + kind.names.index(word)
    return _WEEKDAYS[number] if kind is DAY_OF_WEEK else _MONTHS[number - 1]
