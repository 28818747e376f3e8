"""`tidewheel.Client`: submit, trigger and read jobs and runs; calendars and task tokens.

Requests are applied by the code that intake uses, in one transaction each, on Tidewheel's database.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from types import TracebackType
from typing import Self, Unpack
from uuid import UUID, uuid4

from tidewheel.audit import Actor
from tidewheel.control.client.connection import Connection, Triggered, drop_none
from tidewheel.control.client.enqueue import TriggerOptions, trigger_document
from tidewheel.control.explain.operations import Occurrences
from tidewheel.control.explain.preview import Preview, as_mapping, preview
from tidewheel.control.occurrence_audit.result import AuditResult, run_audit
from tidewheel.control.reads.calendars import list_calendars, show_calendar
from tidewheel.ids import RunId
from tidewheel.intake.trigger import ACCEPTED
from tidewheel.jobs.spec import JobSpec
from tidewheel.nouns.api_keys.operations import ApiKeys
from tidewheel.nouns.audit_log.operations import AuditLog
from tidewheel.nouns.batches.operations import Batches
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.jobs.changes import OnProgress, ReleaseResult, patch_job, release
from tidewheel.nouns.jobs.model import Job, job_of
from tidewheel.nouns.jobs.operations import Jobs, OneJob
from tidewheel.nouns.limits.operations import Limits, OrderingKeys
from tidewheel.nouns.operation import Noun, as_int, reads
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.tenants.operations import Tenants
from tidewheel.nouns.workflows.operations import Workflows
from tidewheel.nouns.works.operations import Works
from tidewheel.postgres.session import refuse_shared_sessions
from tidewheel.runs import RunState
from tidewheel.settings.connections import Connections


class TaskTokens(Noun):
    """Requests about an attempt from outside its executor.

    An attempt whose run has a cancellation ends as `cancelled`.
    """

    def complete(
        self,
        token: str,
        result: object = None,
        *,
        next_in: str | float | timedelta | None = None,
        request_id: str | None = None,
    ) -> RunState:
        """Report that an attempt has succeeded; return the run's state.

        Args:
            result: Any JSON value, at most 64 KiB.
            next_in: The time from the run's end to the next run of its `fixed_delay` job.
        """
        return self._end(request_id, token=token, result=result, next_in=next_in)

    def fail(
        self,
        token: str,
        error_type: str | None = None,
        error_message: str | None = None,
        *,
        permanent: bool = False,
        next_in: str | float | timedelta | None = None,
        request_id: str | None = None,
    ) -> RunState:
        """Report that an attempt has failed; return the run's new state, as the retry policy decides.

        Args:
            error_type: Compared with the job's `non_retryable`.
            next_in: As of `complete`, if no attempt follows.
        """
        failure = {
            "error_type": error_type, "error_message": error_message, "permanent": permanent or None, "next_in": next_in
        }  # fmt: skip
        return self._end(request_id, token=token, status="failed", **failure)

    def heartbeat(self, token: str, progress: object = None, checkpoint: object = None) -> RunState:
        """Report that an attempt is alive.

        Args:
            progress: Its progress: any JSON value, at most 4 KiB.
            checkpoint: State for the next attempt to continue from: any JSON value, at most 64 KiB.

        Returns:
            The run's state; `cancelling` if a stop was requested.

        Raises:
            StaleToken: The attempt has ended: stop working on it.
        """
        self._call.refresh_task_tokens()
        document = {"type": "run.heartbeat", "token": token, "progress": progress, "checkpoint": checkpoint}
        return RunState(self._call.request(document).run_status or "")

    def _end(self, request_id: str | None, **fields: object) -> RunState:
        # With an id, a repeat after a lost COMMIT returns the first reply, not StaleToken.
        self._call.refresh_task_tokens()
        document = {"type": "run.complete", **fields}
        return RunState(self._call.request(document, request_id or str(uuid4())).run_status or "")


class Calendars(Noun):
    """Reads and requests about named sets of days."""

    def put(
        self,
        name: str,
        *,
        days: Iterable[date | str] = (),
        weekdays: Iterable[str | int] = (),
        source: str | None = None,
    ) -> bool:
        """Create or replace a calendar; jobs that use it follow at once. Return True if it has changed.

        Args:
            weekdays: Days of every week, such as `SAT`.
        """
        document: dict[str, object] = {
            "type": "calendar.put", "name": name, "days": [str(day) for day in days], "weekdays": list(weekdays),
            "source": source,
        }  # fmt: skip
        return not self._call.request(document).unchanged

    def delete(self, name: str) -> None:
        """Delete a calendar that no job uses."""
        self._call.request({"type": "calendar.delete", "name": name})

    list = reads(list_calendars)
    get = reads(show_calendar)


class Client(OneJob, Occurrences):
    """A client of Tidewheel for one thread; a context manager.

    A method raises `Refused` if an argument is invalid or names something that does not exist: `errors` has each
    field and its remedy. It raises `Unavailable` if the database does not answer; without a `request_id`, a change
    may have happened. A repeated `request_id` returns the first reply. A change that returns a truth value returns
    False if nothing changed.

    Args:
        database_url: The database; else that of the settings.
        settings: Settings instead of those of the environment.
        actor: The origin of its changes, for the audit log; by default the user of this process.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        tenant: str = "default",
        settings: Connections | None = None,
        actor: Actor | None = None,
    ) -> None:
        super().__init__(Connection(database_url, tenant=tenant, settings=settings, actor=actor))
        self.jobs = Jobs(self._call)
        self.runs = Runs(self._call)
        self.dead_letters = DeadLetters(self._call)
        self.works = Works(self._call)
        self.task_tokens = TaskTokens(self._call)
        self.workflows = Workflows(self._call)
        self.batches = Batches(self._call)
        self.calendars = Calendars(self._call)
        self.freezes = Freezes(self._call)
        self.limits = Limits(self._call)
        self.ordering_keys = OrderingKeys(self._call)
        self.tenants = Tenants(self._call)
        self.api_keys = ApiKeys(self._call)
        self.audit_log = AuditLog(self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._call.close()

    def submit(
        self, job: Mapping[str, object] | JobSpec, *, if_version: int | None = None, request_id: str | None = None
    ) -> Job:
        """Create a job, or update it; an identical spec changes nothing.

        Args:
            if_version: Change only this version; 0 only creates.
        """
        # A JobSpec is passed as it is: as a mapping, its payload and jitter would be parsed differently.
        given = job if isinstance(job, JobSpec) else as_mapping(job, "job")
        document: dict[str, object] = {"type": "job.submit", "job": given, "if_version": if_version}
        return job_of(self._call.request(document, request_id))

    def patch(
        self, key: str, patch: Mapping[str, object], *, if_version: int | None = None, request_id: str | None = None
    ) -> Job:
        """Change single fields of a job, by a JSON merge patch (RFC 7396); None resets a field.

        Args:
            if_version: Patch only this version. Without it, a patch that another change overtakes is applied to the
                new version.
        """
        return job_of(
            patch_job(self._call, key, as_mapping(patch, "patch"), if_version=if_version, request_id=request_id)
        )

    def trigger(self, key: str, payload: object = None, **options: Unpack[TriggerOptions]) -> RunId:
        """Run a job once, with any JSON value as its payload; bytes are passed unchanged."""
        document = trigger_document(key, payload, tenant=self._call.tenant, **options)
        return RunId(UUID(self._call.request(document, options.get("request_id")).run_id))

    def trigger_deduped(
        self,
        key: str,
        payload: object = None,
        *,
        dedupe_key: str | None = None,
        window: timedelta | float | str | None = None,
        mode: str | None = None,
        longest: timedelta | float | str | None = None,
        **options: Unpack[TriggerOptions],
    ) -> Triggered:
        """Run a job once for all triggers with one key in a window, and return what happened.

        Args:
            key: The job, whose own `dedupe` supplies what the call omits. Without any, the call is a `trigger`.
            window: The time from the first trigger, up to 30 days. With `debounce`, the time without a trigger.
            mode: `reject` drops later triggers. `replace` gives the waiting run the last payload, and `debounce` also
                postpones the run.
            longest: With `debounce`: the longest time from the first trigger to the run; ten windows by default.
            **options: Those of `TriggerOptions`; with `debounce` neither `delay` nor `run_at`.
        """
        dedupe = drop_none({"key": dedupe_key, "window": window, "mode": mode, "longest": longest})
        document = trigger_document(key, payload, tenant=self._call.tenant, dedupe=dedupe or None, **options)
        reply = self._call.request(document, options.get("request_id"))
        assert reply.next_run_at is not None  # noqa: S101 - a run has a time
        return Triggered(RunId(UUID(reply.run_id)), reply.dedupe or ACCEPTED, reply.next_run_at)

    def run_later(
        self,
        handler: str,
        payload: object = None,
        *,
        delay: timedelta | float | str | None = None,
        run_at: datetime | None = None,
        labels: dict[str, str] | None = None,
        request_id: str | None = None,
    ) -> RunId:
        """Run a Python handler once, without a job of yours: now, after `delay`, or at `run_at`.

        The run belongs to the job `later/<handler>`. The first call creates this job, with the default policies.
        Submit a job with this key to set other policies.
        """
        key = f"later/{handler}"
        document = trigger_document(
            key, payload, tenant=self._call.tenant, delay=delay, run_at=run_at, labels=labels, request_id=request_id
        )
        job: dict[str, object] = {"key": key, "schedule": "manual", "target": handler}
        reply = self._call.request_with_job(document, {"type": "job.submit", "job": job, "if_version": 0})
        return RunId(UUID(reply.run_id))

    def release(
        self,
        *keys: str,
        error: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ReleaseResult:
        """Release quarantined jobs; their `catch_up` decides which missed occurrences fire.

        A released job that fails again is quarantined again. An interrupted call can be repeated.

        Args:
            error: Only jobs whose error contains this text.
            everything: Release all; required without keys or an error.
            on_progress: Called after each batch with the number of released jobs.
        """
        return release(self._call, keys, error=error, everything=everything, dry_run=dry_run, on_progress=on_progress)

    def audit(self, first: datetime, before: datetime | None = None, *, key: str | None = None) -> AuditResult:
        """Recompute every occurrence of a range, and compare it with the records.

        Args:
            before: The end of the range, exclusive; now by default.
            key: Only this job; by default all jobs of the tenant.

        Raises:
            InvalidInput: The range is in the future, or its runs are no longer kept.
            SettingsError: A pooler shares sessions, but the lock of an audit needs one of its own.
        """
        own = self._call
        refuse_shared_sessions(own.url)
        return run_audit(own.url, first, before, tenant=own.tenant, key=key)

    def preview(self, job: Mapping[str, object] | JobSpec, n: int = 10, *, after: datetime | None = None) -> Preview:
        """Return what an unsaved job would do: its policies in words, and its next `n` occurrences."""
        n = as_int(n, "n")
        allowed, late = self._call.installation.allow_lists, self._call.installation.misfire_after
        return self._read(preview, job, n, after, allow_lists=allowed, misfire_after=late)
