"""Read the present of a tenant: what needs a person and why, what is due, what runs, what ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.findings import Severity
from tidewheel.control.reads.fleet import FleetStatus, age_text, freeze_text
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.waits import LEASE, Wait, WaitCode
from tidewheel.control.reads.workload import (
    ActivityBin,
    Backlog,
    OpenRuns,
    on_time_rate,
    read_activity,
    read_open_runs,
    read_upcoming,
)
from tidewheel.ids import first_run_id
from tidewheel.nouns.freezes.model import FreezeSummary
from tidewheel.nouns.freezes.reads import list_freezes
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED, RunState

_SQL = Statements("tidewheel.control")
_FIND_FAILING_JOBS = _SQL["find_failing_jobs"]
_FIND_SET_ASIDE = _SQL["find_set_aside"]
_COUNT_WAITING_DEAD_LETTERS = _SQL["count_waiting_dead_letters"]
_COUNT_SLOTS = _SQL["count_slots"]

_DAY, _HOUR, _MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
_IN_A_ROW = 3
_SHARE = 0.1  # of the runs of an hour that fail
_FAILURES = 1000  # of the last day that are looked at
_RUNS = 100  # of a job that are looked at
_LETTERS = 1000  # the newest ones, which are looked at
_LATE = timedelta(seconds=30)
_SET_ASIDE = 20
_SETTLED = timedelta(seconds=5)  # an executor that has just started is known by then
_HELD = timedelta(minutes=1)
_LONG_WAIT = timedelta(minutes=5)  # for a free slot
_WAITS = {
    WaitCode.NO_EXECUTOR: (Severity.ERROR, _SETTLED), WaitCode.NO_HANDLER: (Severity.ERROR, _SETTLED),
    WaitCode.NO_TARGET: (Severity.ERROR, _SETTLED), WaitCode.SLOT: (Severity.WARNING, _LONG_WAIT),
}  # fmt: skip
_LIMITS = frozenset({WaitCode.TENANT, WaitCode.TENANT_RATE, WaitCode.KEY, WaitCode.ORDER})


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that needs a person."""

    kind: Annotated[
        str,
        Field(
            description="The kind: `freeze`, `fleet`, `failing_job`, `failed_runs`, `set_aside`, `waiting_runs`,"
            " `held_runs`, `dead_letters`, `outbox` or `timers`."
        ),
    ]
    severity: Annotated[str, one_of(Severity), Field(description="Its effect on work.")]
    words: Annotated[str, Field(description="The fault, as a sentence.")]
    evidence: Annotated[str, Field(description="The figures that show it.")] = ""
    since: Annotated[
        datetime | None,
        Field(description="Since when, if that is known; of a share of runs the first failure among them."),
    ] = None
    count: Annotated[int | None, Field(description="The number of runs, jobs or messages.")] = None
    remedy: Annotated[str, Field(description="A command, or a change, that corrects it.")] = ""
    key: Annotated[str | None, Field(description="The job, if it is about one.")] = None
    job_id: Annotated[UUID | None, Field(description="Its id.")] = None


@dataclass(frozen=True, slots=True)
class _Failing:
    key: str
    job_id: UUID
    failures: int
    since: datetime | None
    errors: list[str]
    ended_hour: int
    failed_hour: int
    in_hour: int
    since_hour: datetime | None
    message: str | None


def _find_needs(
    connection: Conn, tenant: str, now: datetime, found: OpenRuns, *, fleet: FleetStatus | None, hour: ActivityBin
) -> list[Need]:
    """Return what needs a person, the worst first."""
    failing = list(_of_failing_jobs(connection, tenant, now))
    needs = [
        *_of_fleet(fleet, tenant, now),
        *_of_freezes(list_freezes(connection, tenant, counts_all=False) if fleet is None else ()),
        *(failing or _of_failed_runs(hour)),
        *_of_set_aside(connection, tenant),
        *_of_waits(found.waiting, now),
        *_of_limits(found.waiting, now),
        *_of_dead_letters(connection, tenant),
    ]
    return sorted(needs, key=lambda need: (need.severity != Severity.ERROR, need.kind == "freeze"))  # a band names it


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
        timers = "timer of a job is" if fleet.overdue_timers == 1 else "timers of jobs are"
        words = f"{fleet.overdue_timers:,} {timers} overdue: the occurrences have not fired"
        evidence, since = f"the oldest for {age_text(fleet.overdue_by)}", now - fleet.overdue_by
        yield Need("timers", Severity.ERROR, words, evidence, since, fleet.overdue_timers, "tidewheel doctor")
    for outbox in fleet.outbox:
        if outbox.oldest > _LATE:
            words = f"messages of lane {OutboxLane(outbox.lane)} wait for a relay"
            messages = "message is" if outbox.due == 1 else "messages are"
            evidence = f"{outbox.due:,} {messages} due, the oldest for {age_text(outbox.oldest)}"
            yield Need("outbox", Severity.WARNING, words, evidence, now - outbox.oldest, outbox.due, "tidewheel status")


