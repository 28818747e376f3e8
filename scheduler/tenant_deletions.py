"""Delete tenants: their jobs and runs end as by requests, then their rows are removed, table by table.

From the acceptance on no request finds the tenant, and no claim starts a run of it. Each step is one transaction. The
row of the deletion has the counts and the position: after a crash the next step begins where the last committed one
ended.

*Stopping.* Jobs are deleted, occurrences of workflows and runs are cancelled. A running attempt gets the signal, and
its executor ends it. Firing has the same thread: so this takes a share of the time and waits 50 ms at most for a row.
It ends when nothing is under way: no open run, no release, no transaction that may have found the tenant.

*Removing.* A pass goes over all tables with a column `tenant`, as the catalog has them: so no new table is left out.
Where an index begins with the tenant, the pass reads the rows of the tenant alone. Else it reads the table by pages.
The last pass finds no row.
"""

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import LiteralString, NamedTuple, cast
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.migrations.runner import created_names
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn, RowsLocked, Session, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.faults import faults
from tidewheel.scheduler.bulk_cancel import TO_CANCEL, CancelResult, Candidate, end_candidates
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.tenant_deletions import TENANT_DELETED
from tidewheel.transitions.timers import drop_timers
from tidewheel.transitions.workflows import cancel_open_runs, lock_workflows

_LOG = logging.getLogger("tidewheel.scheduler")

_SET_WAITS = Statements("tidewheel.transitions")["set_waits"]
_SQL = Statements("tidewheel.scheduler")
_FIND_OPEN_DELETIONS = _SQL["find_open_deletions"]
_LOCK_DELETION = _SQL["lock_deletion"]
_BEGIN_DELETION = _SQL["begin_deletion"]
_COUNT_STOPPED = _SQL["count_stopped"]
_STOP_BACKFILLS_OF = _SQL["stop_backfills_of"]
_STOP_REDRIVES_OF = _SQL["stop_redrives_of"]
_FIND_JOBS_OF = _SQL["find_jobs_of"]
_LOCK_TIMERS_TO_DROP = _SQL["lock_timers_to_drop"]
_LOCK_JOBS_TO_DROP = _SQL["lock_jobs_to_drop"]
_DROP_CALENDARS_OF_JOBS = _SQL["drop_calendars_of_jobs"]
_MARK_JOBS_DELETED = _SQL["mark_jobs_deleted"]
_FIND_WORKFLOWS_OF = _SQL["find_workflows_of"]
_FIND_RUNS_OF = _SQL["find_runs_of"]
_HAS_SETTLED = _SQL["has_settled"]
_IS_QUIET = _SQL["is_quiet"]
_BEGIN_REMOVING = _SQL["begin_removing"]
_END_CANCELLATION_OF = _SQL["end_cancellation_of"]
_FIND_TENANT_TABLES = _SQL["find_tenant_tables"]
_ADVANCE_DELETION = _SQL["advance_deletion"]
_FINISH_DELETION = _SQL["finish_deletion"]

# The table is a name of the catalog, so these are no statements of queries.sql.
_REMOVE_INDEXED: LiteralString = """
DELETE FROM {0} WHERE ctid = ANY (ARRAY(SELECT r.ctid FROM {0} AS r WHERE r.tenant = %(tenant)s LIMIT %(limit)s))
"""
_REMOVE_IN_PAGES: LiteralString = """
DELETE FROM {0} WHERE ctid >= %(first)s::text::tid AND ctid < %(end)s::text::tid AND tenant = %(tenant)s
"""

