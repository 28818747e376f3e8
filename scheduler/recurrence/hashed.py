"""Resolves ``H``: the same job gets the same number for ever, different jobs are spread evenly."""

import re
from hashlib import sha256

from tidewheel.scheduler.recurrence.element_refused import ElementRefused, number_of
from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_MONTH, DAY_OF_WEEK, FieldKind

HASHED = re.compile(r"h(?:\((?P<low>\d+)-(?P<high>\d+)\))?(?:/(?P<step>\d+))?", re.ASCII)
"""``H``, ``H/15``, ``H(0-29)``, ``H(0-29)/15``, as Jenkins has them; in lower case."""

_TOPS = {DAY_OF_MONTH: 28, DAY_OF_WEEK: 6}
"""H alone picks a day that every month has (as in Jenkins), and Sunday once."""


def resolve(element: str, kind: FieldKind, hash_key: bytes | None) -> str:
    """The plain element that this job gets; with a step, one that begins within the first step of the range.

    Raises:
        ElementRefused: No key is known, or the range is not one of the field.
    """
    match = HASHED.fullmatch(element)
    if match is None or hash_key is None:
        problem = "H is spread by the job's id, and none is known here"
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
    """A number below `width`. Stored occurrences are derived from it: it never changes."""
    digest = sha256(kind.name.encode() + b"\0" + hash_key).digest()
    return int.from_bytes(digest[:8], "big") % width
