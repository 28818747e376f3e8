"""`client.runs`: list, read, wait for, cancel and retry runs, and read their output.

A retry by filter is a work. It retries each run once: a run that has a retry when its turn comes is left out. A new run
that fails again is later than the work, which leaves it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Literal, TypedDict, Unpack
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb
from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.archive.lookup import show_run_anywhere
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import rows_as
from tidewheel.errors import UnknownCancellation, UnknownRun, refuse
from tidewheel.ids import RunId, first_run_id
from tidewheel.jobs.requests import CancelFields, RunsMatching
from tidewheel.jobs.values import Instant, Key
from tidewheel.nouns.operation import (
    DryRun,
    InDoors,
    Page,
    Rows,
    as_id,
    as_int,
    fields_of,
    operation,
    read_page,
    reads,
)
from tidewheel.nouns.runs.detail import LogFollower, read_logs
from tidewheel.nouns.runs.model import (
    Cancellation,
    CancelResult,
    ErrorType,
    LogPiece,
    OfLane,
    OfQueue,
    Run,
    RunDetail,
    RunSummary,
)
from tidewheel.nouns.runs.reads import RunList, read_runs
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.works.operations import (
    COUNTED,
    WORKS,
    Asked,
    Polling,
    Rate,
    Started,
    Survey,
    WorkReason,
    first_matches,
    start,
)
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.cancellation import LOOKED_AT, Matches, count_matches
from tidewheel.transitions.requested_changes import scan_failed_runs

_SQL = Statements("tidewheel.control")
_RUN = "/api/v1/runs/{run_id:uuid}"
_CANCELLATIONS = "/api/v1/cancellations"
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LOOKED_AT = 20_000  # rows of one statement, matching or not: some tens of milliseconds
_SHOWN = 10  # of a dry run
_FIRST_POLL_SECONDS = 0.02
_LAST_NUMBER = 2**63 - 1

_RunId = Annotated[UUID, BeforeValidator(partial(as_id, name="run_id"))]
_Number = Annotated[int, Field(ge=0, le=_LAST_NUMBER)]
_Attempt = Annotated[Annotated[int, Field(ge=0, le=2**31 - 1)] | None, Field(description="Only this attempt.")]


class FailedRunFilter(TypedDict, total=False):
    """Filter of failed and timed-out runs, which match all of its fields."""

    key: Annotated[Key | None, Field(description="Only those of the job with this key."), InDoors("job")]
    status: Annotated[Literal["failed", "timed_out"] | None, Field(description="Only runs in this final state.")]
    error_type: Annotated[ErrorType | None, Field(description="Only runs whose last attempt had this error type.")]
    queue: OfQueue
    lane: OfLane
    since: Annotated[Instant | None, Field(description="Only runs at this instant or later, as in the list of runs.")]
    until: Annotated[Instant | None, Field(description="Only runs at this instant or earlier.")]


@dataclass(frozen=True, slots=True)
class RetryWork(Started):
    """A retry by filter that a call has started, or that its dry run would."""

    first: Annotated[tuple[RunSummary, ...], Field(description="Of a dry run: the first ten.")] = ()


class CancelAsked(CancelFields):
    """End all runs that match a filter and were created before an instant, or only count them."""

    dry_run: Annotated[bool, Field(description="Only count the runs.")] = False


def count_matching(connection: Conn, tenant: str, asked: RunsMatching, *, look: int | None = None) -> Matches:
    """Return how many open runs a cancellation would end.

    Runs whose cancel is accepted already are not counted. It looks at `look` open runs; None for all of them.
    """
    of_job = None if asked.key is None else read_job_position(connection, tenant, asked.key).job_id
    labels = Jsonb(asked.labels) if asked.labels else None
    return count_matches(connection, {**dict(asked), "tenant": tenant, "job_id": of_job, "labels": labels}, look)


def list_cancellations(
    connection: Conn, tenant: str, *, after: _Number | None = None, limit: Rows = 50
) -> Page[Cancellation]:
    """List cancellations by filter, newest first."""
    require_tenant(connection, tenant)
    columns = {"tenant": tenant, "before": after or _LAST_NUMBER}
    return read_page(
        connection,
        rows_as(Cancellation),
        _SQL["list_cancellations"],
        columns,
        lambda last: last.cancellation_id,
        limit=limit,
    )


def show_cancellation(connection: Conn, tenant: str, number: _Number) -> Cancellation:
    """Return a cancellation with its progress."""
    found = read_row(connection, rows_as(Cancellation), _SQL["read_cancellation"], {"id": number, "tenant": tenant})
    if found is None:
        raise UnknownCancellation(number)
    return found


class Runs(RunList):
    """Reads and requests about runs."""

    def get(self, run_id: UUID) -> Run:
        """Return a run."""
        columns = {"run_id": as_id(run_id, "run_id"), "tenant": self._call.tenant}
        with self._call.transaction() as connection:
            found = read_row(connection, class_row(Run), _SQL["read_run"], columns)
        if found is None:
            raise UnknownRun(str(run_id))
        return found

    @operation(f"GET {_RUN}", "get_run", scope=Scope.READ)
    def detail(self, run_id: _RunId) -> RunDetail:
        """Return a run with its attempts, deadlines and retry chain, if necessary from the archive."""
        return show_run_anywhere(self._call.snapshot, self._call.archive, self._call.tenant, run_id)

    def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """Wait until a run has ended, and return it; raise TimeoutError after this many seconds."""
        polling = run_polling(run_id, timeout)
        while polling.goes_on(run := self.get(run_id), run.state, run.finished_at):
            self._call.sleep(polling.pause())
        return run

    @operation(f"POST {_RUN}:cancel", "cancel_run", scope=Scope.OPERATE, sent={"reason": "no longer needed"})
    def cancel(self, run_id: _RunId, *, reason: str | None = None, request_id: str | None = None) -> RunState:
        """Cancel a run in any state; return the state it was in before."""
        document = {"type": "run.cancel", "run_id": str(run_id), "reason": reason}
        return RunState(self._call.request(document, request_id).run_status or "")

    def retry(self, run_id: UUID, *, delay: timedelta | float | None = None, request_id: str | None = None) -> RunId:
        """Retry an ended run with a new run: same payload, its job's current version, after a delay."""
        document = {"type": "run.retry", "run_id": str(as_id(run_id, "run_id")), "delay": delay}
        return RunId(UUID(self._call.request(document, request_id).run_id))

    def retry_now(self, run_id: UUID, attempt: int, *, request_id: str | None = None) -> bool:
        """Make the next attempt of a retrying run due now; its run, its number and its retry policy stay.

        Returns:
            False if nothing changed: the attempt was already due or has started, or the run has ended.
        """
        document = {"type": "run.retry", "run_id": str(as_id(run_id, "run_id")), "attempt": attempt}
        return not self._call.request(document, request_id).unchanged

    @operation(
        "POST /api/v1/runs:retry", "retry_failed_runs", scope=Scope.OPERATE, starts=WORKS,
        sent={"job": "nightly", "since": "2026-11-20T01:00:00Z", "rate": 10},
    )  # fmt: skip
    def retry_failed(
        self,
        *,
        versions: Annotated[
            Literal["current", "as_of"],
            Field(description="The job version of each new run: the one in force now, or that of the old run."),
        ] = "current",
        rate: Annotated[
            Rate | None, Field(description="Maximum runs per second; without it there is no limit.")
        ] = None,
        dry_run: DryRun = False,
        everything: Annotated[
            bool, InDoors("all"), Field(description="All failed runs; required without a filter.")
        ] = False,
        reason: WorkReason = None,
        request_id: str | None = None,
        **filters: Unpack[FailedRunFilter],
    ) -> RetryWork:
        """Retry failed and timed-out runs that match a filter, oldest first.

        Schedulers create the new runs, each with the payload of its old run, as `run retry` does. The work continues
        after the caller exits. It skips runs that were already retried, and runs that fail later.
        """
        if not (everything or dry_run) and all(value is None for value in filters.values()):
            refuse("all", "no failed run is selected", "give a filter, or `all` (`everything` in Python)")
        survey = partial(_survey, tenant=self._call.tenant, filters=filters, versions=versions)
        return start(self._call, "runs.retry", Asked(rate, reason, request_id, dry_run=dry_run), survey, RetryWork)

    @operation(
        "POST /api/v1/runs:cancel", "cancel_runs", scope=Scope.OPERATE, starts=_CANCELLATIONS,
        sent={"key": "nightly", "reason": "wrong data"},
    )  # fmt: skip
    @fields_of(CancelAsked)
    def cancel_matching(self, asked: CancelAsked) -> CancelResult:
        """Cancel all open runs that match a filter: executors stop starting them, and schedulers end them.

        Raises:
            Refused: The filter would match every run, or names something that does not exist.
        """
        if asked.dry_run:
            with self._call.snapshot() as connection:
                found = count_matching(connection, self._call.tenant, asked, look=LOOKED_AT)
            return CancelResult(None, found.runs, found.at_least)
        number = self._cancel(asked)
        named = self.cancellation(number).named_count or 0
        return CancelResult(number, min(named, LOOKED_AT), at_least=named > LOOKED_AT)

    cancellations = operation(f"GET {_CANCELLATIONS}", "list_cancellations", scope=Scope.READ)(
        reads(list_cancellations)
    )
    cancellation = operation(f"GET {_CANCELLATIONS}/{{number}}", "get_cancellation", scope=Scope.READ)(
        reads(show_cancellation)
    )

    @operation(f"GET {_RUN}/logs", "get_run_logs", scope=Scope.READ)
    def logs(self, run_id: _RunId, attempt: _Attempt = None) -> list[LogPiece]:
        """Return the stored output of a run's attempts, oldest first: the last 64 KiB of each."""
        return read_logs(self._call, run_id, attempt)

    def follow_logs(self, run_id: UUID, attempt: int | None = None) -> LogFollower:
        """Iterate over the output of a run's attempts, including new output until the run or attempt ends."""
        number = None if attempt is None else as_int(attempt, "attempt")
        return LogFollower(self._call, as_id(run_id, "run_id"), number)

    def _cancel(self, asked: CancelFields) -> int:
        fields = {name: getattr(asked, name) for name in CancelFields.model_fields}
        number = self._call.request({"type": "runs.cancel", **fields}, asked.request_id).cancellation_id
        assert number is not None  # noqa: S101 - every accepted one has an id
        return number