_POLL_SECONDS = 1.0  # between two looks for a deletion
_EVERY_SECONDS = 0.2  # between two steps of the deletions that are under way
_SHARE_SECONDS = 0.05  # of each step; a transaction that has begun by then is the last, since firing comes first
_LOCK_TIMEOUT = "50ms"  # for a row that another transaction holds: firing waits meanwhile
_WAIT_SECONDS = 1.0  # until the next try, where other transactions hold rows or attempts are being stopped
_LONGEST_WAIT_SECONDS = 30.0  # each pass that has stopped nothing adds a second: a dump may be open for hours
_AFTER_FAILURE_SECONDS = 60.0  # until the next pass, after one whose runs could not be ended
_JOBS = 200  # of one transaction: tens of milliseconds, as of the others
_RUNS = 500
_WORKFLOWS = 10  # each may have thousands of runs to cancel
_REMOVED_ROWS = 1000
_PAGES = 64  # half a megabyte, and no more than some thousand rows

_NOWHERE, _LAST = UUID(int=0), UUID(int=(1 << 128) - 1)
_DAYS_WRITTEN = timedelta(days=2)  # a run ends, or an attempt starts, on the day of the acceptance or later
_DAY = re.compile(r"_\d{8}$")  # the end of a partition's name

# No pass removes rows of these: runs end, the audit log stays, the deletion itself reserves the name.
KEPT = frozenset({"job_runs", "audit_log", "tenant_deletions"})


class _Deletion(NamedTuple):
    """The deletion of a tenant, locked."""

    tenant: str
    accepted_at: datetime
    state: str
    begun: bool
    removed: Mapping[str, int]
    round: int
    round_rows: int
    at_table: str | None
    at_page: int


class _Table(NamedTuple):
    """A table or a partition with a tenant; `indexed` if an index begins with it."""

    name: str
    indexed: bool
    pages: int


@dataclass(frozen=True, slots=True)
class _Job:
    """A job to delete, locked."""

    job_id: UUID
    tenant: str
    key: str
    version: int
    shard: int


class _Part(Enum):
    """The parts of a pass that stops a tenant, in their order."""

    ORIGINS = auto()
    """What makes runs without a timer: backfills, redrives, occurrences of workflows, batches."""
    JOBS = auto()
    RUNS = auto()
    END = auto()


@dataclass(slots=True)
class _Pass:
    """The position of a pass that stops a tenant; a process that dies costs a pass.

    Args:
        part: What comes next.
        settled: True if no transaction is open that may have found the tenant.
        no_jobs: True if a whole pass since then has found no job: there will be none.
        key: The last job that was looked at.
        run_id: The last run that was looked at.
        found: The number of rows to stop that the pass has found.
        found_jobs: How many of these are jobs.
        stopped: How many of these it has stopped.
        singly: The number of runs to end one by one, after a batch that failed.
        failed: True if a run could not be ended.
        waits: How many passes before this one have stopped nothing.
        not_before: The monotonic time of the next step.
    """

    part: _Part = _Part.ORIGINS
    settled: bool = False
    no_jobs: bool = False
    key: str = ""
    run_id: UUID = _NOWHERE
    found: int = 0
    found_jobs: int = 0
    stopped: int = 0
    singly: int = 0
    failed: bool = False
    waits: int = 0
    not_before: float = 0.0


