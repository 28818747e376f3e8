"""What is wrong with one element of a cron field, before `cron.py` makes a sentence of it."""

import re
from difflib import get_close_matches

from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_WEEK, FieldKind


class ElementRefused(Exception):
    """An element that cannot be read; never leaves this package.

    Args:
        problem: What was read and why it does not fit.
        nearest: What to write in place of `word`; empty when there is no such thing.
        hint: What to do when a replacement does not say it all.
        word: The part of the element that is wrong; empty when it is all of it.
    """

    def __init__(self, problem: str, nearest: str = "", hint: str = "", word: str = "") -> None:
        super().__init__(problem)
        self.problem, self.nearest, self.hint, self.word = problem, nearest, hint, word
        self.element = ""
        """The whole element as it was read, in lower case; set by whoever split the field."""

    def mend(self, field: str) -> str:
        """The field with the nearest thing in the element's place; empty when there is none."""
        if not self.nearest:
            return ""
        better = self.nearest
        if self.word:
            alone = rf"(?<![0-9a-z]){self.word}(?![a-z])" if self.word.isalpha() else rf"(?<!\d){self.word}(?!\d)"
            better = re.sub(alone, self.nearest, self.element, count=1).upper()
        return ",".join(better if element == self.element else element.upper() for element in field.lower().split(","))


def number_of(word: str, kind: FieldKind) -> int:
    """The number that a number or a name stands for, within the field's bounds.

    >>> from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_WEEK
    >>> number_of("wed", DAY_OF_WEEK)
    3

    Raises:
        ElementRefused: No such name, or outside the bounds.
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
    """24 o'clock and minute 60 are the next day's or hour's first; everything else is clamped."""
    wraps = kind.low == 0 and kind is not DAY_OF_WEEK and number == kind.high + 1
    return kind.low if wraps or number < kind.low else kind.high


def unwrapped(first: int, last: int, kind: FieldKind, suffix: str = "") -> str:
    """A range that runs backwards, written as the two that it means.

    >>> from tidewheel.scheduler.recurrence.field_kinds import HOUR
    >>> unwrapped(22, 2, HOUR)
    '22-23,0-2'
    """
    if kind is DAY_OF_WEEK and last == 0:
        parts = [(first, 7)]
    else:
        parts = [(first % 7, 6) if kind is DAY_OF_WEEK else (first, kind.high), (kind.low, last)]
    return ",".join((str(low) if low == high else f"{low}-{high}") + suffix for low, high in parts)


def span(low: object, high: object) -> str:
    """Bounds as messages write them."""
    return f"{low}\N{EN DASH}{high}"


def shapes(kind: FieldKind) -> str:
    """What may be written in a field, in one line."""
    words = [name.upper() for name in kind.names]
    names = f" or {span(words[0], words[-1])}" if words else ""
    return (
        f"a {kind.name} is a number {span(kind.low, kind.high)}{names}, a range such as {kind.low}-{kind.low + 4}, "
        f"a list such as {kind.low},{kind.low + 2}, or a step such as */2"
    )