def run_polling(run_id: UUID, timeout: timedelta | float) -> Polling[Run]:
    """Return the wait for the end of a run, for `wait` of both clients."""
    return Polling("run", run_id, timeout, first_pause=_FIRST_POLL_SECONDS)


def _survey(connection: Conn, *, tenant: str, filters: FailedRunFilter, versions: str) -> Survey[RunSummary]:
    require_tenant(connection, tenant)
    key, now = filters.get("key"), read_now(connection)
    of_job = None if key is None else read_job_position(connection, tenant, key).job_id
    until, since = min(filters.get("until") or now, now), max(filters.get("since") or _EARLIEST, _EARLIEST)
    stored: dict[str, object] = {name: value for name, value in filters.items() if name != "key"}
    stored |= {"job_id": of_job, "until": until}
    before = UUID(int=max(first_run_id(since).int - 1, 0))

    def scan(after: UUID | None, limit: int) -> tuple[Sequence[UUID], UUID | None]:
        return scan_failed_runs(
            connection, tenant, stored, until=until, ended_until=now, after=after or before, limit=limit,
            look=_LOOKED_AT,
        )  # fmt: skip

    found, complete = first_matches(scan, COUNTED + 1)
    first = tuple(read_runs(connection, found[:_SHOWN]))
    stored |= {"since": filters.get("since"), "versions": versions}
    at_least = len(found) > COUNTED or not complete
    return Survey(min(len(found), COUNTED), at_least, first, stored, {"id": str(before)})
