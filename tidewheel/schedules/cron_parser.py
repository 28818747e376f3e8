"""Parse cron expressions into `CronFields`.

There are five fields (minute, hour, day of month, month, day of week), or six with seconds FIRST, as in Spring, Quartz
and Kubernetes' cron library. croniter's own order has seconds last. Sunday is 0 or 7, Monday 1. If both day fields are
restricted, a day matches when it fits either. A day field that begins with ``*`` is not restricted, and then both must
fit.

Our own reader refuses an expression with two readings. croniter expands the rest, and nothing else of croniter is used.
`zoned_cron.py` decides which instants these local times are.
"""

import re
from functools import lru_cache

from croniter import CroniterError, croniter

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_fields import CronFields, DayRule, bits, days_by_month_shape, values
from tidewheel.schedules.cron_syntax import (
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
from tidewheel.schedules.peer_cron import from_event_bridge, from_quartz

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
    second, minute, hour, by_date, month, by_week = read if len(read) == 6 else [_AT_ZERO, *read]
    minutes, hours, days, months, weekdays, seconds = _expand((minute, hour, by_date, month, by_week, second))
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


def _expand(fields: tuple[FieldText, ...]) -> list[int]:
    """Expand the plain elements of each field to bits; 0 for a field that has special ones only."""
    plain = " ".join(",".join(field.plain) or "*" for field in fields)
    try:
        expanded, _ = croniter.expand(plain)
    except CroniterError as refused:
        problem = f"{plain!r} cannot be read: {refused}"
        raise ScheduleRefused(problem, f"write {SHAPE}", "cron") from refused
    full = (range(60), range(24), range(1, 32), range(1, 13), range(7), range(60))
    return [
        bits(all_values if "*" in numbers else [int(number) for number in numbers]) if field.plain else 0
        for field, numbers, all_values in zip(fields, expanded, full, strict=True)
    ]
