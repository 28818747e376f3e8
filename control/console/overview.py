"""The overview: is all well, and if not, what, since when, whose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part
from tidewheel.control.console.words import counted, duration
from tidewheel.control.reads.findings import Severity
from tidewheel.control.reads.freezes import FreezeSummary, list_freezes
from tidewheel.control.reads.jobs import list_jobs
from tidewheel.control.reads.runs import RunFilter, RunPage, RunSummary, list_runs
from tidewheel.control.reads.status import FleetStatus, read_status
from tidewheel.runs import RunState

_DAY = timedelta(days=1)
_LATE = timedelta(seconds=30)
_FINDINGS = 5
_IN_A_ROW = 3
_FAILURES = 50
_BAD, _SLIGHT = True, False


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs an operator.

    Args:
        is_bad: True if work waits until an operator acts.
        words: The fault, as a sentence.
        evidence: The figures.
        remedy: The change that mends it.
        key: The job, if it is about one.
        job_id: Its id.
    """

    is_bad: bool
    words: str
    evidence: str
    remedy: str = ""
    key: str | None = None
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The overview.

    Args:
        shards: The number of shards.
    """

    shards: int
    template: ClassVar[str] = "overview.html"
    place: ClassVar[str] = "overview"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read each part by itself: one that fails leaves the others."""
        del request, urls
        now = page_now(connection)
        fleet = part(lambda: self._fleet(connection)) if caller.all_tenants and Scope.ADMIN in caller.scopes else None
        freezes = part(lambda: _freezes(connection, caller))
        failures = part(lambda: _runs(connection, caller, RunState.FAILED, now - _DAY, _FAILURES))
        timed_out = part(lambda: _runs(connection, caller, RunState.TIMED_OUT, now - _DAY, _FAILURES))
        running = part(lambda: _runs(connection, caller, RunState.RUNNING, None, 1))
        queued = part(lambda: _runs(connection, caller, RunState.QUEUED, None, 1))
        retrying = part(lambda: _runs(connection, caller, RunState.RETRYING, None, 1))
        has_jobs = part(lambda: _has_jobs(connection, caller))
        ended = _ended(failures, timed_out)
        found = [*_of_fleet(fleet), *_of_freezes(fleet, freezes), *_of_failures(ended)]
        parts = (fleet, freezes, failures, timed_out, running, queued, retrying, has_jobs)
        found.sort(key=lambda need: not need.is_bad)
        return View(
            {
                "now": now, "fleet": fleet, "freezes": freezes, "failures": failures, "timed_out": timed_out,
                "running": running, "queued": queued, "retrying": retrying, "ended": ended[:10], "has_jobs": has_jobs,
                "needs": found[:_FINDINGS], "more": len(found) - _FINDINGS, "needs_count": len(found),
                "sentence": _sentence(len(found), parts, has_jobs=has_jobs is not False),
            }
        )  # fmt: skip

    def _fleet(self, connection: Connection) -> FleetStatus:
        with connection.snapshot(all_tenants=True) as reading:
            return read_status(reading, self.shards)


def _freezes(connection: Connection, caller: Caller) -> Sequence[FreezeSummary]:
    with connection.snapshot() as reading:
        return list_freezes(reading, caller.tenant, counts_all=caller.all_tenants)


def _runs(connection: Connection, caller: Caller, state: RunState, since: datetime | None, limit: int) -> RunPage:
    with connection.snapshot() as reading:
        return list_runs(reading, caller.tenant, RunFilter(status=state, since=since), limit=limit)


def _has_jobs(connection: Connection, caller: Caller) -> bool:
    with connection.snapshot() as reading:
        return bool(list_jobs(reading, caller.tenant, limit=1).jobs)


def _ended(*pages: RunPage | Failed) -> list[RunSummary]:
    """Return the runs of the pages that could be read, the latest end first."""
    runs = [run for page in pages if isinstance(page, RunPage) for run in page.runs]
    return sorted(runs, key=lambda run: run.finished_at or run.scheduled_at, reverse=True)


def _of_fleet(fleet: FleetStatus | Failed | None) -> Iterator[Need]:
    if not isinstance(fleet, FleetStatus):
        return
    for each in fleet.problems:
        yield Need(each.severity is Severity.ERROR, each.what, each.evidence, each.remedy)
    if fleet.overdue_timers:
        words = f"{counted(fleet.overdue_timers, 'timer')} of jobs overdue: their occurrences have not fired"
        yield Need(_BAD, words, f"the oldest for {duration(fleet.overdue_by)}", "tidewheel doctor")
    for outbox in fleet.outbox:
        if outbox.oldest > _LATE:
            words = f"messages of lane {outbox.lane} wait for a relay"
            yield Need(
                _SLIGHT, words, f"{outbox.due:,} are due, the oldest for {duration(outbox.oldest)}", "tidewheel status"
            )


def _of_freezes(fleet: FleetStatus | Failed | None, freezes: Sequence[FreezeSummary] | Failed) -> Iterator[Need]:
    """Yield the freezes of a tenant, whose reader does not see the fleet's findings."""
    if isinstance(fleet, FleetStatus) or isinstance(freezes, Failed):
        return
    for each in freezes:
        yield Need(_SLIGHT, f"runs of {each.freeze.scope} do not start", each.freeze.words)


def _of_failures(ended: Sequence[RunSummary]) -> Iterator[Need]:
    """Yield the jobs with several failures among the latest."""
    by_job: dict[UUID, list[RunSummary]] = {}
    for run in ended:
        by_job.setdefault(run.job_id, []).append(run)
    for job_id, runs in sorted(by_job.items(), key=lambda item: -len(item[1])):
        if len(runs) >= _IN_A_ROW:
            errors = ", ".join(dict.fromkeys(run.error_type or run.reason or run.status for run in runs[:10]))
            words = f"{len(runs)} runs failed within a day"
            yield Need(_SLIGHT, words, f"by {errors}", key=runs[0].key, job_id=job_id)


def _sentence(needs: int, parts: Sequence[object], *, has_jobs: bool) -> str:
    """Return how all is; all is well only where every part was read, the fleet with them."""
    if needs:
        return f"{counted(needs, 'thing')} need{'s' if needs == 1 else ''} you."
    if any(isinstance(each, Failed) for each in parts):
        return "A part could not be read. The others show nothing that needs you."
    if not has_jobs:
        return "No job yet."
    return "All well." if parts[0] is not None else "Nothing of this tenant needs you."
