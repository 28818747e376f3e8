"""Reads one field of a cron expression, element by element, and says what is wrong where it cannot be read.

What passes here is unambiguous: croniter, which expands the plain elements, would read a reversed range as one that
wraps, ``5-5`` as every value and ``R`` as a throw of dice.
"""

import re
from dataclasses import dataclass

from tidewheel.scheduler.recurrence.cron_fields import DayRule
from tidewheel.scheduler.recurrence.element_refused import ElementRefused, number_of, shapes, unwrapped
from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_MONTH, DAY_OF_WEEK, FieldKind
from tidewheel.scheduler.recurrence.hashed import HASHED, resolve
from tidewheel.scheduler.recurrence.special_days import special_days

_WORD = r"\d+|[a-z]+"
_PLAIN = re.compile(rf"(?:(?P<star>\*)|(?P<low>{_WORD})(?:-(?P<high>{_WORD}))?)(?:/(?P<step>\d+))?", re.ASCII)
_RANDOM = re.compile(r"r(?:\(.*\))?(?:/\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FieldText:
    """One field, read.

    Args:
        plain: Elements of numbers, ranges and steps, written so that croniter reads nothing else into them.
        special: What its elements with ``L``, ``W`` or ``#`` name.
        led_by_star: The field begins with ``*`` (or is ``?``).
        hashed: It holds an ``H``.
    """

    plain: tuple[str, ...]
    special: tuple[DayRule, ...] = ()
    led_by_star: bool = False
    hashed: bool = False


def read_field(text: str, kind: FieldKind, hash_key: bytes | None) -> FieldText:
    """The field's elements, checked and sorted.

    Raises:
        ElementRefused: One of them cannot be read; it carries which.
    """
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
        problem = f"a step of 0 in the {kind.name} field never moves on"
        raise ElementRefused(problem, "*")
    if step > kind.size:
        problem = f"a step of {step} is longer than the {kind.name} field, which begins anew with every {kind.period}"
        hint = f"use an interval schedule for every {step} {kind.unit}s" if kind.unit else ""
        raise ElementRefused(problem, str(kind.low), hint)


def _unreadable(element: str, kind: FieldKind) -> ElementRefused:
    if _RANDOM.fullmatch(element):
        problem = "R is random, and occurrences are derived, not drawn"
        return ElementRefused(problem, f"H{element[1:].upper()}", "H is spread by the job's id and stays the same")
    if element == "?":
        return ElementRefused(f"? stands for a day field left open, not for the {kind.name}", "*")
    if not element:
        return ElementRefused(f"the {kind.name} field holds a comma with nothing beside it", "", shapes(kind))
    problem = f"{element.upper()!r} cannot be read in the {kind.name} field"
    if kind is DAY_OF_WEEK and element == "l":
        return ElementRefused(problem, "5L", "5L is the month's last Friday, 6 every Saturday")
    if kind is DAY_OF_MONTH and element.endswith("-l"):
        return ElementRefused(problem, f"{element[:-1]}31", "days that a month does not have are passed over")
    return ElementRefused(problem, "", shapes(kind))
