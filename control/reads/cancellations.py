"""Read cancellations by filter: the count of runs that match, and the progress of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, cast

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_position
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
    """Filter of the open runs to cancel, which match all of its fields.

    At least one field other than the last two is required.

    Attributes:
        key: Of this job.
        labels: Of the jobs that have all of these labels now.
        queue: Of this queue.
        lane: Of this lane.
        handler: Of this handler.
        cause: Of this cause.
        created_before: Created before this instant; by default now.
        include_started: True (the default) to cancel started runs too.
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
    """A cancellation by filter, with its progress.

    Args:
        cancellation_id: Its id.
        key: Of this job.
        labels: Of the jobs that had all of these.
        queue: Of this queue.
        lane: Of this lane.
        handler: Of this handler.
        cause: Of this cause.
        created_before: Runs that were created later are not cancelled.
        include_started: True if started runs are cancelled too.
        reason: The reason of the request.
        created_at: When it was accepted. From then on no claim takes a run that matches it.
        cancelled_count: How many runs were ended so far, or received a request to stop.
        finished_at: When no matching run was left.
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
    """Return the number of open runs that a cancellation would match now.

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
    """Return one cancellation.

    Raises:
        UnknownCancellation: The tenant has no cancellation of this id.
    """
    with connection.cursor(row_factory=class_row(Cancellation), binary=True) as cursor:
        found = cursor.execute(_READ_CANCELLATION, {"id": number, "tenant": tenant}).fetchone()
    if found is None:
        raise UnknownCancellation(number)
    return found
