"""Read the present of a tenant: what needs a person, what is due, what runs, what ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.activity import on_time_rate, read_activity
from tidewheel.control.reads.backlog import Backlog, OpenRuns, read_open_runs
from tidewheel.control.reads.findings import Severity
from tidewheel.control.reads.freezes import FreezeSummary, list_freezes
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.status import FleetStatus
from tidewheel.control.reads.upcoming import UpcomingJobs, read_upcoming
from tidewheel.control.reads.waits import LEASE, WaitCode
from tidewheel.ids import first_run_id
from tidewheel.jobs.values import format_duration
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

_SQL = Statements("tidewheel.control")
_FIND_FAILING_JOBS = _SQL["find_failing_jobs"]
_FIND_SET_ASIDE = _SQL["find_set_aside"]
_COUNT_SLOTS = _SQL["count_slots"]

_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
_IN_A_ROW = 3
_FAILURES = 1000  # of the last day that are looked at
_LATE = timedelta(seconds=30)
_SET_ASIDE = 20
_SETTLED = timedelta(seconds=5)  # an executor that has just started is known by then
_STUCK = frozenset({WaitCode.NO_EXECUTOR, WaitCode.NO_HANDLER, WaitCode.NO_TARGET})


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs a person.

    Args:
        kind: The kind: `freeze`, `fleet`, `failing_job`, `set_aside`, `waiting_runs`, `outbox` or `timers`.
        severity: Its effect on work.
        words: The fault, as a sentence.
        evidence: The figures that show it.
        since: Since when, if that is known.
        count: The number of runs, jobs or messages.
        remedy: A command, or a change, that corrects it.
        key: The job, if it is about one.
        job_id: Its id.
    """

    kind: str
    severity: Annotated[str, one_of(Severity)]
    words: str
    evidence: str = ""
    since: datetime | None = None
    count: int | None = None
    remedy: str = ""
    key: str | None = None
    job_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class DueNext:
    """The jobs whose timers come due.

    Args:
        jobs: Their number.
        at_least: True if there are more.
    """

    jobs: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of live executors.

    Args:
        busy: Runs of the tenant that hold one.
        all: All slots.
    """

    busy: int
    all: int


@dataclass(frozen=True, slots=True)
class Now:
    """The present of a tenant.

    Args:
        as_of: The database's clock.
        findings: What needs a person, the worst first.
        due_next_minute: The jobs that come due within a minute.
        running: The runs under way.
        slots: The slots of live executors.
        open: The open runs by state; `scheduled` are those before their time.
        open_at_least: True if there may be more open runs.
        ended_hour: The runs that ended within the last hour.
        failed_hour: Those of them that failed or timed out.
        on_time_rate: The share of those that were claimed within a second of their time; None without one.
    """

    as_of: datetime
    findings: tuple[Need, ...]
    due_next_minute: DueNext
    running: int
    slots: Slots
    open: Mapping[str, int]
    open_at_least: bool
    ended_hour: int
    failed_hour: int
    on_time_rate: float | None


@dataclass(frozen=True, slots=True)
class _Failing:
    key: str
    job_id: UUID
    failures: int
    since: datetime
    errors: list[str]


def read_now_of(
    connection: Conn, tenant: str, shards: int, fleet: FleetStatus | None, *, open_runs: OpenRuns | None = None
) -> Now:
    """Return the present of a tenant.

    Args:
        connection: Reads the rows.
        tenant: The tenant.
        shards: The number of shards of the installation.
        fleet: The fleet, for a reader who sees all tenants.
        open_runs: The tenant's open runs, if the caller has read them.
    """
    now = read_now(connection)
    found = open_runs or read_open_runs(connection, tenant)
    hour = read_activity(connection, tenant, [now - _HOUR, now + _HOUR])
    ended = hour.bins[0]
    failed = ended.failed + ended.timed_out
    upcoming = read_upcoming(connection, tenant, shards, [now, now + _MINUTE])
    return Now(
        as_of=now,
        findings=tuple(find_needs(connection, tenant, now, found, fleet)),
        due_next_minute=_due(upcoming),
        running=found.states.get(RunState.RUNNING, 0),
        slots=Slots(found.states.get(RunState.RUNNING, 0), _slots(connection)),
        open=found.states,
        open_at_least=found.at_least,
        ended_hour=ended.succeeded + failed + ended.cancelled + ended.skipped,
        failed_hour=failed,
        on_time_rate=on_time_rate(connection, tenant, now - _HOUR, now + _HOUR),
    )


def find_needs(connection: Conn, tenant: str, now: datetime, found: OpenRuns, fleet: FleetStatus | None) -> list[Need]:
    """Return what needs a person, the worst first."""
    needs = [
        *_of_fleet(fleet, tenant, now),
        *_of_freezes(list_freezes(connection, tenant, counts_all=False) if fleet is None else ()),
        *_of_jobs(connection, tenant, now),
        *_of_waits(found.waiting, now),
    ]
    return sorted(needs, key=lambda need: need.severity != Severity.ERROR)


def _due(upcoming: UpcomingJobs) -> DueNext:
    return DueNext(upcoming.jobs, upcoming.at_least)


def _slots(connection: Conn) -> int:
    row = connection.execute(_COUNT_SLOTS, {"lease": LEASE}, binary=True).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def _of_fleet(fleet: FleetStatus | None, tenant: str, now: datetime) -> Iterator[Need]:
    if fleet is None:
        return
    frozen = sum(each.check == "freezes" for each in fleet.problems)
    for each in fleet.problems:
        if each.check == "handlers" and f" in tenant {tenant}," in each.evidence:
            continue  # the waiting runs of the tenant say the same, with their lane
        kind = "freeze" if each.check == "freezes" else "fleet"
        since = fleet.freezes[0].since if kind == "freeze" and frozen == 1 else None
        yield Need(kind, each.severity, each.what, each.evidence, since, remedy=each.remedy)
    if fleet.overdue_timers:
        words = f"{fleet.overdue_timers:,} timers of jobs are overdue: their occurrences have not fired"
        evidence, since = f"the oldest for {_age(fleet.overdue_by)}", now - fleet.overdue_by
        yield Need("timers", Severity.ERROR, words, evidence, since, fleet.overdue_timers, "tidewheel doctor")
    for outbox in fleet.outbox:
        if outbox.oldest > _LATE:
            words = f"messages of lane {OutboxLane(outbox.lane)} wait for a relay"
            evidence = f"{outbox.due:,} are due, the oldest for {_age(outbox.oldest)}"
            yield Need("outbox", Severity.WARNING, words, evidence, now - outbox.oldest, outbox.due, "tidewheel status")


def _of_freezes(freezes: Sequence[FreezeSummary]) -> Iterator[Need]:
    """Yield the freezes for a reader who does not see the fleet's findings."""
    for each in freezes:
        words = f"a freeze is in force: runs of {each.freeze.scope} do not start"
        yield Need(
            "freeze", Severity.WARNING, words, each.freeze.words, each.freeze.since, each.waiting, "tidewheel freezes"
        )


