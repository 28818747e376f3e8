"""Arrays for hot statements, written as PostgreSQL's own text.

psycopg adapts a list element by element in Python, which for the arrays of a claim or a completion costs more than the
statement; these few kinds need no escaping. Source: PostgreSQL manual, section 8.15.2 (array value input).
"""

import re
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

_PLAIN = re.compile(r"[A-Za-z0-9_./@-]+(?:,[A-Za-z0-9_./@-]+)*")


def uuids(values: Iterable[UUID | None]) -> str:
    """A uuid[].

    >>> uuids([UUID(int=1), None])
    '{00000000000000000000000000000001,NULL}'
    """
    return "{" + ",".join(["NULL" if value is None else value.hex for value in values]) + "}"


def integers(values: Iterable[int]) -> str:
    """An integer[].

    >>> integers([1, 2])
    '{1,2}'
    """
    return "{" + ",".join(map(str, values)) + "}"


def instants(values: Iterable[datetime | None]) -> str:
    """A timestamptz[]."""
    return words(map(instant, values))


def instant(value: datetime | None) -> str:
    """An element of such an array."""
    return "NULL" if value is None else f'"{value.isoformat()}"'


def words(values: Iterable[str]) -> str:
    """A text[] of words of ours: states, causes, lanes; never of anything that somebody else wrote.

    >>> words(["queued", "retrying"])
    '{queued,retrying}'
    """
    return "{" + ",".join(values) + "}"


def texts(values: list[str]) -> str | list[str]:
    """A text[] of words that somebody else may have written: as psycopg does it where one might need escaping.

    >>> texts(["runs/3/17@1700000000000", "sweep"]), texts(["a,b"]), texts(["null"])
    ('{runs/3/17@1700000000000,sweep}', ['a,b'], ['null'])
    """
    joined = ",".join(values)
    plain = _PLAIN.fullmatch(joined) and joined.count(",") == len(values) - 1 and "null" not in joined.lower()
    return "{" + joined + "}" if plain else values
