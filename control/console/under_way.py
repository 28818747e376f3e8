"""Bulk work that is under way and concerns what a dialog is about: the dialog names it.

A dry run counts what the dialog and the work have in common: no work is named that has none of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.results import backfill_of
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.reads.backfills import BackfillSummary, backfills
from tidewheel.errors import Refused
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.nouns.dead_letters.reads import list_redrives

_LOOKED_AT = 10  # of the work that is under way, the newest


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


def creation_under_freeze(connection: Connection, tenant: str) -> Sequence[str]:
    """Return what a freeze does to the bulk work of a tenant that creates runs; nothing without such work."""
    with connection.snapshot() as reading:
        found = {
            "Backfills": any(row.state == "running" and not row.ending for row in backfills(reading, tenant)),
            "Redrives": any(row.state == "running" and row.kind != "message" for row in list_redrives(reading, tenant)),
        }
    kinds = " and ".join(kind for kind, is_running in found.items() if is_running)
    if not kinds:
        return ()
    limit = " A backfill stops at its limit of open runs." if found["Backfills"] else ""
    return (f"{kinds.capitalize()} under way still create runs. Those of this scope wait for the thaw.{limit}",)


def share(count: int, matched: int, noun: str) -> str:
    """Return how many of the things of a dialog bulk work has.

    >>> share(1, 1, "run"), share(3, 3, "run"), share(2, 24, "run")
    ('this run', 'all of these runs', '2 of these 24 runs')
    """
    if count >= matched:
        return f"this {noun}" if matched == 1 else f"all of these {noun}s"
    return f"{number(count)} of these {number(matched)} {noun}s"