def _of_freezes(freezes: Sequence[FreezeSummary]) -> Iterator[Need]:
    """Yield the freezes for a reader who does not see the fleet's findings."""
    for each in freezes:
        freeze, words = each.freeze, freeze_text(each.freeze)
        yield Need(
            "freeze", Severity.WARNING, words, freeze.words, freeze.since, each.waiting, freeze.thaw_command
        )  # fmt: skip


def _of_failing_jobs(connection: Conn, tenant: str, now: datetime) -> Iterator[Need]:
    columns: dict[str, object] = {
        "tenant": tenant, "first_id": first_run_id(now - _DAY), "since": now - _DAY, "hour": now - _HOUR,
        "look": _FAILURES, "least": _IN_A_ROW, "share": _SHARE, "runs": _RUNS,
    }  # fmt: skip
    with connection.cursor(row_factory=class_row(_Failing), binary=True) as cursor:
        failing = cursor.execute(_FIND_FAILING_JOBS, columns).fetchall()
    for job in failing:
        in_a_row = job.failures >= _IN_A_ROW
        errors = ", ".join("no error recorded" if each == RunState.FAILED else each for each in job.errors)
        share = f"{job.failed_hour:,} of its {job.ended_hour:,} runs of the last hour failed"
        if job.ended_hour >= _RUNS:
            share = f"{job.in_hour:,} runs failed in the last hour"
            errors = f"{job.failed_hour:,} of its latest {_RUNS} runs failed: {errors}"
        words = f"its last {job.failures:,} runs failed" if in_a_row else share
        since, count = job.since_hour, max(job.in_hour, job.failed_hour)
        if in_a_row:
            since, count = job.since, job.failures
        yield Need(
            "failing_job", Severity.ERROR if in_a_row else Severity.WARNING, words,
            f"{errors}; the latest: {job.message}" if job.message else errors, since, count,
            f"tidewheel run list --job {job.key} --status failed", job.key, job.job_id,
        )  # fmt: skip


def _of_failed_runs(hour: ActivityBin) -> Iterator[Need]:
    """Yield one need where many runs fail and no job fails often."""
    failed = hour.failed + hour.timed_out
    ended = hour.succeeded + failed
    if failed and failed >= _SHARE * ended:
        words = f"{failed:,} of {ended:,} {'run' if ended == 1 else 'runs'} of the last hour failed or timed out"
        remedy = "tidewheel run list --status failed --since 1h"
        yield Need("failed_runs", Severity.WARNING, words, count=failed, remedy=remedy)


def _of_set_aside(connection: Conn, tenant: str) -> Iterator[Need]:
    rows = connection.execute(_FIND_SET_ASIDE, {"tenant": tenant, "limit": _SET_ASIDE}, binary=True).fetchall()
    for key, job_id, error, since in rows:
        assert isinstance(job_id, UUID)  # noqa: S101 - the column's type
        assert isinstance(since, datetime)  # noqa: S101 - the column's type
        words = "it is set aside: its next time could not be computed"
        yield Need(
            "set_aside", Severity.ERROR, words, str(error), since, key=str(key), job_id=job_id,
            remedy="tidewheel job release",
        )  # fmt: skip


def _of_dead_letters(connection: Conn, tenant: str) -> Iterator[Need]:
    columns = {"tenant": tenant, "look": _LETTERS}
    rows = connection.execute(_COUNT_WAITING_DEAD_LETTERS, columns, binary=True).fetchall()
    [(waiting, since)] = cast("list[tuple[int, datetime | None]]", rows)
    if waiting:
        plus = "+" if waiting >= _LETTERS else ""
        words = f"{waiting:,}{plus} dead letter{' is' if waiting == 1 else 's are'} not redriven yet"
        remedy = "tidewheel dlq list --not-redriven"
        yield Need("dead_letters", Severity.WARNING, words, "", since, waiting, remedy)


def _of_waits(waiting: Sequence[Backlog], now: datetime) -> Iterator[Need]:
    for each in waiting:
        if each.why is None or each.why.code not in _WAITS:
            continue
        severity, longest = _WAITS[each.why.code]
        if now - each.oldest_at < longest:
            continue
        runs, wait = ("run", "waits") if each.count == 1 else ("runs", "wait")
        words = f"{each.count:,}{'+' if each.at_least else ''} {runs} of queue {each.queue}, lane {each.lane}, {wait}"
        evidence = _of_oldest(each.why.words)
        yield Need("waiting_runs", severity, words, evidence, each.oldest_at, each.count, each.why.remedy or "")


