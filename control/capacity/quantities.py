"""Quantities on the command line and in tables: `100M`, `10k/s`, `64KiB`. Pure."""

import re

from tidewheel.errors import refuse

_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)", re.ASCII)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_BYTES = {
    "": 1.0,
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
}
_SPANS = {"s": 1, "min": 60, "h": 3600, "day": 86_400}


def read_count(text: str, path: str) -> float:
    """Parse a number with k, M or G.

    Raises:
        InvalidInput: It is none.

    >>> read_count("100M", "--jobs"), read_count("1.5k", "--jobs")
    (100000000.0, 1500.0)
    """
    return _read(text, path, _COUNTS, "write a number such as 20000, 20k or 100M")


def read_bytes(text: str, path: str) -> float:
    """Parse a number of bytes.

    Raises:
        InvalidInput: It is none.

    >>> read_bytes("2KiB", "--payload"), read_bytes("500MB", "--largest-wal")
    (2048.0, 500000000.0)
    """
    return _read(text, path, _BYTES, "write bytes such as 200, 64KiB or 500MB")


def read_rate(text: str, path: str) -> float:
    """Parse a number a second, minute, hour or day; returns it a second.

    Raises:
        InvalidInput: It is none.

    >>> read_rate("10k/s", "--triggers"), read_rate("600/min", "--triggers"), read_rate("5", "--triggers")
    (10000.0, 10.0, 5.0)
    """
    amount, slash, span = text.partition("/")
    if slash and span.strip() not in _SPANS:
        refuse(path, f"{span!r} is no span", f"write a rate such as 10k/s; spans are {', '.join(_SPANS)}")
    return read_count(amount, path) / (_SPANS[span.strip()] if slash else 1)


def read_share(text: str, path: str) -> float:
    """Parse a share.

    Raises:
        InvalidInput: It is none between 0 and 1.

    >>> read_share("30%", "--hot"), read_share("0.3", "--hot")
    (0.3, 0.3)
    """
    number, percent = text.removesuffix("%"), text.endswith("%")
    found = _read(number, path, {"": 1.0}, "write a share such as 30% or 0.3") / (100 if percent else 1)
    if found > 1:
        refuse(path, f"{text} is more than all", "write a share such as 30% or 0.3")
    return found


def amount_text(value: float, unit: str) -> str:
    """Return a quantity for readers.

    >>> amount_text(12_345_678_901, "bytes"), amount_text(3.14159, "cores"), amount_text(1234.5, "runs/s")
    ('12.3 GB', '3.14 cores', '1,234 runs/s')
    """
    if unit.startswith("bytes"):
        for size, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if value >= size:
                return f"{_digits(value / size)} {name}{unit.removeprefix('bytes')}"
        return f"{value:.0f} B{unit.removeprefix('bytes')}"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _read(text: str, path: str, units: dict[str, float], remedy: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if not found or found[2].lower() not in units:
        refuse(path, f"{text!r} is not a number", remedy)
    return float(found[1]) * units[found[2].lower()]
