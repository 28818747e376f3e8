"""`client.jobs`, and the client's own methods that concern one job."""

from typing import Annotated, Unpack

from pydantic import Field

from tidewheel.api_keys import Scope
from tidewheel.jobs.values import IfVersion, Instant, Reason
from tidewheel.nouns.jobs.model import Change, Job, JobDetail, JobFilter, JobPage, Version, job_of
from tidewheel.nouns.jobs.reads import list_jobs, show_job
from tidewheel.nouns.jobs.statistics import MAX_DAYS, JobStatistics, job_statistics
from tidewheel.nouns.operation import Noun, Rows, operation

JOBS = "/api/v1/jobs"
JOB = f"{JOBS}/{{key}}"

At = Annotated[Instant, Field(description="The occurrence's nominal instant.")]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Jobs(Noun):
    """Reads of jobs; `Client.submit`, `patch` and `delete` change them."""

    @operation(f"GET {JOBS}", "list_jobs", scope=Scope.READ)
    def list(self, *, after: str = "", limit: Rows = 50, **filters: Unpack[JobFilter]) -> JobPage:
        """List jobs by key, each with its next occurrence and last run."""
        with self._call.snapshot() as connection:
            return list_jobs(connection, self._call.tenant, after=after, limit=limit, **filters)

    @operation(f"GET {JOB}", "get_job", scope=Scope.READ)
    def get(self, key: str) -> JobDetail:
        """Show a job: its spec, state, pause and last run."""
        with self._call.snapshot() as connection:
            return show_job(connection, self._call.tenant, key)


class OneJob(Noun):
    """Calls about one job."""

    @operation(f"POST {JOB}:pause", "pause_job", scope=Scope.OPERATE)
    def pause(
        self,
        key: str,
        *,
        until: Annotated[Instant | None, Field(description="Resume the job automatically at this time.")] = None,
        reason: Reason | None = None,
    ) -> Job:
        """Pause a job's schedule; triggers still run."""
        return self._change("job.pause", key, until=until, reason=reason)

    @operation(f"POST {JOB}:resume", "resume_job", scope=Scope.OPERATE)
    def resume(self, key: str) -> Job:
        """Resume a paused job."""
        return self._change("job.resume", key)

    @operation(f"DELETE {JOB}", "delete_job", scope=Scope.WRITE)
    def delete(self, key: str, *, if_version: IfVersion | None = None) -> Job:
        """Delete a job; started runs finish, the rest are cancelled."""
        return self._change("job.delete", key, if_version=if_version)

    @operation(f"POST {JOB}:rollback", "roll_back_job", scope=Scope.WRITE)
    def rollback(self, key: str, version: Number, *, if_version: IfVersion | None = None) -> Job:
        """Restore the spec of an earlier version, as a new version."""
        return self._change("job.rollback", key, version=version, if_version=if_version)

    @operation(f"POST {JOB}:skip", "skip_occurrence", scope=Scope.OPERATE)
    def skip(self, key: str, at: At, *, reason: Reason | None = None) -> Job:
        """Skip one future occurrence of a job."""
        return self._change("job.skip", key, at=at, reason=reason)

    @operation(f"POST {JOB}:move", "move_occurrence", scope=Scope.OPERATE)
    def move(
        self,
        key: str,
        at: At,
        to: Annotated[Instant, Field(description="New time of the occurrence.")],
        *,
        reason: Reason | None = None,
    ) -> Job:
        """Move one future occurrence of a job to another time."""
        return self._change("job.move", key, at=at, to=to, reason=reason)

    @operation(f"POST {JOB}:unskip", "unskip_occurrence", scope=Scope.OPERATE)
    def unskip(self, key: str, at: At) -> Job:
        """Undo a skip or a move of a future occurrence."""
        return self._change("job.unskip", key, at=at)

    @operation(f"GET {JOB}/statistics", "get_job_statistics", scope=Scope.READ)
    def statistics(
        self,
        key: str,
        days: Annotated[int, Field(ge=1, le=MAX_DAYS, description="How many days back from today.")] = 30,
    ) -> JobStatistics:
        """Show a job's runs by day: counts, durations and lateness.

        They are kept for two years.
        """
        with self._call.snapshot() as connection:
            return job_statistics(connection, self._call.tenant, key, days)

    @operation(f"GET {JOB}/versions", "list_job_versions", scope=Scope.READ)
    def versions(self, key: str, *, limit: Rows = 20, before: Number | None = None) -> list[Version]:
        """List a job's versions, the newest first, each with its changes."""
        from tidewheel.nouns.jobs.versions import versions  # here and below: a list of jobs needs no codec

        with self._call.snapshot() as connection:
            return versions(connection, self._call.tenant, key, limit=limit, before=before)

    @operation(f"GET {JOB}/diff", "compare_job_versions", scope=Scope.READ)
    def diff(self, key: str, a: Number, b: Number) -> list[Change]:
        """Compare version `b` of a job with version `a`."""
        from tidewheel.nouns.jobs.versions import diff

        with self._call.snapshot() as connection:
            return diff(connection, self._call.tenant, key, a, b)

    def _change(self, kind: str, key: str, **fields: object) -> Job:
        return job_of(self._call.request({"type": kind, "key": key, **fields}))
