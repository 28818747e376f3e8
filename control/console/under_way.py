"""Bulk work that is under way and concerns what a dialog is about: the dialog names it.

A dry run counts what the dialog and the work have in common: no work is named that has none of it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeVar, cast

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import DeadLetters
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import number, short_id
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary, kind_to_redrive
from tidewheel.control.reads.redrives import Redriving, going_on

W = TypeVar("W")

_ANY: Sequence[object] = (None, {}, [])  # of a filter that names nothing
_LOOKED_AT = 10  # of the work that is under way, the newest
_TOGETHER = 3
_ONCE = "Each dead letter is redriven once, by the redrive that is first."
_LEFT_OUT = ("They leave out what is purged before its turn.", "It leaves out what is purged before its turn.")
_BULK = "Their progress"
_SOON_SECONDS = 60.0
_OF_REDRIVES = ("kind", "ids", "key", "status", "error_type", "queue", "lane")


class UnderWay(NamedTuple):
    """Bulk work that is under way.

    Args:
        words: A sentence about it, and about what it has in common with the dialog.
        address: Its page.
        covers: True if it does all of the dialog soon.
        link: The words that lead to its page.
    """

    words: str
    address: str
    covers: bool = False
    link: str = "Its progress"


def redrive_under_way(
    connection: Connection, tenant: str, filters: DeadLetterFilter, urls: Urls, *, matched: int, purges: bool = False
) -> UnderWay | None:
    """Return the redrive that has most of the dead letters which a filter matches; None if there is none.

    What it has rejected stays open: such a redrive does not cover them, nor does one that is paused or slow.

    Args:
        connection: Counts them.
        tenant: The tenant.
        filters: Those of the dialog.
        urls: Writes the address.
        matched: How many dead letters the filter matches.
        purges: True for a dialog that purges them.
    """
    letters, given = DeadLetters(connection), filters if purges else {**filters, "kind": kind_to_redrive(filters)}

    def filter_of(row: Redriving) -> Mapping[str, Any]:
        own = {name: getattr(row, name) for name in _OF_REDRIVES}
        return {**own, "since": row.since_at, "until": row.until_at}

    rows = _going_on(connection, tenant)[:_LOOKED_AT]
    found, known = _union(
        [(row, filter_of(row)) for row in rows],
        given,
        lambda both: letters.redrive(dry_run=True, **cast("DeadLetterFilter", both)).matched,
    )
    if not found:
        return None
    one, is_soon, left = len(found) == 1, all(map(_is_soon, found)), matched - known
    these, effect = f"{share(known, matched, 'dead letter')}.", _LEFT_OUT[one] if purges else _ONCE
    if one:
        return _named(found[0], these, urls, covers=left <= 0, effect=effect)
    words = f"{len(found)} redrives have not ended and include {these} {effect}"
    return UnderWay(words, urls("bulk"), left <= 0 and is_soon, link=_BULK)


def letter_under_way(connection: Connection, tenant: str, letter: DeadLetterSummary, urls: Urls) -> UnderWay | None:
    """Return the redrive that has a dead letter; None if there is none."""
    row = next((row for row in _going_on(connection, tenant) if row.includes(letter)), None)
    return None if row is None else _named(row, "this dead letter.", urls, covers=True)


def letters_under_way(
    connection: Connection, tenant: str, letters: Sequence[DeadLetterSummary], urls: Urls
) -> Mapping[int, str]:
    """Return the address of the redrive that has each of some dead letters; the rest are in none."""
    rows = _going_on(connection, tenant) if any(letter.redriven_at is None for letter in letters) else ()
    found = {letter.id: next((row for row in rows if row.includes(letter)), None) for letter in letters}
    return {letter: _progress(row, urls) for letter, row in found.items() if row}


def _going_on(connection: Connection, tenant: str) -> Sequence[Redriving]:
    with connection.snapshot() as reading:
        return going_on(reading, tenant)


def _named(row: Redriving, these: str, urls: Urls, *, covers: bool, effect: str = _ONCE) -> UnderWay:
    """Return the sentence about a redrive."""
    words = (
        f"Redrive {short_id(row.redrive_id)} is {'paused' if row.state == 'paused' else 'under way'} and includes "
        f"{these} {effect}"
    )
    return UnderWay(words, _progress(row, urls), covers and _is_soon(row))


def _progress(row: Redriving, urls: Urls) -> str:
    return urls("bulk_work", kind="redrive", id=row.redrive_id)


def _is_soon(row: Redriving) -> bool:
    """Return True if a redrive will have done all of its dead letters soon."""
    rest = max(row.matched_count - row.processed, 0)
    return row.state != "paused" and not row.rejected_count and (row.rate is None or rest / row.rate <= _SOON_SECONDS)


def _union(
    rows: Sequence[tuple[W, Mapping[str, Any]]], given: Mapping[str, Any], count: Callable[[Mapping[str, Any]], int]
) -> tuple[Sequence[W], int]:
    """Return the work that shares most with a filter, and how many things of the filter it has together.

    What several filters share is counted once. No more than three are looked at together.

    Args:
        rows: Work under way, each with its filter.
        given: The filter of the dialog.
        count: Counts what a filter matches.
    """
    counts = [(count(both), row, both) for row, own in rows if (both := _both(own, given)) is not None]
    most = sorted((each for each in counts if each[0]), key=lambda each: each[0], reverse=True)[:_TOGETHER]
    known = 0
    for size in range(1, len(most) + 1):
        for some in combinations(most, size):
            shared: Mapping[str, Any] | None = {}
            for _, _, both in some:
                shared = None if shared is None else _both(shared, both)
            known += 0 if shared is None else (some[0][0] if size == 1 else count(shared)) * (-1) ** (size + 1)
    return [row for _, row, _ in most], known


def share(count: int, matched: int, noun: str) -> str:
    """Return how many of the things of a dialog bulk work has.

    >>> share(1, 1, "run"), share(3, 3, "run"), share(2, 24, "run")
    ('this run', 'all of these runs', '2 of these 24 runs')
    """
    if count >= matched:
        return f"this {noun}" if matched == 1 else f"all of these {noun}s"
    return f"{number(count)} of these {number(matched)} {noun}s"


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the filter of what two filters have in common; None if they exclude each other.

    >>> _both({"key": "a", "queue": None, "until": 3}, {"key": "a", "queue": "b", "until": 5})
    {'key': 'a', 'until': 3, 'queue': 'b'}
    >>> _both({"key": "a"}, {"key": "b"}), _both({"ids": [1]}, {"ids": [2]}), _both({"lane": "batch"}, {})
    (None, None, {'lane': 'batch'})
    """
    first, second = ({name: value for name, value in each.items() if value not in _ANY} for each in (one, other))
    both = {**first, **second}
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        match name:
            case "until":
                both[name] = min(a, b)
            case "since":
                both[name] = max(a, b)
            case "ids":
                both[name] = sorted({*a} & {*b})
            case _:
                both[name] = a if a == b else None
    return None if any(value in _ANY for value in both.values()) else both
