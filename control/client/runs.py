"""The part of the client that is about runs: lists, one with everything about it, retrying, cancelling by filter."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Unpack
from uuid import UUID

from tidewheel.control.client.connection import Door, without_none
from tidewheel.control.reads.cancellations import Cancellation, RunFilter, count_named, show_cancellation
from tidewheel.control.reads.run_detail import RunDetail, show_run
from tidewheel.control.reads.runs import RunPage, WhichRuns, list_runs
from tidewheel.ids import RunId
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import RunsCancel


class RunDoor(Door):
    """The part of the client that is about runs."""

    def runs(
        self,
        *,
        status: str | None = None,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: UUID | None = None,
        most: int = 50,
    ) -> RunPage:
        """A page of runs, the newest first.

        Args:
            status: Only those that stand there: a state, or `scheduled` for queued ones that are not due yet.
            key: Only this job's.
            labels: Only those that have all of these; with `key` or `since`.
            since: From this instant on.
            until: Up to this instant.
            after: Begin after this run.
            most: How many.

        Raises:
            Refused: A filter does not fit, or there is no such job.
        """
        which = WhichRuns(status=status, key=key, labels=labels, since=since, until=until)
        with self._reading() as connection:
            return list_runs(connection, self._tenant, which, after=after, most=most)

    def run_detail(self, run_id: UUID) -> RunDetail:
        """A run with everything about it: its attempts, its deadlines, its chain of retries.

        Raises:
            UnknownRun: There is none of this id in this tenant.
        """
        with self._reading() as connection:
            return show_run(connection, self._tenant, run_id)

    def retry(self, run_id: UUID, *, delay: timedelta | float | None = None, request_id: str | None = None) -> RunId:
        """Make a new run of one that is over: its payload, under its job's current version.

        Args:
            run_id: The run that is over.
            delay: How long the new one waits, as a timedelta or in seconds.
            request_id: The same id again is the same run.

        Returns:
            The new run's id.

        Raises:
            Refused: There is no such run, it is not over, or its job is gone.
        """
        document = {"type": "run.retry", "run_id": str(run_id), "delay": delay}
        return RunId(UUID(self._ask(document, request_id).run_id))

    def cancel_runs(
        self, *, reason: str | None = None, request_id: str | None = None, **which: Unpack[RunFilter]
    ) -> int:
        """End all open runs that fit a filter, of those made so far: from now on no claim takes any of them.

        Args:
            reason: Kept and told with each run.
            request_id: The same id again is the same cancellation.
            which: At least one of key, labels, queue, lane, handler and cause.

        Returns:
            The cancellation's id, for `cancellation`: schedulers end the runs, some at a time.

        Raises:
            Refused: The filter names every run there is, or nothing that there is.
        """
        reply = self._ask({"type": "runs.cancel", "reason": reason, **which}, request_id)
        assert reply.cancellation_id is not None  # noqa: S101 - of every one that is accepted
        return reply.cancellation_id

    def count_runs(self, **which: Unpack[RunFilter]) -> int:
        """How many open runs `cancel_runs` would end, or ask to stop, now.

        Raises:
            Refused: The filter does not fit.
        """
        request = parse_request(without_none({"type": "runs.cancel", "tenant": self._tenant, **which}))
        assert isinstance(request, RunsCancel)  # noqa: S101 - by its type
        with self._reading() as connection:
            return count_named(connection, request)

    def cancellation(self, number: int) -> Cancellation:
        """How a cancellation by filter stands.

        Raises:
            UnknownCancellation: There is none of this id in this tenant.
        """
        with self._reading() as connection:
            return show_cancellation(connection, self._tenant, number)