def _of_jobs(connection: Conn, tenant: str, now: datetime) -> Iterator[Need]:
    columns: dict[str, object] = {
        "tenant": tenant,
        "first_id": first_run_id(now - _DAY),
        "look": _FAILURES,
        "least": _IN_A_ROW,
        "since": now - _DAY,
    }
    with connection.cursor(row_factory=class_row(_Failing), binary=True) as cursor:
        failing = cursor.execute(_FIND_FAILING_JOBS, columns).fetchall()
    for job in failing:
        errors = ", ".join(error for error, _ in groupby(job.errors))
        words = f"its last {job.failures:,} runs failed"
        yield Need(
            "failing_job", Severity.ERROR, words, errors, job.since, job.failures, key=job.key, job_id=job.job_id,
            remedy=f"tidewheel run list --job {job.key} --status failed",
        )  # fmt: skip
    rows = connection.execute(_FIND_SET_ASIDE, {"tenant": tenant, "limit": _SET_ASIDE}, binary=True).fetchall()
    for key, job_id, error, since in rows:
        assert isinstance(job_id, UUID)  # noqa: S101 - the column's type
        assert isinstance(since, datetime)  # noqa: S101 - the column's type
        words = "it is set aside: its next time could not be computed"
        yield Need(
            "set_aside", Severity.ERROR, words, str(error), since, key=str(key), job_id=job_id,
            remedy="tidewheel job release",
        )  # fmt: skip


def _of_waits(waiting: Sequence[Backlog], now: datetime) -> Iterator[Need]:
    for each in waiting:
        if each.why is None or each.why.code not in _STUCK or now - each.oldest_at < _SETTLED:
            continue
        runs = "run waits" if each.count == 1 else "runs wait"
        evidence = f"{each.count:,}{'+' if each.at_least else ''} {runs} in queue {each.queue}, lane {each.lane}"
        yield Need(
            "waiting_runs", Severity.ERROR, each.why.words, evidence, each.oldest_at, each.count, each.why.remedy or ""
        )


def _age(span: timedelta) -> str:
    return format_duration(timedelta(seconds=round(span.total_seconds())))
