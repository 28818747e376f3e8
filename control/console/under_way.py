"""Bulk work that is under way and concerns what a dialog is about: the dialog names it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

from tidewheel.control.client.connection import Connection
from tidewheel.control.client.dead_letters import RedriveResult
from tidewheel.control.console.progress import filter_words
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import counted, number, short_id
from tidewheel.control.reads.backfills import backfills
from tidewheel.control.reads.cancellations import Cancellation, cancellations
from tidewheel.control.reads.dead_letters import DeadLetterFilter, DeadLetterSummary, kind_to_redrive
from tidewheel.control.reads.redrives import Redriving, redrives
from tidewheel.jobs.values import format_timestamp

R = TypeVar("R", Cancellation, Redriving)

_OF_CANCELLATIONS = ("key", "labels", "queue", "lane", "handler", "cause")
_OF_REDRIVES = ("kind", "ids", "key", "status", "error_type", "queue", "lane")


def cancellation_under_way(
    connection: Connection, tenant: str, filters: Mapping[str, object], urls: Urls
) -> tuple[str, str] | None:
    """Return a sentence about a cancellation of all or some of these runs, and its address."""
    with connection.snapshot() as reading:
        found, covers = _concerning(cancellations(reading, tenant), filters, _OF_CANCELLATIONS)
    if found is None:
        return None
    address = urls("bulk_work", kind="cancellation", id=found.cancellation_id)
    which = "includes" if covers else "may include some of"
    started = "" if found.include_started else " and have not started"
    these = f"these runs that were created before {format_timestamp(found.created_before)}{started}"
    about = ", ".join(filter_words(found)) or "all runs"
    return f"Cancellation {found.cancellation_id} ({about}) is under way. It {which} {these}.", address


def backfill_under_way(
    connection: Connection, tenant: str, key: str, urls: Urls, *, first: datetime, last: datetime
) -> tuple[str, str] | None:
    """Return a sentence about a backfill of a part of a range of a job, and its address; None without one."""
    with connection.snapshot() as reading:
        rows = backfills(reading, tenant, key)
    found = next((row for row in rows if not row.finished_at and row.first_at <= last and row.last_at >= first), None)
    if found is None:
        return None
    of = f"from {format_timestamp(found.first_at)} to {format_timestamp(found.last_at)}"
    words = f"A backfill {of} is under way. A missing occurrence runs once, whichever backfill is first."
    return words, urls("bulk_work", kind="backfill", id=found.backfill_id)


def letter_under_way(
    connection: Connection, tenant: str, letter: DeadLetterSummary, urls: Urls
) -> tuple[str, str] | None:
    """Return a sentence about a redrive that includes a dead letter, and its address; None without one."""
    if letter.redriven_at is not None:
        return None
    return redrive_under_way(connection, tenant, _of_letter(letter), urls, at=letter.created_at)


def letters_under_way(
    connection: Connection, tenant: str, letters: Sequence[DeadLetterSummary], urls: Urls
) -> Mapping[int, str]:
    """Return the address of the redrive that includes each of some dead letters; the rest are in none."""
    open_letters = [letter for letter in letters if letter.redriven_at is None]
    if not open_letters:
        return {}
    with connection.snapshot() as reading:
        rows = redrives(reading, tenant)
    found = {letter.id: _covering(rows, _of_letter(letter), letter.created_at) for letter in open_letters}
    return {letter: urls("bulk_work", kind="redrive", id=row.redrive_id) for letter, row in found.items() if row}


def covering_redrive(
    connection: Connection, tenant: str, filters: DeadLetterFilter, found: RedriveResult
) -> Redriving | None:
    """Return a redrive that goes on and has all that a dry run has found, until its `until_at`.

    Args:
        connection: Reads the redrives.
        tenant: The tenant.
        filters: Those of the dry run.
        found: Its result; a few dead letters are looked at one by one, many by their filters.
    """
    with connection.snapshot() as reading:
        rows = [row for row in redrives(reading, tenant) if row.state != "paused"]
    if found.matched > len(found.first):
        return _covering(rows, _with_kind(filters), found.first[0].created_at)
    covering = [_covering(rows, _of_letter(letter), letter.created_at) for letter in found.first]
    first = covering[0] if covering else None
    return first if all(each is first for each in covering) else None


def included(row: Redriving, count: int, urls: Urls) -> tuple[str, str]:
    """Return the sentence about a redrive that has all dead letters of a dialog, and its address."""
    who = "It is" if count == 1 else "All of them are"
    done = f"{number(row.processed)} of {counted(row.matched_count, 'dead letter')} done"
    return f"{who} in redrive {short_id(row.redrive_id)}, {done}.", urls("bulk_work", kind="redrive", id=row.redrive_id)


def redrive_under_way(
    connection: Connection, tenant: str, filters: DeadLetterFilter, urls: Urls, *, at: datetime | None = None
) -> tuple[str, str] | None:
    """Return a sentence about a redrive of all or some of these dead letters, and its address.

    Args:
        connection: Reads the redrives.
        tenant: The tenant.
        filters: Those of the dialog, or of one dead letter.
        urls: Writes the address.
        at: When that dead letter was made: the redrive's time includes it.
    """
    with connection.snapshot() as reading:
        rows = [row for row in redrives(reading, tenant) if at is None or row.since_at <= at <= row.until_at]
    found, covers = _concerning(rows, _with_kind(filters), _OF_REDRIVES)
    if found is None:
        return None
    which = "includes" if covers else "may include some of"
    these = "it" if at is not None else f"these dead letters, until {format_timestamp(found.until_at)}"
    state = "paused" if found.state == "paused" else "under way"
    address = urls("bulk_work", kind="redrive", id=found.redrive_id)
    return f"A redrive that {which} {these} is {state}. Each dead letter is redriven once.", address


def _of_letter(letter: DeadLetterSummary) -> DeadLetterFilter:
    filters = {name: getattr(letter, name) for name in _OF_REDRIVES if name != "ids"} | {"ids": [letter.id]}
    return cast("DeadLetterFilter", filters)


def _with_kind(filters: DeadLetterFilter) -> Mapping[str, object]:
    return {**filters, "kind": kind_to_redrive(filters)}


def _covering(
    rows: Sequence[Redriving], filters: Mapping[str, object] | DeadLetterFilter, at: datetime
) -> Redriving | None:
    """Return the newest redrive that goes on, covers these filters, and includes an instant."""
    found, covers = _concerning([row for row in rows if row.since_at <= at <= row.until_at], filters, _OF_REDRIVES)
    return found if covers else None


def _concerning(rows: Sequence[R], filters: Mapping[str, object], names: Sequence[str]) -> tuple[R | None, bool]:
    """Return the newest row that goes on and concerns all, else some; True if all.

    A paused one is the last choice.
    """
    going_on = sorted(
        (row for row in rows if row.finished_at is None), key=lambda row: getattr(row, "state", "") == "paused"
    )
    for row in going_on:
        if all(_is_wider(getattr(row, name), filters.get(name)) for name in names):
            return row, True
    for row in going_on:
        if all(_overlaps(getattr(row, name), filters.get(name)) for name in names):
            return row, False
    return None, False


def _overlaps(one: object, other: object) -> bool:
    """Return True if two filters of bulk work may name the same things."""
    return not one or not other or isinstance(one, Mapping) or _is_wider(one, other) or _is_wider(other, one)


def _is_wider(wide: object, given: object) -> bool:
    """Return True if a filter of bulk work has all that a given one has."""
    if isinstance(wide, list) and given:
        return set(cast("Sequence[int]", given)) <= set(cast("Sequence[int]", wide))
    return wide in (None, {}, given)
