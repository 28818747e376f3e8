"""`client.runs`: list, read, wait for, cancel and retry runs, and read their output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.control.archive.show import show_run_anywhere
from tidewheel.control.client.arguments import MAX_BIGINT, as_id, as_int, as_seconds
from tidewheel.control.client.connection import Connection, drop_none
from tidewheel.control.client.logs import LogFollower, LogPiece, read_logs
from tidewheel.control.client.results import Run
from tidewheel.control.reads.cancellations import (
    CancelFilter,
    Cancellation,
    cancellations,
    count_matching,
    show_cancellation,
)
from tidewheel.control.reads.run_detail import RunDetail
from tidewheel.control.reads.runs import RunFilter, RunPage, list_runs
from tidewheel.errors import UnknownRun
from tidewheel.ids import RunId
from tidewheel.jobs.parsing import own_request
from tidewheel.jobs.requests import RunsCancel
from tidewheel.jobs.validation import ensure_text_names
from tidewheel.nouns.runs.operations import FailedRuns
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.cancel_matches import LOOKED_AT

_READ_RUN = Statements("tidewheel.control")["read_run"]

FIRST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CancelResult:
    """Result of a request to cancel runs by a filter.

    Args:
        cancellation_id: The cancellation's id; None of a dry run.
        matched: How many open runs match; counted to 250,000 open runs.
        at_least: True if there may be more than `matched`.
    """

    cancellation_id: int | None
    matched: int
    at_least: bool


class Runs(FailedRuns):
    """Reads and requests about runs."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def list(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        run_labels: Mapping[str, str] | None = None,
        lane: str | None = None,
        queue: str | None = None,
        cause: str | None = None,
        concurrency_key: str | None = None,
        ordering_key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> RunPage:
        """List a page of runs: those whose time has come, the latest first, then those ahead.

        Args:
            status: Only runs in this state; `scheduled` for queued ones that are not due yet.
            labels: Only runs of jobs that have all of these labels now; needs `key` or `since`.
            run_labels: Only runs with all of these labels, their job's or a trigger's instead; needs `key` or `since`.
            ordering_key: Only open runs with this key.
            after: The `next_cursor` of the page before.
        """
        ensure_text_names(labels, "labels")
        ensure_text_names(run_labels, "run_labels")
        filters = RunFilter(
            status, key, labels, run_labels, lane, queue, cause, concurrency_key, ordering_key, since, until
        )
        with self._connection.snapshot() as connection:
            return list_runs(connection, self._connection.tenant, filters, after=after, limit=as_int(limit, "limit"))

    def get(self, run_id: UUID) -> Run:
        """Return a run."""
        run_id = as_id(run_id, "run_id")
        columns = {"run_id": run_id, "tenant": self._connection.tenant}
        with (
            self._connection.transaction() as connection,
            connection.cursor(row_factory=class_row(Run), binary=True) as cursor,
        ):
            found = cursor.execute(_READ_RUN, columns).fetchone()
        if found is None:
            raise UnknownRun(str(run_id))
        return found

    def detail(self, run_id: UUID) -> RunDetail:
        """Return a run with its attempts, deadlines and retry chain, if need be from the archive."""
        run_id = as_id(run_id, "run_id")
        connection = self._connection
        return show_run_anywhere(connection.snapshot, connection.archive, connection.tenant, run_id)

    def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """Wait until a run is terminal, and return it.

        Args:
            timeout: How long, as a timedelta or in seconds.

        Raises:
            TimeoutError: It was not terminal in time; the message names its state.
        """
        seconds = as_seconds(timeout)
        deadline, pause = monotonic_seconds() + seconds, FIRST_POLL_SECONDS
        while not (run := self.get(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            self._connection.sleep(min(pause, max(deadline - monotonic_seconds(), 0)))
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        return run

    def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """Cancel a run in any state; return the state it was in before."""
        run_id = as_id(run_id, "run_id")
        reply = self._connection.request({"type": "run.cancel", "run_id": str(run_id), "reason": reason})
        return RunState(reply.run_status or "")

    def retry(self, run_id: UUID, *, delay: timedelta | float | None = None, request_id: str | None = None) -> RunId:
        """Create a new run of a terminal one: same payload, its job's current version, after a delay."""
        run_id = as_id(run_id, "run_id")
        document = {"type": "run.retry", "run_id": str(run_id), "delay": delay}
        return RunId(UUID(self._connection.request(document, request_id).run_id))

    def retry_now(self, run_id: UUID, attempt: int, *, request_id: str | None = None) -> bool:
        """Make the next attempt of a retrying run due now; its run, its number and its retry policy stay.

        Returns:
            False if nothing changed: the attempt was due, it has started, or the run has ended.

        Raises:
            Refused: There is no such run, it is open and does not retry, or `attempt` is later than its next one.
        """
        run_id = as_id(run_id, "run_id")
        document = {"type": "run.retry", "run_id": str(run_id), "attempt": attempt}
        return not self._connection.request(document, request_id).unchanged

    def cancel_all(
        self, *, reason: str | None = None, request_id: str | None = None, **filters: Unpack[CancelFilter]
    ) -> int:
        """Cancel all open runs that match a filter and exist now; no executor claims one of them from now on.

        Args:
            **filters: At least one of key, labels, queue, lane, handler and cause.

        Returns:
            The cancellation's id, for `cancellation`: schedulers end the runs in batches.

        Raises:
            Refused: The filter would match every run, or it names something that does not exist.
        """
        reply = self._connection.request({"type": "runs.cancel", "reason": reason, **filters}, request_id)
        assert reply.cancellation_id is not None  # noqa: S101 - every accepted one has an id
        return reply.cancellation_id

    def cancel_matching(
        self, document: Mapping[str, object], request_id: str | None, *, dry_run: bool = False
    ) -> CancelResult:
        """Cancel all open runs that the filter of a `runs.cancel` document matches, or only count them."""
        if dry_run:
            request = own_request(drop_none({**document, "type": "runs.cancel", "tenant": self._connection.tenant}))
            assert isinstance(request, RunsCancel)  # noqa: S101 - by its type
            with self._connection.snapshot() as connection:
                return CancelResult(None, *count_matching(connection, request, look=LOOKED_AT))
        reply = self._connection.request({**document, "type": "runs.cancel"}, request_id)
        assert reply.cancellation_id is not None  # noqa: S101 - every accepted one has an id
        named = self.cancellation(reply.cancellation_id).named_count or 0
        return CancelResult(reply.cancellation_id, min(named, LOOKED_AT), at_least=named > LOOKED_AT)

    def count(self, **filters: Unpack[CancelFilter]) -> int:
        """Count the open runs that `cancel_all` would cancel: those without an accepted cancel."""
        tenant = self._connection.tenant
        request = own_request(drop_none({"type": "runs.cancel", "tenant": tenant, **filters}))
        assert isinstance(request, RunsCancel)  # noqa: S101 - by its type
        with self._connection.snapshot() as connection:
            return count_matching(connection, request).matched

    def cancellations(self, *, after: int | None = None, limit: int = 50) -> Sequence[Cancellation]:
        """List cancellations by filter after one of them, the newest first."""
        after = None if after is None else as_int(after, "after", MAX_BIGINT)
        with self._connection.snapshot() as connection:
            return cancellations(connection, self._connection.tenant, after=after, limit=as_int(limit, "limit"))

    def cancellation(self, number: int) -> Cancellation:
        """Return the progress of a `cancel_all`."""
        with self._connection.snapshot() as connection:
            return show_cancellation(connection, self._connection.tenant, as_int(number, "number", MAX_BIGINT))

    def logs(self, run_id: UUID, attempt: int | None = None) -> Sequence[LogPiece]:
        """Return the stored output of a run's attempts, the oldest first; omit attempts without output."""
        run_id = as_id(run_id, "run_id")
        return read_logs(self._connection, run_id, _attempt(attempt))

    def follow_logs(self, run_id: UUID, attempt: int | None = None) -> LogFollower:
        """Iterate over the output of a run's attempts, and new output until the run (or that attempt) ends."""
        run_id = as_id(run_id, "run_id")
        return LogFollower(self._connection, run_id, _attempt(attempt))


def _attempt(number: int | None) -> int | None:
    return None if number is None else as_int(number, "attempt")