class TenantDeletions:
    """Works off the deletions of tenants.

    Args:
        session: Of the scheduler.
        installation: For the events of jobs and runs.
        keep: How long the name of a deleted tenant is reserved: as long as partitions of its time exist.
    """

    def __init__(self, session: Session, installation: Installation, keep: timedelta) -> None:
        self._session, self._installation, self._keep = session, installation, keep
        self._passes: dict[str, _Pass] = {}
        self._next = 0.0

    def step(self) -> tuple[CancelResult, float]:
        """Work on each deletion for its part of `_SHARE_SECONDS`.

        Returns:
            The number of runs that ended or were requested to stop, and the seconds until the next step.

        Raises:
            Unavailable: The database does not answer.
        """
        done, now = CancelResult(), monotonic_seconds()
        if now < self._next:
            return done, self._next - now if self._passes else math.inf
        with self._session.transaction() as connection:
            rows = cast("list[tuple[str]]", connection.execute(_FIND_OPEN_DELETIONS, binary=True).fetchall())
        self._passes = {tenant: self._passes.get(tenant) or _Pass() for (tenant,) in rows}
        due = [(tenant, at) for tenant, at in self._passes.items() if at.not_before <= now]
        for number, (tenant, at) in enumerate(due, 1):
            until = now + _SHARE_SECONDS * number / len(due)
            while self._advance(tenant, at, done) and monotonic_seconds() < until:
                pass
        self._next = monotonic_seconds() + (_EVERY_SECONDS if rows else _POLL_SECONDS)
        return done, _EVERY_SECONDS if rows else math.inf

    def _advance(self, tenant: str, at: _Pass, done: CancelResult) -> bool:
        """Commit one transaction of a deletion; return True if more can be done at once."""
        runs: list[Candidate] = []
        try:
            with self._session.transaction() as connection:
                connection.execute(_SET_WAITS, {"lock_timeout": _LOCK_TIMEOUT})
                deletion = _lock(connection, tenant)
                if deletion is None:
                    return False  # another scheduler works on it, or has ended it
                if deletion.state == "removing":
                    more = self._remove(connection, deletion)
                elif at.part is _Part.RUNS:
                    runs = _find_runs(connection, tenant, at)
                    self._end_runs(connection, tenant, at, runs, done)
                    more = True
                else:
                    more = self._stop(connection, deletion, at)
                failpoint("deleting.before_commit")
            failpoint("deleting.after_commit")
        except RowsLocked as error:
            _LOG.info("the deletion of tenant %s goes on in %.0f s: %s", tenant, _WAIT_SECONDS, error)
            at.not_before = monotonic_seconds() + _WAIT_SECONDS
            return False
        except Unavailable:
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

    def _stop(self, connection: Conn, deletion: _Deletion, at: _Pass) -> bool:
        """Do the next part of a pass other than its runs."""
        columns: dict[str, object] = {"tenant": deletion.tenant, "reason": TENANT_DELETED}
        match at.part:
            case _Part.ORIGINS:
                if not deletion.begun:
                    connection.execute(_BEGIN_DELETION, columns)
                elif not at.settled:
                    at.settled = _is_true(connection, _HAS_SETTLED, deletion.tenant)
                stopped = connection.execute(_STOP_BACKFILLS_OF, columns).rowcount
                stopped += connection.execute(_STOP_REDRIVES_OF, columns).rowcount
                workflows = _cancel_workflows(connection, deletion.tenant)
                at.found += stopped + workflows
                at.stopped += stopped + workflows
                if workflows < _WORKFLOWS:
                    at.part, at.key, at.found_jobs = _Part.RUNS if at.no_jobs else _Part.JOBS, "", 0
            case _Part.JOBS:
                self._delete_jobs(connection, deletion.tenant, at)
            case _:
                return self._end_pass(connection, deletion, at)
        return True

    def _delete_jobs(self, connection: Conn, tenant: str, at: _Pass) -> None:
        """Delete the next jobs of a pass, as `job.delete` does, but their overdue occurrences do not fire."""
        columns = {"tenant": tenant, "after": at.key, "limit": _JOBS}
        found = cast("list[tuple[UUID, str]]", connection.execute(_FIND_JOBS_OF, columns, binary=True).fetchall())
        ids = [job_id for job_id, _ in found]
        timers = read_ids(connection, _LOCK_TIMERS_TO_DROP, {"job_ids": uuids(ids)})
        with connection.cursor(row_factory=class_row(_Job), binary=True) as cursor:
            jobs = cursor.execute(_LOCK_JOBS_TO_DROP, {"job_ids": uuids(ids), "locked": uuids(timers)}).fetchall()
        if jobs:
            now = read_now(connection)
            locked = [job.job_id for job in jobs]
            drop_timers(connection, locked)
            connection.execute(_DROP_CALENDARS_OF_JOBS, {"job_ids": uuids(locked)})
            connection.execute(_MARK_JOBS_DELETED, {"job_ids": uuids(locked), "now": now})
            reasons = dict.fromkeys(locked, TENANT_DELETED)
            append_job_events(connection, self._installation, "job.deleted", jobs, now=now, reasons=reasons)
            connection.execute(_COUNT_STOPPED, {"tenant": tenant, "jobs": len(jobs), "runs": 0})
        at.found += len(found)
        at.found_jobs += len(found)
        at.stopped += len(jobs)
        if len(found) == _JOBS:
            at.key = found[-1][1]
            return
        at.no_jobs = at.settled and at.found_jobs == 0
        at.part, at.run_id = _Part.RUNS, _NOWHERE

    def _end_runs(self, connection: Conn, tenant: str, at: _Pass, runs: list[Candidate], done: CancelResult) -> None:
        """Cancel runs of a pass: a running attempt gets the signal, every other run ends."""
        ended = end_candidates(connection, self._installation, runs, TENANT_DELETED)
        number = ended.ended + ended.signalled
        if number:
            connection.execute(_COUNT_STOPPED, {"tenant": tenant, "jobs": 0, "runs": number})
        done.ended += ended.ended
        done.signalled += ended.signalled
        at.found += len(runs)
        at.stopped += number
        if runs:
            at.run_id, at.singly = runs[-1].run_id, max(0, at.singly - 1)
        else:
            at.part = _Part.END

    def _end_pass(self, connection: Conn, deletion: _Deletion, at: _Pass) -> bool:
        """Begin to remove rows if the pass has found nothing and nothing can come; else begin another pass."""
        tenant, next_pass = deletion.tenant, _Pass(settled=at.settled, no_jobs=at.no_jobs)
        quiet = at.found == 0 and at.no_jobs and _is_true(connection, _IS_QUIET, tenant)
        if quiet:
            connection.execute(_BEGIN_REMOVING, {"tenant": tenant})
            # There is no run that a claim could take: claims are spared to consult it.
            connection.execute(_END_CANCELLATION_OF, {"tenant": tenant, "reason": TENANT_DELETED})
            _LOG.info("the jobs and runs of tenant %s have ended; its rows are removed", tenant)
        elif at.stopped == 0:
            next_pass.waits = at.waits + 1
            wait = min(at.waits * _WAIT_SECONDS, _LONGEST_WAIT_SECONDS)
            next_pass.not_before = monotonic_seconds() + (_AFTER_FAILURE_SECONDS if at.failed else wait)
        self._passes[tenant] = next_pass
        return False

    def _remove(self, connection: Conn, deletion: _Deletion) -> bool:
        """Remove the next rows; end the deletion after a pass that has found none."""
        tables = _tables(connection, deletion)
        names = [table.name for table in tables]
        # A partition that was dropped meanwhile begins the pass again.
        place = names.index(deletion.at_table) if deletion.at_table in names else 0
        page = deletion.at_page if deletion.at_table in names else 0
        removed, rows, until = dict(deletion.removed), 0, monotonic_seconds() + _SHARE_SECONDS
        while place < len(tables) and rows < _REMOVED_ROWS and monotonic_seconds() < until:
            table = tables[place]
            number, page = _remove_some(connection, deletion.tenant, table, page)
            if number:
                kind = _DAY.sub("", table.name)
                removed[kind] = removed.get(kind, 0) + number
                rows += number
            if page >= table.pages:
                place, page = place + 1, 0
        rows += deletion.round_rows
        if place == len(tables) and rows == 0:
            connection.execute(_FINISH_DELETION, {"tenant": deletion.tenant, "keep": self._keep})
            _LOG.info("the tenant %s is deleted, with %d rows", deletion.tenant, sum(removed.values()))
            return False
        ended = place == len(tables)
        columns: dict[str, object] = {
            "tenant": deletion.tenant,
            "removed": Jsonb(removed),
            "round": deletion.round + ended,
            "round_rows": 0 if ended else rows,
            "at_table": None if ended else names[place],
            "at_page": page,
        }
        connection.execute(_ADVANCE_DELETION, columns)
        return True


