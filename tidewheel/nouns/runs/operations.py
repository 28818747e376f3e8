"""`client.runs.retry_failed`: new runs of failed and timed-out ones of the past, by a filter.

A retry by filter is a work. It retries each run once: a run that has a retry when its turn comes is left out. A new run
that fails again is later than the work, which leaves it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, TypedDict, Unpack
from uuid import UUID

from psycopg.rows import class_row
from pydantic import AfterValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.errors import refuse
from tidewheel.ids import first_run_id, job_id
from tidewheel.jobs.values import Instant, Key, Queue, one_line
from tidewheel.nouns.operation import DryRun, InDoors, Noun, operation
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.model import COUNTED, Rate, Started, Survey, WorkReason
from tidewheel.nouns.works.operations import WORKS, Asked, start
from tidewheel.nouns.works.reads import first_matches
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.manual_retry import scan_failed_runs

_READ_FAILED_RUNS = Statements("tidewheel.transitions")["read_failed_runs"]
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LOOKED_AT = 20_000  # rows of one statement, matching or not: some tens of milliseconds
_SHOWN = 10  # of a dry run

ErrorType = Annotated[str, AfterValidator(one_line(255))]


class FailedRunFilter(TypedDict, total=False):
    """Filter of failed and timed-out runs, which match all of its fields."""

    key: Annotated[Key | None, Field(description="Only of the job with this key."), InDoors("job")]
    status: Annotated[Literal["failed", "timed_out"] | None, Field(description="Only runs in this final state.")]
    error_type: Annotated[ErrorType | None, Field(description="Only runs whose last attempt had this error type.")]
    queue: Annotated[Queue | None, Field(description="Only runs of this queue.")]
    lane: Annotated[Literal["critical", "standard", "batch"] | None, Field(description="Only runs of this lane.")]
    since: Annotated[Instant | None, Field(description="From this instant on, as in the list of runs.")]
    until: Annotated[Instant | None, Field(description="Up to this instant.")]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed or timed-out run."""

    run_id: Annotated[UUID, Field(description="The run.")]
    key: Annotated[str, Field(description="Its job's key; the job's id once that is deleted for good.")]
    status: Annotated[str, Field(description="`failed` or `timed_out`.")]
    job_version: Annotated[int, Field(description="The version of the job that it had.")]
    error_type: Annotated[str | None, Field(description="The error type of its last attempt.")]
    scheduled_at: Annotated[datetime, Field(description="Its nominal instant.")]
    finished_at: Annotated[datetime, Field(description="When it ended.")]


@dataclass(frozen=True, slots=True)
class RetryWork(Started):
    """A retry by filter that a call has started, or that its dry run would."""

    first: Annotated[tuple[FailedRun, ...], Field(description="Of a dry run: the first ten.")] = ()


class FailedRuns(Noun):
    """Failed and timed-out runs."""

    @operation("POST /api/v1/runs:retry", "retry_failed_runs", scope=Scope.OPERATE, starts=WORKS)
    def retry_failed(
        self,
        *,
        versions: Annotated[
            Literal["current", "as_of"],
            Field(description="The version of each new run, that in force now or that of the old run."),
        ] = "current",
        rate: Annotated[Rate | None, Field(description="Maximum runs per second; unlimited by default.")] = None,
        dry_run: DryRun = False,
        everything: Annotated[
            bool, InDoors("all"), Field(description="All failed runs; needed without a filter.")
        ] = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[FailedRunFilter],
    ) -> RetryWork:
        """Retry failed and timed-out runs that match a filter, the oldest first.

        Schedulers create the new runs, each with the payload of its old run, as `run retry` does. The work continues
        when the caller has ended. It leaves out runs that have been retried, and those that fail later.

        Raises:
            Refused: A filter does not fit, or there is no such job.
            Unavailable: The database does not answer.
        """
        if not (everything or dry_run) and all(value is None for value in filters.values()):
            refuse("all", "no failed run is selected", "give a filter, or `all` (`everything` in Python)")
        survey = partial(_survey, tenant=self._call.tenant, filters=filters, versions=versions)
        return start(self._call, "runs.retry", Asked(rate, reason, request_id, dry_run=dry_run), survey, RetryWork)


def _survey(connection: Conn, *, tenant: str, filters: FailedRunFilter, versions: str) -> Survey[FailedRun]:
    """Count failed runs up to now, and return the oldest ones."""
    require_tenant(connection, tenant)
    key, now = filters.get("key"), read_now(connection)
    if key is not None:
        read_job_position(connection, tenant, key)
    until, since = min(filters.get("until") or now, now), max(filters.get("since") or _EARLIEST, _EARLIEST)
    stored: dict[str, object] = {name: value for name, value in filters.items() if name != "key"}
    stored |= {"job_id": None if key is None else job_id(tenant, key), "until": until}
    before = UUID(int=max(first_run_id(since).int - 1, 0))

    def scan(after: UUID | None, limit: int) -> tuple[Sequence[UUID], UUID | None]:
        return scan_failed_runs(
            connection, tenant, stored, until=until, ended_until=now, after=after or before, limit=limit,
            look=_LOOKED_AT,
        )  # fmt: skip

    found, complete = first_matches(scan, COUNTED + 1)
    with connection.cursor(row_factory=class_row(FailedRun), binary=True) as cursor:
        first = tuple(cursor.execute(_READ_FAILED_RUNS, {"run_ids": found[:_SHOWN]}))
    stored |= {"since": filters.get("since"), "versions": versions}
    at_least = len(found) > COUNTED or not complete
    return Survey(min(len(found), COUNTED), at_least, first, stored, {"id": str(before)})
