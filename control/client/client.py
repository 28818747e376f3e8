"""`tidewheel.Client`: whatever can be requested, and waiting for runs, from Python.

Requests are applied by the same code that intake uses, in one transaction each, straight on Tidewheel's database.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.dead_letters import LetterDoor
from tidewheel.control.client.enqueue import trigger_document
from tidewheel.control.client.logs import LogDoor
from tidewheel.control.client.results import Backfilled, Job, Run, backfilled_of, job_of
from tidewheel.control.client.runs import RunDoor
from tidewheel.control.client.task_tokens import ByToken
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import Explanation
from tidewheel.control.explain.preview import Preview, preview
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.calendars import CalendarDetail, CalendarSummary, list_calendars, show_calendar
from tidewheel.control.reads.versions import Change, Version, diff, versions
from tidewheel.errors import UnknownRun
from tidewheel.ids import RunId
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

_SQL = Statements("tidewheel.control")
_READ_RUN = _SQL["read_run"]

FIRST_LOOK_SECONDS = 0.02
LONGEST_LOOK_SECONDS = 0.5


class Client(ByToken, RunDoor, LetterDoor, LogDoor):
    """A connection to Tidewheel for one thread; a context manager."""

    def submit(
        self, job: Mapping[str, object] | JobSpec, *, if_version: int | None = None, request_id: str | None = None
    ) -> Job:
        """Create a job, or change it; an identical spec changes nothing.

        Args:
            job: The job as in a `job.submit` request, as a mapping or a `JobSpec`.
            if_version: Only while this is the current version; 0: only where there is no such job.
            request_id: The same id again gets the first answer.

        Raises:
            Refused: Something in it does not fit; `errors` names each field and its remedy.
            Unavailable: The database does not answer.
        """
        # A spec goes in as it is: written out, its payload and jitter would not be read as what they were.
        given = job if isinstance(job, JobSpec) else dict(job)
        document = {"type": "job.submit", "job": given, "if_version": if_version}
        return job_of(self._ask(document, request_id))

    def trigger(
        self,
        key: str,
        payload: object = None,
        *,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        labels: dict[str, str] | None = None,
        overlap: str | None = None,
        request_id: str | None = None,
    ) -> RunId:
        """Run a job once: now, after `delay` (timedelta or seconds), or at `run_at`; `overlap` in place of its policy.

        Returns:
            The run's id, for `wait` and `run`.

        Raises:
            Refused: There is no such job, or an argument does not fit.
            Unavailable: The database does not answer.
        """
        document = trigger_document(
            key, payload, tenant=self._tenant, delay=delay, run_at=run_at, labels=labels, request_id=request_id
        )
        return RunId(UUID(self._ask({**document, "overlap": overlap}, request_id).run_id))

    def pause(self, key: str, *, until: datetime | None = None, reason: str | None = None) -> Job:
        """Fire no occurrence of a job until it is resumed, by request or at `until`; triggers go on working."""
        return self._about_job("job.pause", key, until=until, reason=reason)

    def resume(self, key: str) -> Job:
        """Fire a paused job's occurrences again."""
        return self._about_job("job.resume", key)

    def delete(self, key: str, *, if_version: int | None = None) -> Job:
        """Remove a job, only while `if_version` is its current version where given; runs that have begun finish."""
        return self._about_job("job.delete", key, if_version=if_version)

    def rollback(self, key: str, version: int, *, if_version: int | None = None) -> Job:
        """Give a job the spec of an earlier version again, as a new version."""
        return self._about_job("job.rollback", key, version=version, if_version=if_version)

    def skip(self, key: str, at: datetime, *, reason: str | None = None) -> Job:
        """Leave out one coming occurrence, named by its nominal instant."""
        return self._about_job("job.skip", key, at=at, reason=reason)

    def move(self, key: str, at: datetime, to: datetime, *, reason: str | None = None) -> Job:
        """Let one coming occurrence fire at another time."""
        return self._about_job("job.move", key, at=at, to=to, reason=reason)

    def unskip(self, key: str, at: datetime) -> Job:
        """Take back a skip or a move of an occurrence that is still to come."""
        return self._about_job("job.unskip", key, at=at)

    def backfill(
        self,
        key: str,
        from_at: datetime,
        to_at: datetime,
        *,
        what: str | None = None,
        versions: str | None = None,
        overlap: str | None = None,
        max_concurrent: int | None = None,
        order: str | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> Backfilled:
        """Run the occurrences of a past range, both ends included.

        Args:
            key: The job.
            from_at: The first instant of the range.
            to_at: The last.
            what: `missing_only` (when not said) or `all`.
            versions: `as_of`, the version in force at each instant (when not said), or `current`.
            overlap: In place of the job's policy.
            max_concurrent: How many of its runs may be open at once; 10 when not said.
            order: `oldest_first` (when not said) or `newest_first`.
            dry_run: Only say how many there would be.
            reason: Kept and shown.
            request_id: The same id again gets the first answer.

        Raises:
            Refused: There is no such job, the range lies ahead or is too long, or an argument does not fit.
        """
        document: dict[str, object] = {
            "type": "job.backfill", "key": key, "from": from_at, "to": to_at, "what": what, "versions": versions,
            "overlap": overlap, "max_concurrent": max_concurrent, "order": order, "dry_run": dry_run, "reason": reason,
        }  # fmt: skip
        return backfilled_of(self._ask(document, request_id))

    def pause_backfill(self, backfill_id: UUID, *, reason: str | None = None) -> Backfilled:
        """Make no further run of a backfill until it is resumed."""
        return self._about_backfill("backfill.pause", backfill_id, reason)

    def resume_backfill(self, backfill_id: UUID) -> Backfilled:
        """Go on with a backfill."""
        return self._about_backfill("backfill.resume", backfill_id, None)

    def cancel_backfill(self, backfill_id: UUID, *, reason: str | None = None) -> Backfilled:
        """Make no further run of a backfill, and cancel those that have not begun."""
        return self._about_backfill("backfill.cancel", backfill_id, reason)

    def put_calendar(
        self,
        name: str,
        *,
        days: Iterable[date | str] = (),
        weekdays: Iterable[str | int] = (),
        source: str | None = None,
    ) -> bool:
        """Make or replace a named set of days; jobs that name it follow at once.

        Args:
            name: The calendar's name.
            days: Single days.
            weekdays: Days of every week, such as `SAT`.
            source: Where the days come from, in words.

        Returns:
            Whether that changed anything.

        Raises:
            Refused: It has no days, or something in it does not fit.
            Unavailable: The database does not answer.
        """
        given = [str(day) for day in days]
        document: dict[str, object] = {
            "type": "calendar.put", "name": name, "days": given, "weekdays": list(weekdays), "source": source,
        }  # fmt: skip
        return not self._ask(document).unchanged

    def delete_calendar(self, name: str) -> None:
        """Remove a calendar that no job names.

        Raises:
            Refused: There is no such calendar, or jobs name it.
        """
        self._ask({"type": "calendar.delete", "name": name})

    def calendars(self) -> list[CalendarSummary]:
        """The calendars of this tenant, by name."""
        with self._session.transaction() as connection:
            return list_calendars(connection, self._tenant)

    def calendar(self, name: str) -> CalendarDetail:
        """One calendar, with its days.

        Raises:
            UnknownCalendar: There is none of this name in this tenant.
        """
        with self._session.transaction() as connection:
            return show_calendar(connection, self._tenant, name)

    def explain(self, key: str, at: datetime) -> Explanation:
        """What became of any instant of a job, or is to become of it, and why.

        Raises:
            UnknownJob: There is no such job and never was one.
        """
        with self._reading() as connection:
            return explain(connection, self._tenant, key, at, misfire_after=self._installation.misfire_after)

    def next(self, key: str, n: int = 10) -> Upcoming:
        """The next `n` occurrences of a job, with what lies between them and does not fire.

        Raises:
            UnknownJob: There is no such job.
        """
        with self._reading() as connection:
            return upcoming(connection, self._tenant, key, n, misfire_after=self._installation.misfire_after)

    def preview(self, job: Mapping[str, object] | JobSpec, n: int = 10, *, after: datetime | None = None) -> Preview:
        """What a job would do that is not saved: its policies in words, and its next `n` occurrences.

        Raises:
            Refused: As a submit would be.
        """
        with self._reading() as connection:
            return preview(connection, self._tenant, job, n, after)

    def versions(self, key: str, *, most: int = 20, before: int | None = None) -> list[Version]:
        """A job's versions, the newest first, each with what it changed.

        Raises:
            UnknownJob: There is no such job and never was one.
        """
        with self._reading() as connection:
            return versions(connection, self._tenant, key, most=most, before=before)

    def diff(self, key: str, a: int, b: int) -> list[Change]:
        """What differs in version `b` of a job from version `a`.

        Raises:
            UnknownJob: There is no such job and never was one.
            InvalidInput: It has no such version.
        """
        with self._reading() as connection:
            return diff(connection, self._tenant, key, a, b)

    def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """End a run, whatever state it is in.

        Returns:
            The state it was found in.
        """
        reply = self._ask({"type": "run.cancel", "run_id": str(run_id), "reason": reason})
        return RunState(reply.run_status or "")

    def run(self, run_id: UUID) -> Run:
        """A run as it stands.

        Raises:
            UnknownRun: There is none of this id in this tenant.
        """
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(Run), binary=True) as cursor,
        ):
            found = cursor.execute(_READ_RUN, {"run_id": run_id, "tenant": self._tenant}).fetchone()
        if found is None:
            raise UnknownRun(str(run_id))
        return found

    def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """Wait until a run is terminal.

        Args:
            run_id: The run.
            timeout: How long, as a timedelta or in seconds.

        Raises:
            TimeoutError: It was not terminal in time; the message tells its state.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline, pause = monotonic_seconds() + seconds, FIRST_LOOK_SECONDS
        while not (run := self.run(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            self._never.wait(min(pause, max(deadline - monotonic_seconds(), 0)))
            pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
        return run

    def _about_job(self, kind: str, key: str, **fields: object) -> Job:
        return job_of(self._ask({"type": kind, "key": key, **fields}))

    def _about_backfill(self, kind: str, backfill_id: UUID, reason: str | None) -> Backfilled:
        document = {"type": kind, "backfill_id": str(backfill_id), "reason": reason}
        return backfilled_of(self._ask(document))
