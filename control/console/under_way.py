"""Bulk work that is under way and concerns what a dialog is about: the dialog names it.

A dry run counts what the dialog and the work have in common: no work is named that has none of it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeVar, cast

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import DeadLetters
from tidewheel.control.client.results import backfill_of
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import agreed, counted, number, short_id
from tidewheel.control.reads.backfills import BackfillSummary, backfills
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary, kind_to_redrive
from tidewheel.control.reads.redrives import Redriving, going_on
from tidewheel.errors import Refused
from tidewheel.jobs.values import format_timestamp, parse_timestamp

W = TypeVar("W")

_ANY: Sequence[object] = (None, {}, [])  # of a filter that names nothing
_LOOKED_AT = 10  # of the work that is under way, the newest
_TOGETHER = 3
_ONCE = "Each dead letter is redriven once, by the redrive that is first."
_RETRIED_FIRST = (
    "If you retry these runs first, the redrive leaves them out, so that none runs twice.",
    "If you retry this run first, the redrive leaves it out, so that it does not run twice.",
)
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


def backfill_under_way(
    connection: Connection, tenant: str, key: str, urls: Urls, document: Mapping[str, Any], *, expected: int
) -> UnderWay | None:
    """Return the backfill that runs most of the occurrences of another one; None if none runs any of them.

    Args:
        connection: Counts them.
        tenant: The tenant.
        key: The job.
        urls: Writes the address.
        document: The request of the other one.
        expected: How many occurrences that one runs.
    """
    rows = _open_backfills(connection, tenant, key)[:_LOOKED_AT]
    known, found = max(
        ((_count_shared(connection, row, document), row) for row in rows), key=lambda each: each[0], default=(0, None)
    )
    if found is None or not known:
        return None
    left, is_missing = max(expected - known, 0), document["what"] != "all"
    effect = f"It includes {share(known, expected, 'occurrence')}. "
    if is_missing and not left and found.state != "paused":
        effect += "A second backfill would create no run."
        return cast("UnderWay", _backfilled([found], urls, effect))._replace(covers=True)
    if not is_missing:
        them, they = agreed(known, "it", "them"), agreed(known, "it", "they")
        effect += f"This backfill runs {them} nevertheless: {they} can run twice."
    elif left:
        effect += (
            f"The number of this backfill counts {agreed(known, 'it', 'them')} too. If the other one is first, "
            f"this one creates {counted(left, 'run')}."
        )
    else:
        effect += "If it is first, this one creates no run."
    return _backfilled([found], urls, effect)


def _count_shared(connection: Connection, row: BackfillSummary, document: Mapping[str, Any]) -> int:
    """Return how many occurrences of a request the rest of a backfill runs too, by dry runs."""
    if row.cursor_at is None:
        return 0
    begin, end = (row.first_at, row.cursor_at) if row.newest_first else (row.cursor_at, row.last_at)
    first, last = max(begin, parse_timestamp(document["from"])), min(end, parse_timestamp(document["to"]))
    if first > last:
        return 0
    both = {
        **document, "from": format_timestamp(first), "to": format_timestamp(last), "dry_run": True,
        "what": "all" if row.what == document["what"] == "all" else "missing_only",
    }  # fmt: skip
    versions = {row.versions, document["versions"]}
    return min(_count_occurrences(connection, {**both, "versions": each}) for each in versions)


def _count_occurrences(connection: Connection, document: Mapping[str, Any]) -> int:
    try:
        return backfill_of(connection.request(document, None)).occurrences or 0
    except Refused:  # it has none in common
        return 0


def backfills_under_way(connection: Connection, tenant: str, key: str, urls: Urls, effect: str) -> UnderWay | None:
    """Return the newest backfill of a job, with the number of all; None if there is none.

    Args:
        connection: Reads them.
        tenant: The tenant.
        key: The job.
        urls: Writes the address.
        effect: What becomes of them, in a sentence.
    """
    return _backfilled(_open_backfills(connection, tenant, key), urls, effect)


def _open_backfills(connection: Connection, tenant: str, key: str) -> Sequence[BackfillSummary]:
    with connection.snapshot() as reading:
        return [row for row in backfills(reading, tenant, key) if row.finished_at is None and not row.ending]


def _backfilled(rows: Sequence[BackfillSummary], urls: Urls, effect: str) -> UnderWay | None:
    """Return a sentence about the first of some backfills, and about what is left of it."""
    if not rows:
        return None
    found = rows[0]
    left = counted(found.occurrences - found.created_count - found.existing_count, "occurrence")
    words = (
        f"A backfill from {format_timestamp(found.first_at)} to {format_timestamp(found.last_at)} is "
        f"{'paused' if found.state == 'paused' else 'under way'}, with {left} left."
    )
    more = f" The job has {number(len(rows) - 1)} more." if len(rows) > 1 else ""
    return UnderWay(f"{words}{more} {effect}", urls("bulk_work", kind="backfill", id=found.backfill_id))


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


def retries_under_way(
    connection: Connection,
    tenant: str,
    ids: Sequence[int],
    urls: Urls,
    *,
    matched: int,
    noun: str = "run",
    effect: str = "",
) -> UnderWay | None:
    """Return the redrive that has most of these dead letters; None if there is none.

    Args:
        connection: Reads them.
        tenant: The tenant.
        ids: The dead letters.
        urls: Writes the address.
        matched: How many of the noun the dialog retries.
        noun: What the dialog counts.
        effect: What the redrive leaves out then, in a sentence; by default, what is retried first.
    """
    letters = DeadLetters(connection).list(ids=ids, limit=len(ids)).dead_letters if ids else ()
    rows = _going_on(connection, tenant) if letters else ()
    counts = [(sum(row.includes(letter) for letter in letters), row) for row in rows]
    most, row = max(counts, key=lambda each: each[0], default=(0, None))
    if row is None or not most:
        return None
    retried = _RETRIED_FIRST[matched == 1]
    return _named(row, f"{share(most, matched, noun)}.", urls, covers=False, effect=effect or retried)


def creation_under_freeze(connection: Connection, tenant: str) -> Sequence[str]:
    """Return what a freeze does to the bulk work of a tenant that creates runs; nothing without such work."""
    with connection.snapshot() as reading:
        found = {
            "Backfills": any(row.state == "running" and not row.ending for row in backfills(reading, tenant)),
            "Redrives": any(row.state == "running" and row.kind != "message" for row in going_on(reading, tenant)),
        }
    kinds = " and ".join(kind for kind, is_running in found.items() if is_running)
    if not kinds:
        return ()
    limit = " A backfill stops at its limit of open runs." if found["Backfills"] else ""
    return (f"{kinds.capitalize()} under way still create runs. Those of this scope wait for the thaw.{limit}",)


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
