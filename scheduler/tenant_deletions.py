"""Delete tenants: their jobs and runs end as by requests, then their rows are removed, table by table.

From the acceptance on no request finds the tenant, and no claim starts a run of it. The work has a thread and a
connection of its own, in the scheduler that owns the first shard. Each step is one transaction. The row of the deletion
has the counts and the position: after a crash the next step begins where the last committed one ended.

*Stopping.* Jobs are deleted, occurrences of workflows and runs are cancelled. A running attempt gets the signal, and
its executor ends it. Rows that other transactions hold are left to the next pass. It ends when nothing is under way: no
open run, no release, no transaction that may have found the tenant.

*Removing.* Then `tenant_rows.py` removes the rows.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import LiteralString, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import InstallationFault, Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, RowsLocked, Session, read_ids, read_row, read_rows
from tidewheel.postgres.session_kinds import BackgroundQuery
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.logs import faults
from tidewheel.scheduler.cancels import TO_CANCEL, CancelResult, Candidate, end_candidates
from tidewheel.scheduler.tenant_rows import Deletion, TenantRows
from tidewheel.transitions.events import ChangedJob, append_job_events
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.tenant_refusals import TENANT_DELETED
from tidewheel.transitions.tenant_taking import cancel_tenant, take_tenant
from tidewheel.transitions.timers import drop_timers
from tidewheel.transitions.workflows import cancel_open_runs, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]
_SQL = Statements("tidewheel.scheduler")

_POLL_SECONDS = 1.0  # between two looks for a deletion
_SHARE_SECONDS = 0.2  # of work, then a pause that is as long: the other half of the time is for firing
_LOCK_TIMEOUT = "50ms"  # for a row that another transaction holds: others wait for the rows that this one has locked
_WAIT_SECONDS = 1.0  # until the next try, where other transactions hold rows or attempts are being stopped
_LONGEST_WAIT_SECONDS = 30.0  # each pass that has stopped nothing adds a second: a dump may be open for hours
_AFTER_FAILURE_SECONDS = 60.0  # until the next pass, after one whose runs could not be ended
_JOBS = 200  # of one transaction: tens of milliseconds, as of the others
_SCANNED_JOBS = 10_000  # of one statement, deleted ones among them: about ten milliseconds
_RUNS = 500
_WORKFLOWS = 10  # each may have thousands of runs to cancel
_DUE_RELEASES = 10_000  # that one statement looks at: about ten milliseconds

_NOWHERE, _LAST = UUID(int=0), UUID(int=(1 << 128) - 1)


class _Part(Enum):
    """The parts of a pass that stops a tenant, in their order."""

    ORIGINS = auto()
    """What makes runs without a timer: backfills, works, occurrences of workflows, batches."""
    JOBS = auto()
    RUNS = auto()
    END = auto()


@dataclass(slots=True)
class _Pass:
    """The position of a pass that stops a tenant; a process that dies costs a pass."""

    part: _Part = _Part.ORIGINS
    settled: bool = False  # no transaction is open that may have found the tenant
    no_jobs: bool = False  # a whole pass since then has found no job: there will be none
    jobs_done: bool = False  # the last look at the jobs has left none; others may come until the tenant is settled
    root_id: UUID = _NOWHERE
    key: str = ""
    run_id: UUID = _NOWHERE
    found: int = 0  # rows to stop
    found_jobs: int = 0  # jobs among these
    left_jobs: int = 0  # jobs that other transactions held
    stopped: int = 0
    singly: int = 0  # runs to end one by one, after a batch that failed
    failed: bool = False
    waits: int = 0  # passes before this one that have stopped nothing
    not_before: float = 0.0


class TenantDeletions(BackgroundQuery[CancelResult]):
    """Works off the deletions of tenants on its own thread and connection, which it closes.

    The name of a deleted tenant is reserved for `keep`: as long as partitions of its time exist.
    """

    def __init__(self, session: Session, installation: Installation, keep: timedelta) -> None:
        super().__init__(session, "deletions")
        self._installation = installation
        self._passes: dict[str, _Pass] = {}
        self._rows = TenantRows(installation, keep)
        self._next = 0.0

    def step(self, *, deletes: bool) -> tuple[CancelResult, float]:
        """Start the next part of the work if this scheduler deletes and its time has come.

        Return the result of the last part, and the seconds until the next step should come.

        Raises:
            InstallationFault: The database refuses the work.
        """
        done = self.take() or CancelResult()
        if not self.busy:
            if not deletes:
                self._passes.clear()  # another scheduler goes on from the rows; what this one has seen grows old
            elif monotonic_seconds() >= self._next:
                self.start(self._work_apart)
        return done, _SHARE_SECONDS if self._passes else math.inf

    def work(self) -> CancelResult:
        """Work on each deletion for its part of `_SHARE_SECONDS`."""
        done, now = CancelResult(), monotonic_seconds()
        with self._session.transaction() as connection:
            rows = cast(
                "list[tuple[str, bool]]", connection.execute(_SQL["find_open_deletions"], binary=True).fetchall()
            )
        accepted = [tenant for tenant, is_due in rows if not is_due or self._take(tenant)]
        self._passes = {tenant: self._passes.get(tenant) or _Pass() for tenant in accepted}
        self._rows.forget_tables()
        due = [(tenant, at) for tenant, at in self._passes.items() if at.not_before <= now]
        for number, (tenant, at) in enumerate(due, 1):
            until = now + _SHARE_SECONDS * number / len(due)
            while self._advance(tenant, at, done) and monotonic_seconds() < until and not self.closing:
                pass
        return done

    def _work_apart(self) -> CancelResult:
        done = CancelResult()
        try:
            done = self.work()
        except InstallationFault:
            raise
        except Unavailable as error:
            _LOG.warning("the deletion of tenants is interrupted: %s; the scheduler tries again in a second", error)
        finally:
            self._next = monotonic_seconds() + (_SHARE_SECONDS if self._passes else _POLL_SECONDS)
        return done

    def _take(self, tenant: str) -> bool:
        """Begin a deletion whose time of grace is over; return False if it was taken back meanwhile.

        Claims under way may start runs of it: the first pass stops them.
        """
        with self._session.transaction() as connection:
            taken = take_tenant(connection, tenant, at_once=False)
            if taken:
                cancel_tenant(connection, tenant)
        return taken

    def _advance(self, tenant: str, at: _Pass, done: CancelResult) -> bool:
        """Commit one transaction of a deletion; return True if more can be done at once."""
        runs: list[Candidate] = []
        try:
            with self._session.transaction() as connection:
                connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
                deletion = read_row(connection, class_row(Deletion), _SQL["lock_deletion"], {"tenant": tenant})
                if deletion is None:
                    return False  # another scheduler works on it, or has ended it
                if deletion.state == "removing":
                    more = self._rows.remove(connection, deletion)
                elif at.part is _Part.RUNS:
                    runs = _find_runs(connection, tenant, at)
                    self._end_runs(connection, tenant, at, runs, done)
                    more = True
                else:
                    more = self._stop(connection, deletion, at)
                failpoint("deleting.before_commit")
            failpoint("deleting.after_commit")
        except RowsLocked as error:
            _LOG.info("the deletion of tenant %s continues in %.0f s: %s", tenant, _WAIT_SECONDS, error)
            at.not_before = monotonic_seconds() + _WAIT_SECONDS
            return False
        except (Unavailable, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - one tenant stops no other
            if runs:
                _bisect(tenant, at, runs)
                return True
            # The deletions of other tenants go on.
            _LOG.exception("the deletion of tenant %s has failed", tenant)
            faults.report(_fault(tenant), f"{type(error).__name__}: {error}")
            at.not_before = monotonic_seconds() + _AFTER_FAILURE_SECONDS
            return False
        faults.clear(_fault(tenant))
        return more

    def _stop(self, connection: Conn, deletion: Deletion, at: _Pass) -> bool:
        """Do the next part of a pass other than its runs."""
        columns: dict[str, object] = {"tenant": deletion.tenant, "reason": TENANT_DELETED}
        match at.part:
            case _Part.ORIGINS:
                if not deletion.begun:
                    connection.execute(_SQL["begin_deletion"], columns)
                elif not at.settled:
                    at.settled = _is_true(connection, _SQL["has_settled"], columns)
                stopped = connection.execute(_SQL["stop_backfills_of"], columns).rowcount
                connection.execute(_SQL["stop_old_redrives_of"], columns)
                stopped += connection.execute(_SQL["stop_works_of"], columns).rowcount
                roots = _cancel_workflows(connection, deletion.tenant, at.root_id)
                at.found += stopped + len(roots)
                at.stopped += stopped + len(roots)
                if len(roots) == _WORKFLOWS:
                    at.root_id = max(roots)
                else:
                    skips_jobs = at.no_jobs or (at.jobs_done and not at.settled)
                    at.part = _Part.RUNS if skips_jobs else _Part.JOBS
            case _Part.JOBS:
                self._delete_jobs(connection, deletion.tenant, at)
            case _:
                return self._end_pass(connection, deletion, at)
        return True

    def _delete_jobs(self, connection: Conn, tenant: str, at: _Pass) -> None:
        """Delete the next jobs of a pass, as `job.delete` does, but their overdue occurrences do not fire."""
        columns = {"tenant": tenant, "after": at.key, "limit": _JOBS, "scan_limit": _SCANNED_JOBS}
        rows = connection.execute(_SQL["find_jobs_of"], columns, binary=True).fetchall()
        found = cast("list[tuple[UUID, str, bool, bool]]", rows)
        ids = [job_id for job_id, _, is_live, _ in found if is_live]
        timers = read_ids(connection, _SQL["lock_timers_to_drop"], {"job_ids": uuids(ids)})
        drop = {"job_ids": uuids(ids), "locked": uuids(timers)}
        jobs = read_rows(connection, class_row(ChangedJob), _SQL["lock_jobs_to_drop"], drop)
        if jobs:
            now = read_now(connection)
            locked = [job.job_id for job in jobs]
            drop_timers(connection, locked)
            connection.execute(_SQL["drop_calendars_of_jobs"], {"job_ids": uuids(locked)})
            connection.execute(_SQL["mark_jobs_deleted"], {"job_ids": uuids(locked), "now": now})
            reasons = dict.fromkeys(locked, TENANT_DELETED)
            append_job_events(connection, self._installation, "job.deleted", jobs, now=now, reasons=reasons)
            connection.execute(_SQL["count_stopped"], {"tenant": tenant, "jobs": len(jobs), "runs": 0})
        at.found += len(ids)
        at.found_jobs += len(ids)
        at.left_jobs += len(ids) - len(jobs)
        at.stopped += len(jobs)
        if len(found) == _JOBS or (found and found[-1][3]):
            at.key = found[-1][1]
            return
        at.no_jobs, at.jobs_done = at.settled and at.found_jobs == 0, at.left_jobs == 0
        at.part, at.run_id = _Part.RUNS, _NOWHERE

    def _end_runs(self, connection: Conn, tenant: str, at: _Pass, runs: list[Candidate], done: CancelResult) -> None:
        """Cancel runs of a pass: a running attempt gets the signal, every other run ends."""
        ended = end_candidates(connection, self._installation, runs, TENANT_DELETED)
        number = ended.ended + ended.signalled
        if number:
            connection.execute(_SQL["count_stopped"], {"tenant": tenant, "jobs": 0, "runs": number})
        done.ended += ended.ended
        done.signalled += ended.signalled
        at.found += len(runs)
        at.stopped += number
        if runs:
            at.run_id, at.singly = runs[-1].run_id, max(0, at.singly - 1)
        else:
            at.part = _Part.END

    def _end_pass(self, connection: Conn, deletion: Deletion, at: _Pass) -> bool:
        """Begin to remove rows if the pass has found nothing and nothing can come; else begin another pass."""
        tenant = deletion.tenant
        next_pass = _Pass(settled=at.settled, no_jobs=at.no_jobs, jobs_done=at.jobs_done)
        columns: dict[str, object] = {
            "tenant": tenant,
            "shards": list(range(self._installation.shards)),
            "limit": _DUE_RELEASES,
        }
        quiet = at.found == 0 and at.no_jobs and _is_true(connection, _SQL["is_quiet"], columns)
        if quiet:
            connection.execute(_SQL["begin_removing"], {"tenant": tenant})
            # There is no run that a claim could take: claims are spared to consult it.
            connection.execute(_SQL["end_cancellation_of"], {"tenant": tenant, "reason": TENANT_DELETED})
            _LOG.info("the jobs and runs of tenant %s have ended; its rows are removed", tenant)
        elif at.stopped == 0:
            next_pass.waits = at.waits + 1
            wait = min(at.waits * _WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
            next_pass.not_before = monotonic_seconds() + (_AFTER_FAILURE_SECONDS if at.failed else wait)
        self._passes[tenant] = next_pass
        return False


def _fault(tenant: str) -> str:
    return f"deletion of tenant {tenant}"


def _is_true(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> bool:
    return connection.execute(statement, columns).fetchone() == (True,)


def _cancel_workflows(connection: Conn, tenant: str, after: UUID) -> set[UUID]:
    """Cancel the next open occurrences and batches: no drain writes runs of theirs from the commit on."""
    roots = read_ids(connection, _SQL["find_workflows_of"], {"tenant": tenant, "after": after, "limit": _WORKFLOWS})
    for workflow in lock_workflows(connection, roots).values() if roots else ():
        if workflow.state in ("open", "paused"):
            cancel_open_runs(connection, workflow, "cancelling", reason=TENANT_DELETED, cause=TENANT_DELETED)
    return roots


def _find_runs(connection: Conn, tenant: str, at: _Pass) -> list[Candidate]:
    columns: dict[str, object] = {
        "tenant": tenant, "after": at.run_id, "last": _LAST, "states": TO_CANCEL,
        "limit": 1 if at.singly else _RUNS,
    }  # fmt: skip
    return read_rows(connection, class_row(Candidate), _SQL["find_runs_of"], columns)


def _bisect(tenant: str, at: _Pass, runs: list[Candidate]) -> None:
    """Go on after a batch of runs that failed: with each of them alone, without the one that failed alone."""
    if len(runs) > 1:
        _LOG.warning(
            "ending %d runs of tenant %s together failed; the scheduler ends them one by one", len(runs), tenant
        )
        at.singly = len(runs)
        return
    run_id = runs[0].run_id
    text = "the scheduler cannot end run %s of tenant %s; the next pass tries again"
    _LOG.exception(text, run_id, tenant, extra={"run_id": str(run_id)})
    at.run_id, at.singly, at.failed = run_id, max(0, at.singly - 1), True
    at.found += 1