def _fault(tenant: str) -> str:
    return f"deletion of tenant {tenant}"


def _lock(connection: Conn, tenant: str) -> _Deletion | None:
    with connection.cursor(row_factory=class_row(_Deletion), binary=True) as cursor:
        return cursor.execute(_LOCK_DELETION, {"tenant": tenant}).fetchone()


def _is_true(connection: Conn, statement: LiteralString, tenant: str) -> bool:
    return connection.execute(statement, {"tenant": tenant}).fetchone() == (True,)


def _cancel_workflows(connection: Conn, tenant: str) -> int:
    """Cancel some open occurrences and batches: no drain writes runs of theirs from the commit on."""
    roots = read_ids(connection, _FIND_WORKFLOWS_OF, {"tenant": tenant, "limit": _WORKFLOWS})
    if not roots:
        return 0
    for workflow in lock_workflows(connection, roots).values():
        if workflow.state in ("open", "paused"):
            cancel_open_runs(connection, workflow, "cancelling", reason=TENANT_DELETED, cause=TENANT_DELETED)
    return len(roots)


def _find_runs(connection: Conn, tenant: str, at: _Pass) -> list[Candidate]:
    columns: dict[str, object] = {
        "tenant": tenant, "after": at.run_id, "last": _LAST, "states": TO_CANCEL,
        "limit": 1 if at.singly else _RUNS,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(Candidate), binary=True) as cursor:
        return cursor.execute(_FIND_RUNS_OF, columns).fetchall()


