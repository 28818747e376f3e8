"""The syntax of cron expressions: split an expression into fields and elements, and check each.

The sections are in this order: the fields, refusals, special days (``L``, ``W``, ``#``), ``H``, elements, and whole
expressions with their zone and shorthands. Accepted elements are unambiguous: croniter reads a reversed range as one
that wraps, ``5-5`` as every value, and ``R`` as random.

Source of special days: the Quartz job scheduler's cron trigger, "Special characters". Weekdays are numbered as cron
does (Sunday 0). ``H`` gives the same job the same number for ever, and spreads different jobs evenly.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_fields import DayRule, bits, event_bridge
from tidewheel.schedules.zones import zone

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class FieldKind:
    """One field of a cron expression.

    Args:
        period: The period after which the field starts again.
        names: Words for numbers, from `low` on, in lower case.
        unit: The unit of an interval with the same meaning; empty if intervals have none.
    """

    name: str
    low: int
    high: int
    period: str
    names: tuple[str, ...] = ()
    unit: str = ""

    @property
    def size(self) -> int:
        """The number of different values: 7 is Sunday too."""
        return 7 if self is DAY_OF_WEEK else self.high - self.low + 1


SECOND = FieldKind("second", 0, 59, "minute", unit="second")
MINUTE = FieldKind("minute", 0, 59, "hour", unit="minute")
HOUR = FieldKind("hour", 0, 23, "day", unit="hour")
DAY_OF_MONTH = FieldKind("day of month", 1, 31, "month", unit="day")
MONTH = FieldKind("month", 1, 12, "year", _MONTHS)
DAY_OF_WEEK = FieldKind("day of week", 0, 7, "week", _WEEKDAYS, unit="day")

FIVE = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
SIX = (SECOND, *FIVE)
"""Seconds come first, as in Spring, Quartz and Kubernetes' cron library; croniter has them last."""


class ElementRefused(Exception):
    """An element that cannot be read; never leaves this package.

    Args:
        nearest: The replacement of `word`; empty if there is none.
        hint: The remedy when a replacement does not suffice.
        word: The wrong part of the element; empty if all of it is wrong.
    """

    def __init__(self, problem: str, nearest: str = "", hint: str = "", word: str = "") -> None:
        super().__init__(problem)
        self.problem, self.nearest, self.hint, self.word = problem, nearest, hint, word
        self.element = ""
        """The whole element in lower case; set by the code that split the field."""

    def corrected(self, field: str) -> str:
        """Return the field with the element corrected; empty if there is no correction."""
        if not self.nearest:
            return ""
        better = self.nearest
        if self.word:
            alone = rf"(?<![0-9a-z]){self.word}(?![a-z])" if self.word.isalpha() else rf"(?<!\d){self.word}(?!\d)"
            better = re.sub(alone, self.nearest, self.element, count=1).upper()
        return ",".join(better if element == self.element else element.upper() for element in field.lower().split(","))


def number_of(word: str, kind: FieldKind) -> int:
    """Return the number of a number or name, within the field's bounds.

    >>> from tidewheel.schedules.cron_syntax import DAY_OF_WEEK
    >>> number_of("wed", DAY_OF_WEEK)
    3
    """
    if not word.isdigit():
        if word in kind.names:
            return kind.low + kind.names.index(word)
        near = get_close_matches(word, kind.names, n=1, cutoff=0.5)
        problem = f"{word.upper()!r} is not known in the {kind.name} field"
        raise ElementRefused(problem, near[0].upper() if near else "", "" if near else shapes(kind), word)
    number = int(word)
    if not kind.low <= number <= kind.high:
        problem = f"{kind.name} {number} is outside {span(kind.low, kind.high)}"
        raise ElementRefused(problem, str(_nearest(number, kind)), "", word)
    return number


def _nearest(number: int, kind: FieldKind) -> int:
    """Clamp a number to the bounds; hour 24 and minute 60 become 0."""
    wraps = kind.low == 0 and kind is not DAY_OF_WEEK and number == kind.high + 1
    return kind.low if wraps or number < kind.low else kind.high


