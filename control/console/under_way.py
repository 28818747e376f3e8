"""Bulk work that is under way by the filter of a dialog or a wider one: the dialog names it."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.reads.cancellations import Cancellation, cancellations
from tidewheel.control.reads.dead_letters import DeadLetterKind
from tidewheel.control.reads.redrives import Redriving, redrives
from tidewheel.jobs.values import format_timestamp

R = TypeVar("R", Cancellation, Redriving)

_OF_CANCELLATIONS = ("key", "labels", "queue", "lane", "handler", "cause")
_OF_REDRIVES = ("kind", "ids", "key", "status", "error_type", "queue", "lane")


def cancellation_under_way(
    connection: Connection, tenant: str, filters: Mapping[str, object], urls: Urls
) -> tuple[str, str] | None:
    """Return a sentence about a cancellation by this filter or a wider one, and its address."""
    with connection.snapshot() as reading:
        found = _covering(cancellations(reading, tenant), filters, _OF_CANCELLATIONS)
    if found is None:
        return None
    address = urls("bulk_work", kind="cancellation", id=found.cancellation_id)
    started = "started ones too" if found.include_started else "not those that have started"
    until = f"of runs that were created before {format_timestamp(found.created_before)}"
    words = f"Cancellation {found.cancellation_id} by this filter or a wider one is under way, {until}, {started}."
    return words, address


def redrive_under_way(
    connection: Connection, tenant: str, filters: Mapping[str, object], urls: Urls
) -> tuple[str, str] | None:
    """Return a sentence about a redrive by this filter or a wider one, and its address."""
    if not filters.get("kind") and not filters.get("ids"):
        filters = {**filters, "kind": DeadLetterKind.RUN}
    with connection.snapshot() as reading:
        found = _covering(redrives(reading, tenant), filters, _OF_REDRIVES)
    if found is None:
        return None
    state = "paused" if found.state == "paused" else "under way"
    address = urls("bulk_work", kind="redrive", id=found.redrive_id)
    until = f"of dead letters until {format_timestamp(found.until_at)}"
    return f"A redrive by this filter or a wider one is {state}, {until}. None of them is redriven twice.", address


def _covering(rows: Sequence[R], filters: Mapping[str, object], names: Sequence[str]) -> R | None:
    """Return the newest row that goes on, none of whose filters is narrower than the given ones."""
    for row in rows:
        if row.finished_at is None and all(getattr(row, name) in (None, {}, filters.get(name)) for name in names):
            return row
    return None
