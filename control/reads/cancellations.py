"""Cancellations by filter: how many runs one would name, and how one stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, cast

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.control.explain.facts import read_job_position
from tidewheel.errors import UnknownCancellation
from tidewheel.ids import job_id
from tidewheel.jobs.requests import RunsCancel
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, RunState

_SQL = Statements("tidewheel.control")
_COUNT_MATCHING_RUNS = _SQL["count_matching_runs"]
_READ_CANCELLATION = _SQL["read_cancellation"]

_STATES = sorted(OPEN - {RunState.CANCELLING})


class CancelFilter(TypedDict, total=False):
    """Which open runs are to be cancelled: those that fit all of it. At least one but the last two must be given.

    Attributes:
        key: Of this job.
        labels: Of the jobs that have all of these labels now.
        queue: Of this queue.
        lane: Of this lane.
        handler: Of this handler.
        cause: Of this cause.
        created_before: Made before this instant; now where it is not given.
        include_started: Whether those that have begun are cancelled too, as they are where it is not given.
    """

    key: str | None
    labels: Mapping[str, str] | None
    queue: str | None
    lane: str | None
    handler: str | None
    cause: str | None
    created_before: datetime | None
    include_started: bool


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A cancellation by filter as it stands.

    Args:
        cancellation_id: Its id.
        key: Of this job.
        labels: Of the jobs that had all of these.
        queue: Of this queue.
        lane: Of this lane.
        handler: Of this handler.
        cause: Of this cause.
        created_before: Runs that were made later are not concerned.
        include_started: Whether runs that have begun are.
        reason: Why, as it was asked.
        created_at: When it was accepted: from then on no claim takes a run that it names.
        cancelled_count: How many runs were ended so far, or asked to stop.
        finished_at: When nothing was left.
    """

    cancellation_id: int
    key: str | None
    labels: Mapping[str, str]
    queue: str | None
    lane: str | None
    handler: str | None
    cause: str | None
    created_before: datetime
    include_started: bool
    reason: str | None
    created_at: datetime
    cancelled_count: int
    finished_at: datetime | None


def count_matching(connection: Conn, request: RunsCancel) -> int:
    """How many open runs a cancellation would name now.

    Raises:
        UnknownJob: There is no such job and never was one.
    """
    if request.key is not None:
        read_job_position(connection, request.tenant, request.key)
    columns: dict[str, object] = {
        "tenant": request.tenant,
        "job_id": None if request.key is None else job_id(request.tenant, request.key),
        "labels": Jsonb(request.labels) if request.labels else None,
        "queue": request.queue,
        "lane": request.lane,
        "handler": request.handler,
        "cause": request.cause,
        "created_before": request.created_before,
        "include_started": request.include_started,
        "states": _STATES,
    }
    row = connection.execute(_COUNT_MATCHING_RUNS, columns, binary=True).fetchone()
    return cast("int", row[0]) if row else 0


def show_cancellation(connection: Conn, tenant: str, number: int) -> Cancellation:
    """One cancellation.

    Raises:
        UnknownCancellation: There is none of this id in this tenant.
    """
    with connection.cursor(row_factory=class_row(Cancellation), binary=True) as cursor:
        found = cursor.execute(_READ_CANCELLATION, {"id": number, "tenant": tenant}).fetchone()
    if found is None:
        raise UnknownCancellation(number)
    return found