def unwrapped(first: int, last: int, kind: FieldKind, suffix: str = "") -> str:
    """Rewrite a range that runs backwards as the two ranges that it means.

    >>> from tidewheel.schedules.cron_syntax import HOUR
    >>> unwrapped(22, 2, HOUR)
    '22-23,0-2'
    """
    if kind is DAY_OF_WEEK and last == 0:
        parts = [(first, 7)]
    else:
        parts = [(first % 7, 6) if kind is DAY_OF_WEEK else (first, kind.high), (kind.low, last)]
    return ",".join((str(low) if low == high else f"{low}-{high}") + suffix for low, high in parts)


def span(low: object, high: object) -> str:
    """Format bounds for messages."""
    return f"{low}\N{EN DASH}{high}"


def shapes(kind: FieldKind) -> str:
    """Describe the valid texts of a field in one line."""
    words = [name.upper() for name in kind.names]
    names = f" or {span(words[0], words[-1])}" if words else ""
    return (
        f"a {kind.name} is a number {span(kind.low, kind.high)}{names}, a range such as {kind.low}-{kind.low + 4}, "
        f"a list such as {kind.low},{kind.low + 2}, or a step such as */2"
    )


_FROM_LAST = re.compile(r"l(?:-(\d+))?", re.ASCII)
_LAST_WEEKDAY = re.compile(r"lw|wl", re.ASCII)
_NEAR = re.compile(r"(\d+)w|w(\d+)", re.ASCII)
_LAST_OF = re.compile(r"(\d+|[a-z]{3})l|l(\d+)", re.ASCII)
_NTH = re.compile(r"(\d+|[a-z]{3})(?:-(\d+|[a-z]{3}))?#(\d+)", re.ASCII)


def special_days(element: str, kind: FieldKind) -> DayRule | None:
    """Parse an element with ``L``, ``W`` or ``#``, in lower case; None if it is plain.

    >>> special_days("5#3", DAY_OF_WEEK) == DayRule(nth=1 << 7 * 2 + 5)
    True
    """
    if kind is DAY_OF_MONTH:
        return _date(element)
    return _weekday(element) if kind is DAY_OF_WEEK else None


def _date(element: str) -> DayRule | None:
    if _LAST_WEEKDAY.fullmatch(element):
        return DayRule(last_weekday=True)
    if match := _NEAR.fullmatch(element):
        return DayRule(near=1 << number_of(match[1] or match[2], DAY_OF_MONTH))
    if match := _FROM_LAST.fullmatch(element):
        back = int(match[1] or 0)
        if back > 30:
            problem = f"L-{back} is before the first day of every month"
            raise ElementRefused(problem, "L-30")
        return DayRule(from_last=1 << back)
    return None


def _weekday(element: str) -> DayRule | None:
    if match := _LAST_OF.fullmatch(element):
        return DayRule(last_of=1 << number_of(match[1] or match[2], DAY_OF_WEEK) % 7)
    match = _NTH.fullmatch(element)
    if match is None:
        return None
    number = int(match[3])
    if not 1 <= number <= 5:
        problem = f"the number after # is {span(1, 5)}, not {number}"
        raise ElementRefused(problem, f"{element.partition('#')[0].upper()}#{1 if number < 1 else 5}")
    low = number_of(match[1], DAY_OF_WEEK)
    high = 7 if match[2] == "sun" else number_of(match[2] or match[1], DAY_OF_WEEK)
    if low > high:
        problem = f"the day of week range {element.partition('#')[0].upper()} runs backwards"
        raise ElementRefused(problem, unwrapped(low, high, DAY_OF_WEEK, f"#{number}"))
    return DayRule(nth=bits(7 * (number - 1) + day % 7 for day in range(low, high + 1)))


HASHED = re.compile(r"h(?:\((?P<low>\d+)-(?P<high>\d+)\))?(?:/(?P<step>\d+))?", re.ASCII)
"""``H``, ``H/15``, ``H(0-29)``, ``H(0-29)/15``, as Jenkins has them; in lower case."""

_TOPS = {DAY_OF_MONTH: 28, DAY_OF_WEEK: 6}
"""H alone chooses a day that every month has (as in Jenkins), and Sunday once."""


