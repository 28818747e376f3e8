"""Parse cron expressions into `CronFields`.

There are five fields (minute, hour, day of month, month, day of week), or six with seconds FIRST, as in Spring, Quartz
and Kubernetes' cron library. Sunday is 0 or 7, Monday 1. If both day fields are restricted, a day matches when it fits
either. A day field that begins with ``*`` is not restricted, and then both must fit.

An expression with two readings is refused. `cron_schedule.py` decides which instants these local times are.
"""

import re
from functools import lru_cache

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_fields import (
    CronFields,
    DayRule,
    bits,
    days_by_month_shape,
    from_event_bridge,
    from_quartz,
    values,
)
from tidewheel.schedules.cron_syntax import (
    DAY_OF_WEEK,
    FIVE,
    SHAPE,
    SHORTHANDS,
    SIX,
    ElementRefused,
    FieldKind,
    FieldText,
    read_field,
    split_expression,
)

_MAX_PROBLEMS = 4  # with more problems the corrected expression would no longer resemble it

_HASH = re.compile(r"(?:^|[\s,])h(?=[\s,(/]|$)", re.IGNORECASE | re.ASCII)


@lru_cache(maxsize=4096)  # an expression is parsed at submission, in preview and by each scheduler that fires it
def parse_cron(expression: str, *, hash_key: bytes | None = None) -> CronFields:
    """Parse an expression.

    Args:
        expression: At most 256 characters.
        hash_key: The key by which ``H`` is spread: the job id's bytes. None refuses ``H``.

    >>> parse_cron("0 3 0 * *")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tidewheel.errors.ScheduleRefused: cron: day of month 0 is outside ...; the nearest that works is `0 3 1 * *`

    Raises:
        ScheduleRefused: The expression cannot be read, or has more than one reading.
    """
    zone_name, words = split_expression(expression)
    read = _read(words, _kinds(words), hash_key)
    fields = read if len(read) == 6 else [_AT_ZERO, *read]
    _, minute, hour, by_date, _, by_week = fields
    seconds, minutes, hours, days, months, weekdays = map(_expand, fields, SIX)
    either = not by_date.led_by_star and not by_week.led_by_star
    rule = DayRule(days=days, weekdays=weekdays, either=either).with_parts((*by_date.special, *by_week.special))
    return CronFields(
        expression=" ".join(words),
        seconds=seconds,
        minutes=sum(minutes << 60 * hour for hour in values(hours)),
        months=months,
        days=days_by_month_shape(rule),
        follows_wall_clock=minute.led_by_star or hour.led_by_star,
        has_seconds=len(words) == 6,
        hashed=any(field.hashed for field in read),
        timezone=zone_name,
    )


def uses_hash(expression: str) -> bool:
    """Return True if the occurrences depend on the job's id, by an ``H``.

    >>> uses_hash("H 3 * * THU"), uses_hash("0 3 * mar thu")
    (True, False)
    """
    return _HASH.search(expression) is not None


_AT_ZERO = FieldText(("0",))


def _kinds(words: list[str]) -> tuple[FieldKind, ...]:
    if len(words) in (5, 6):
        return FIVE if len(words) == 5 else SIX
    problem = f"{len(words)} field{'s were' if len(words) > 1 else ' was'} read in {' '.join(words)!r}"
    if f"@{words[0].lower()}" in SHORTHANDS:
        remedy = f"write @{words[0].lower()}"
    elif (quartz := from_quartz(words)) and _readable(quartz.split()):
        remedy = f"there is no year field: write `{quartz}` and bound it with start_at and end_at"
    else:
        padded = [*words, *["*"] * (5 - len(words))]
        remedy = f"write {SHAPE}, such as `{' '.join(padded) if _readable(padded) else '0 3 * * *'}`"
    raise ScheduleRefused(problem, remedy, "cron")


def _readable(words: list[str]) -> bool:
    if len(words) not in (5, 6):
        return False
    try:
        _read(words, _kinds(words), b"any")
    except ScheduleRefused:
        return False
    return True


def _read(words: list[str], kinds: tuple[FieldKind, ...], hash_key: bytes | None) -> list[FieldText]:
    """Read every field. A refusal names all problems, and the whole expression as corrected."""
    read: list[FieldText] = []
    found: list[ElementRefused] = []
    corrected = words.copy()
    for index, kind in enumerate(kinds):
        while len(found) <= _MAX_PROBLEMS:
            try:
                read.append(read_field(corrected[index], kind, hash_key))
                break
            except ElementRefused as refused:
                found.append(refused)
                corrected[index] = refused.corrected(corrected[index])
                # from here only the corrected text is tried, which may hold an H for an R
                hash_key = hash_key or b"any"
                if not corrected[index]:
                    raise _refusal(found, "", words) from None
    if found:
        raise _refusal(found, " ".join(corrected) if len(read) == len(kinds) else "", words)
    return read


def _refusal(found: list[ElementRefused], corrected: str, words: list[str]) -> ScheduleRefused:
    problems = ", and ".join(dict.fromkeys(refused.problem for refused in found[:_MAX_PROBLEMS]))
    hints = dict.fromkeys(refused.hint for refused in found[:_MAX_PROBLEMS] if refused.hint)
    nearest = [f"the nearest that works is `{corrected}`"] if corrected else []
    if len(words) == len(SIX):
        # One corrected field would keep an order of the fields that may not be the one that was meant.
        if (five := from_event_bridge(words)) and _readable(five.split()):
            bounds = "" if words[5] == "*" else " and bound it with start_at and end_at"
            meant = f"if the last is the year, write `{five.replace('?', '*')}`{bounds}"
            return ScheduleRefused(problems, f"of six fields the first is the seconds; {meant}", "cron")
        hints["of six fields the first is the seconds"] = None
    return ScheduleRefused(problems, "; ".join([*nearest, *hints]), "cron")


def _expand(field: FieldText, kind: FieldKind) -> int:
    """Expand the plain elements of a field to bits; 0 for a field that has special ones only."""
    numbers = (number for element in field.plain for number in _numbers(element, kind))
    return bits(number % 7 for number in numbers) if kind is DAY_OF_WEEK else bits(numbers)


def _numbers(element: str, kind: FieldKind) -> range:
    """Return the numbers of ``*``, ``2`` or ``2-5``, each also with a step."""
    span, _, step = element.partition("/")
    low, _, high = span.partition("-")
    first = kind.low if low == "*" else int(low)
    top = kind.low + kind.size - 1 if step or low == "*" else first
    return range(first, int(high or top) + 1, int(step or 1))
