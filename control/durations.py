"""Durations in words: as sentences and pages show them, to three figures or exact."""

from datetime import timedelta

_SMALL = ("ms", 1000, 1000), ("s", 1, 60)  # the factor from seconds, and the end of the unit
_LARGE = ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)
_MICROSECOND = timedelta(microseconds=1)


def duration(span: timedelta | None, *, exact: bool = False) -> str:
    """Return a duration; a dash for None.

    Args:
        span: The duration; a negative one counts as none.
        exact: False for a measured one: three figures, or two units, are enough.

    >>> [duration(timedelta(seconds=each)) for each in (0.00544, 0.25, 4.2, 12.345, 59.96, 72, 3600, 7500, 200000)]
    ['5.44 ms', '250 ms', '4.2 s', '12.3 s', '1 min', '1 min 12 s', '1 h', '2 h 5 min', '2 d 7 h']
    >>> [duration(timedelta(seconds=each), exact=True) for each in (0, 0.25, 45.123456, 61.7, 5400, 200000)]
    ['0 s', '250 ms', '45.123456 s', '1 min 1.7 s', '1 h 30 min', '2 d 7 h 33 min 20 s']
    """
    if span is None:
        return "\u2013"
    seconds = max(span.total_seconds(), 0.0)
    if exact:
        return _exact(max(span // _MICROSECOND, 0))
    for unit, factor, end in _SMALL:
        text = f"{seconds * factor:.3g}"
        if float(text) < end:
            return f"{text} {unit}"
    rest, parts = round(seconds), list[str]()
    for unit, each in _LARGE:
        count, rest = divmod(rest, each)
        parts += [f"{count} {unit}" if count else ""] if count or parts else []
    return " ".join(filter(None, parts[:2]))


def _exact(microseconds: int) -> str:
    rest, parts = microseconds, list[str]()
    for unit, each in _LARGE[:-1]:
        count, rest = divmod(rest, each * 1_000_000)
        parts += [f"{count} {unit}"] if count else []
    if 0 < microseconds < 1_000_000:
        return f"{_decimal(rest, 3)} ms"
    return " ".join([*parts, f"{_decimal(rest, 6)} s"] if rest or not parts else parts)


def _decimal(number: int, places: int) -> str:
    """Return a number of so many decimal places without trailing zeros."""
    whole, fraction = divmod(number, 10**places)
    return f"{whole}.{fraction:0{places}}".rstrip("0").rstrip(".")