def resolve(element: str, kind: FieldKind, hash_key: bytes | None) -> str:
    """Resolve ``H`` for a job to a plain element.

    With a step the element begins within the first step of the range.
    """
    match = HASHED.fullmatch(element)
    if match is None or hash_key is None:
        problem = "H is derived from the job's id, but there is no job here"
        raise ElementRefused(problem, "", "submit or preview it as a job, or write a number")
    low, high, step = match.group("low", "high", "step")
    first = number_of(low, kind) if low else kind.low
    last = number_of(high, kind) if high else _TOPS.get(kind, kind.high)
    if first > last:
        problem = f"the range of H({first}-{last}) runs backwards"
        raise ElementRefused(problem, f"H({last}-{first})")
    width = last - first + 1
    if step is None:
        return str(first + _spread(hash_key, kind, width))
    return f"{first + _spread(hash_key, kind, max(1, min(int(step), width)))}-{last}/{step}"


def _spread(hash_key: bytes, kind: FieldKind, width: int) -> int:
    """Return a number below `width`. Stored occurrences are derived from it, so it never changes."""
    digest = sha256(kind.name.encode() + b"\0" + hash_key).digest()
    return int.from_bytes(digest[:8], "big") % width


_WORD = r"\d+|[a-z]+"
_PLAIN = re.compile(rf"(?:(?P<star>\*)|(?P<low>{_WORD})(?:-(?P<high>{_WORD}))?)(?:/(?P<step>\d+))?", re.ASCII)
_RANDOM = re.compile(r"r(?:\(.*\))?(?:/\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldText:
    """A parsed field: elements of numbers, ranges and steps, and True if it begins with ``*`` or is ``?``."""

    plain: tuple[str, ...]
    special: tuple[DayRule, ...] = ()
    led_by_star: bool = False
    hashed: bool = False


def read_field(text: str, kind: FieldKind, hash_key: bytes | None) -> FieldText:
    """Parse a field: check its elements and sort them by kind."""
    if text == "?" and kind in (DAY_OF_MONTH, DAY_OF_WEEK):
        return FieldText(("*",), led_by_star=True)
    plain: list[str] = []
    special: list[DayRule] = []
    elements = text.lower().split(",")
    for element in elements:
        try:
            days = special_days(element, kind)
            if days is None:
                plain.append(_plain(_unhashed(element, kind, hash_key), kind))
            else:
                special.append(days)
        except ElementRefused as refused:
            refused.element = element
            raise
    hashed = any(map(HASHED.fullmatch, elements))
    return FieldText(tuple(plain), tuple(special), text.startswith("*"), hashed)


def _unhashed(element: str, kind: FieldKind, hash_key: bytes | None) -> str:
    return resolve(element, kind, hash_key) if HASHED.fullmatch(element) else element


def _plain(element: str, kind: FieldKind) -> str:
    match = _PLAIN.fullmatch(element)
    if match is None or _RANDOM.fullmatch(element) or "l" in match.group("low", "high"):
        raise _unreadable(element, kind)
    star, low, high, step = match.group("star", "low", "high", "step")
    if step is not None:
        _check_step(int(step), kind)
    suffix = f"/{int(step)}" if step is not None else ""
    if star:
        return f"*{suffix}"
    first = number_of(low, kind)
    if high is None:
        return f"{first % 7 if kind is DAY_OF_WEEK else first}{suffix}"
    last = 7 if kind is DAY_OF_WEEK and high == "sun" else number_of(high, kind)
    if first > last:
        problem = f"the {kind.name} range {first}-{last} runs backwards"
        raise ElementRefused(problem, unwrapped(first, last, kind))
    return str(first) if first == last else f"{first}-{last}{suffix}"


def _check_step(step: int, kind: FieldKind) -> None:
    if step == 0:
        problem = f"a step of 0 in the {kind.name} field has no next value"
        raise ElementRefused(problem, "*")
    if step > kind.size:
        problem = f"a step of {step} is longer than the {kind.name} field, which restarts every {kind.period}"
        hint = f"use an interval schedule for every {step} {kind.unit}s" if kind.unit else ""
        raise ElementRefused(problem, str(kind.low), hint)


def _unreadable(element: str, kind: FieldKind) -> ElementRefused:
    if _RANDOM.fullmatch(element):
        problem = "R is random, and occurrences must be deterministic"
        return ElementRefused(problem, f"H{element[1:].upper()}", "H is derived from the job's id and stays the same")
    if element == "?":
        return ElementRefused(f"? means an unrestricted day field, not the {kind.name}", "*")
    if not element:
        return ElementRefused(f"the {kind.name} field has an empty element beside a comma", "", shapes(kind))
    problem = f"{element.upper()!r} is not valid in the {kind.name} field"
    if kind is DAY_OF_WEEK and element == "l":
        return ElementRefused(problem, "5L", "5L is the month's last Friday, 6 every Saturday")
    if kind is DAY_OF_MONTH and element.endswith("-l"):
        return ElementRefused(problem, f"{element[:-1]}31", "days that a month does not have are skipped")
    return ElementRefused(problem, "", shapes(kind))


MAX_EXPRESSION_CHARS = 256
"""The longest expression. It exceeds any in use, and bounds the cost of parsing."""

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

SHAPE = "minute hour day-of-month month day-of-week, or six with seconds first"

_INLINE_ZONE = re.compile(r"(?:CRON_TZ|TZ)=(\S*)\s+(.*)", re.DOTALL)


def split_expression(expression: str) -> tuple[str | None, list[str]]:
    """Split an expression into its inline zone, if it has one, and its fields; shorthands are expanded.

    >>> split_expression("CRON_TZ=Asia/Tokyo @daily")
    ('Asia/Tokyo', ['0', '0', '*', '*', '*'])
    """
    zone_name, text = _split_zone(_checked(expression))
    if text.startswith("@") and text.lower() not in SHORTHANDS:
        raise _shorthand_refused(text)
    if found := event_bridge(text):
        ours = found.text.replace("?", "*")
        remedy = f"write `{ours}`" if found.field == "cron" else f'write the schedule as {{"interval": "{ours}"}}'
        problem = f"{text!r} is an EventBridge expression"
        raise ScheduleRefused(problem, remedy, "cron")
    return zone_name, SHORTHANDS.get(text.lower(), text).split()


def _checked(expression: str) -> str:
    if len(expression) > MAX_EXPRESSION_CHARS:
        problem = f"the expression has {len(expression)} characters, more than {MAX_EXPRESSION_CHARS}"
        raise ScheduleRefused(problem, "write several shorter expressions", "cron")
    strange = next((character for character in expression if not " " <= character <= "~" and character != "\t"), None)
    if strange is not None:
        problem = f"the expression has {strange!r}, which is not allowed in cron expressions"
        raise ScheduleRefused(problem, "write it in plain ASCII, with spaces between the fields", "cron")
    if not expression.strip():
        problem = "the expression is empty"
        raise ScheduleRefused(problem, f"write {SHAPE}, such as `0 3 * * *`", "cron")
    return expression.strip()


def _split_zone(text: str) -> tuple[str | None, str]:
    match = _INLINE_ZONE.fullmatch(text)
    if match is not None:
        try:
            return zone(match[1]).name, match[2].strip()
        except ScheduleRefused as refused:
            raise ScheduleRefused(refused.errors[0].problem, refused.errors[0].remedy, "cron") from None
    if text.startswith(("CRON_TZ=", "TZ=")):
        problem = f"{text!r} has a zone but no fields"
        raise ScheduleRefused(problem, f"write {text} 0 3 * * *", "cron")
    return None, text


def _shorthand_refused(text: str) -> ScheduleRefused:
    word = text.split()[0].lower()
    if word == "@every":
        every = text.split()[1] if len(text.split()) > 1 else "10s"
        problem = f"{text!r} is an interval, not a cron expression"
        return ScheduleRefused(problem, f'write the schedule as {{"interval": "{every}"}}', "cron")
    if word == "@reboot":
        problem = "@reboot is not supported, because jobs do not belong to a machine"
        return ScheduleRefused(problem, "trigger a manual job when your service starts", "cron")
    return ScheduleRefused(f"{text!r} is not known", f"write one of {', '.join(SHORTHANDS)}", "cron")
