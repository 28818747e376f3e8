"""Read cancellations by filter: how many runs match, those of a tenant, the progress of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypedDict

from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import rows_as
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownCancellation
from tidewheel.ids import job_id
from tidewheel.jobs.requests import RunsCancel
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.cancel_matches import count_matches

_SQL = Statements("tidewheel.control")
_LIST_CANCELLATIONS = _SQL["list_cancellations"]
_READ_CANCELLATION = _SQL["read_cancellation"]

_LAST = 2**63 - 1


class MatchingRuns(NamedTuple):
    """The open runs that a cancellation would end, without those whose cancel is accepted already.

    Args:
        at_least: True if there may be more.
    """

    matched: int
    at_least: bool


class CancelFilter(TypedDict, total=False):
    """Filter of the open runs to cancel, which match all of its fields.

    At least one field other than the last two is required.

    Attributes:
        labels: Of the jobs that have all of these labels now.
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
        named_count: How many runs it named at its acceptance, except those that had a cancel. Counted to
            250,000, one more means that there may be more. None for those of an earlier release, and of deleted jobs.
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
    named_count: int | None
    cancelled_count: int
    finished_at: datetime | None


def count_matching(connection: Conn, request: RunsCancel, *, look: int | None = None) -> MatchingRuns:
    """Return how many open runs a cancellation would end, without those whose cancel is accepted already.

    Args:
        look: How many open runs to look at; None for all of them.
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
    }
    return MatchingRuns(*count_matches(connection, columns, look))


def cancellations(connection: Conn, tenant: str, *, after: int | None = None, limit: int = 50) -> list[Cancellation]:
    """Return a page of a tenant's cancellations, the newest first."""
    require_tenant(connection, tenant)
    columns: dict[str, object] = {"tenant": tenant, "before": _LAST if after is None else after, "limit": limit}
    with connection.cursor(row_factory=rows_as(Cancellation), binary=True) as cursor:
        return cursor.execute(_LIST_CANCELLATIONS, columns).fetchall()


def show_cancellation(connection: Conn, tenant: str, number: int) -> Cancellation:
    """Return one cancellation, or raise UnknownCancellation."""
    with connection.cursor(row_factory=rows_as(Cancellation), binary=True) as cursor:
        found = cursor.execute(_READ_CANCELLATION, {"id": number, "tenant": tenant}).fetchone()
    if found is None:
        raise UnknownCancellation(number)
    return found