def _bisect(tenant: str, at: _Pass, runs: list[Candidate]) -> None:
    """Go on after a batch of runs that failed: with each of them alone, without the one that failed alone."""
    if len(runs) > 1:
        _LOG.warning("%d runs of tenant %s cannot be ended together; they are ended one by one", len(runs), tenant)
        at.singly = len(runs)
        return
    run_id = runs[0].run_id
    _LOG.exception(
        "run %s of tenant %s cannot be ended; the next pass tries it again",
        run_id,
        tenant,
        extra={"run_id": str(run_id)},
    )
    at.run_id, at.singly, at.failed = run_id, max(0, at.singly - 1), True
    at.found += 1


def _tables(connection: Conn, deletion: _Deletion) -> list[_Table]:
    """Return the tables of a pass; the second and later ones leave out partitions that nothing writes."""
    oldest = deletion.accepted_at - _DAYS_WRITTEN
    columns: dict[str, object] = {
        "names": [name for name in created_names() if name not in KEPT],
        "oldest": f"{oldest:%Y%m%d}" if deletion.round > 1 else "",
    }
    with connection.cursor(row_factory=class_row(_Table), binary=True) as cursor:
        return cursor.execute(_FIND_TENANT_TABLES, columns).fetchall()


def _remove_some(connection: Conn, tenant: str, table: _Table, page: int) -> tuple[int, int]:
    """Remove some rows of a table; return their number and the next page, at the end that behind the last."""
    if not table.indexed and page >= table.pages:
        return 0, table.pages
    name = sql.Identifier(table.name)
    if table.indexed:
        columns: dict[str, object] = {"tenant": tenant, "limit": _REMOVED_ROWS}
        rows = connection.execute(sql.SQL(_REMOVE_INDEXED).format(name), columns).rowcount
        return rows, 0 if rows == _REMOVED_ROWS else max(1, table.pages)
    end = page + _PAGES
    columns = {"tenant": tenant, "first": f"({page},0)", "end": f"({end},0)"}
    return connection.execute(sql.SQL(_REMOVE_IN_PAGES).format(name), columns).rowcount, end