def _of_limits(waiting: Sequence[Backlog], now: datetime) -> Iterator[Need]:
    """Yield one need for each reason, whatever queues and handlers it concerns."""
    held: dict[str, list[tuple[Backlog, Wait]]] = {}
    for each in waiting:
        if each.why is not None and each.why.code in _LIMITS:
            held.setdefault(each.why.words, []).append((each, each.why))
    for reason, parts in held.items():
        oldest, why = min(parts, key=lambda part: part[0].oldest_at)
        if now - oldest.oldest_at < _HELD:
            continue
        count, plus = sum(each.count for each, _ in parts), "+" if any(each.at_least for each, _ in parts) else ""
        words = f"{count:,}{plus} {'run is' if count == 1 else 'runs are'} held"
        yield Need("held_runs", Severity.WARNING, words, _of_oldest(reason), oldest.oldest_at, count, why.remedy or "")


def _of_oldest(reason: str) -> str:
    """Return a sentence about the run that has waited longest.

    >>> _of_oldest("waits until an executor claims it"), _of_oldest("no executor of queue reports lives")
    ('The oldest waits until an executor claims it.', 'The oldest: no executor of queue reports lives.')
    """
    return f"The oldest{'' if reason.startswith(('waits ', 'may ')) else ':'} {reason}."


@dataclass(frozen=True, slots=True)
class DueNext:
    """The jobs whose timers come due."""

    jobs: Annotated[int, Field(description="Their number.")]
    at_least: Annotated[bool, Field(description="True if there are more.")]


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of live executors.

    Args:
        busy: Runs of the tenant that hold one.
        all: All slots; None for a reader of one tenant, whom the other tenants' executors do not concern.
    """

    busy: int
    all: int | None


@dataclass(frozen=True, slots=True)
class Now:
    """The present of a tenant."""

    as_of: Annotated[datetime, Field(description="The database's clock.")]
    findings: Annotated[tuple[Need, ...], Field(description="What needs a person, the worst first.")]
    due_next_minute: Annotated[DueNext, Field(description="The jobs that come due within a minute.")]
    running: Annotated[int, Field(description="The running runs, including those with a requested cancel.")]
    slots: Annotated[Slots, Field(description="The slots of live executors.")]
    open: Annotated[
        Mapping[str, int], Field(description="The open runs by state; `scheduled` are those before their time.")
    ]
    open_at_least: Annotated[bool, Field(description="True if there may be more open runs.")]
    ended_hour: Annotated[int, Field(description="The runs that ended within the last hour.")]
    ran_hour: Annotated[int, Field(description="Those of them that succeeded, failed or timed out.")]
    failed_hour: Annotated[int, Field(description="Those of these that failed or timed out.")]
    on_time_rate: Annotated[
        float | None,
        Field(description="The share of runs claimed within a second of their time; null without runs."),
    ]


def read_now_of(
    connection: Conn,
    tenant: str,
    shards: int,
    fleet: FleetStatus | None,
    *,
    sees_slots: bool,
    open_runs: OpenRuns | None = None,
) -> Now:
    """Return the present of a tenant.

    Args:
        fleet: The fleet, for a reader who sees all tenants.
        sees_slots: True for a reader of all tenants.
        open_runs: The tenant's open runs, if the caller has read them.
    """
    now = read_now(connection)
    found = open_runs or read_open_runs(connection, tenant)
    hour = read_activity(connection, tenant, [now - _HOUR, now + _HOUR])
    ended = hour.bins[0]
    failed = ended.failed + ended.timed_out
    running = sum(found.states.get(state, 0) for state in OWNED)
    upcoming = read_upcoming(connection, tenant, shards, [now, now + _MINUTE])
    return Now(
        as_of=now,
        findings=tuple(_find_needs(connection, tenant, now, found, fleet=fleet, hour=ended)),
        due_next_minute=DueNext(upcoming.jobs, upcoming.at_least),
        running=running,
        slots=Slots(running, _slots(connection) if sees_slots else None),
        open=found.states,
        open_at_least=found.at_least,
        ended_hour=ended.succeeded + failed + ended.cancelled + ended.skipped,
        ran_hour=ended.succeeded + failed,
        failed_hour=failed,
        on_time_rate=on_time_rate(connection, tenant, now - _HOUR, now + _HOUR),
    )


def _slots(connection: Conn) -> int:
    row = connection.execute(_COUNT_SLOTS, {"lease": LEASE}, binary=True).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0
