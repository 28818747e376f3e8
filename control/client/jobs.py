"""`client.jobs`: list and read jobs."""

from collections.abc import Mapping

from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.jobs import JobDetail, JobPage, list_jobs, show_job
from tidewheel.jobs.validation import ensure_text_names


class Jobs:
    """Reads of jobs; `Client.submit`, `patch` and `delete` change them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
        paused: bool | None = None,
        finished: bool | None = None,
        kind: str | None = None,
        lane: str | None = None,
        queue: str | None = None,
        quarantined: bool | None = None,
        unwell: bool | None = None,
        after: str = "",
        limit: int = 50,
    ) -> JobPage:
        """List a page of jobs, in the order of their keys.

        Args:
            labels: Only jobs with all of these.
            paused: True for paused jobs only, False for all others.
            finished: True for jobs without a further occurrence only, False for all others.
            kind: Only schedules of this kind: `once`, `interval`, `fixed_delay`, `cron`, `manual` or `after`.
            quarantined: True for quarantined jobs only, False for all others.
            unwell: True for quarantined jobs and those that failed last.
            after: The `next_cursor` of the page before.
        """
        ensure_text_names(labels, "labels")
        with self._connection.snapshot() as connection:
            return list_jobs(
                connection, self._connection.tenant, prefix=prefix, labels=labels, paused=paused, finished=finished,
                kind=kind, lane=lane, queue=queue, quarantined=quarantined, unwell=unwell, after=after,
                limit=as_int(limit, "limit"),
            )  # fmt: skip

    def get(self, key: str) -> JobDetail:
        """Return a job with its spec, state and last run; `job` in it can be submitted again.

        Raises:
            UnknownJob: There is no such job.
        """
        with self._connection.snapshot() as connection:
            return show_job(connection, self._connection.tenant, key)
