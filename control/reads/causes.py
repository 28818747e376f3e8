"""Find what needs a person: one need for one cause, the one that hurts the most runs first."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.findings import Finding, Severity, lost_words
from tidewheel.control.reads.fleet import LETTERS, AbleExecutors, FleetStatus, age_text, freeze_text
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.waits import WaitCode
from tidewheel.control.reads.workload import Waiting, long_held, read_upcoming
from tidewheel.control.words import duration
from tidewheel.ids import first_run_id
from tidewheel.nouns.freezes.model import MAX_WAITING
from tidewheel.nouns.freezes.reads import list_freezes
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState

_SQL = Statements("tidewheel.control")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_IN_A_ROW = 3
_FAILURES = 1000  # of the last day that are looked at
_RUNS = 100  # of a job that are looked at
_OVERDUE = timedelta(seconds=1)  # as gauges and the fleet count timers
_LATE = timedelta(seconds=30)
_SET_ASIDE = 20
_SETTLED = timedelta(seconds=5)  # an executor that has just started is known by then
_HELD = timedelta(minutes=1)
_LONG_WAIT = timedelta(minutes=5)  # for an executor, or until a backlog is worked off
_BACKLOG = 100  # runs: fewer are no backlog
_MISSING = frozenset({WaitCode.NO_EXECUTOR, WaitCode.NO_HANDLER, WaitCode.NO_TARGET})
_LIMITS = frozenset({WaitCode.TENANT, WaitCode.TENANT_RATE, WaitCode.KEY, WaitCode.ORDER})
RECOVERED = "recovered"
"""The words of a job that failed within the last hour, but not in its newest runs."""
_OF_TENANTS = frozenset({"handlers", "fairness", "freezes"})
"""The checks whose findings are about runs of each tenant: the needs of a tenant are read from its own rows."""


@dataclass(frozen=True, slots=True)
class Need:
    """One cause that needs a person, with all that it hurts."""

    kind: Annotated[
        str,
        Field(
            description="The kind: `fleet`, `failing_job`, `set_aside`, `waiting_runs`, `held_runs`, `dead_letters`,"
            " `outbox`, `timers` or `freeze`."
        ),
    ]
    severity: Annotated[str, one_of(Severity), Field(description="Its effect on work.")]
    words: Annotated[str, Field(description="The fault in words; of a job without its key.")]
    evidence: Annotated[str, Field(description="What shows it: of a failing job the newest error.")] = ""
    since: Annotated[datetime | None, Field(description="Since when, if that is certain.")] = None
    latest: Annotated[
        datetime | None, Field(description="The newest of what it hurts: failure, waiting run, dead letter or error.")
    ] = None
    count: Annotated[int | None, Field(description="The number of what it hurts.")] = None
    at_least: Annotated[bool, Field(description="True if there may be more.")] = False
    counted: Annotated[
        Literal["failed", "failed_in_a_row", "waiting", "overdue", "not_redriven", "orphaned"] | None,
        Field(
            description="What `count` counts: runs that `failed` within the last hour, or that `failed_in_a_row` before"
            " it, runs that are `waiting`, timers that are `overdue`, dead letters that are `not_redriven`, or runs"
            " that are `orphaned`: their executor is silent."
        ),
    ] = None
    remedy: Annotated[str, Field(description="A command, or a change, that corrects it.")] = ""
    key: Annotated[str | None, Field(description="The job, if it is about one.")] = None
    job_id: Annotated[UUID | None, Field(description="Its id.")] = None
    error_type: Annotated[str | None, Field(description="The error type of a failing job.")] = None
    since_version: Annotated[
        int | None,
        Field(
            description="The version of a failing job that is in force, if no run of it has succeeded and the last"
            " success is of the version before."
        ),
    ] = None

    @property
    def hurt(self) -> int:
        """The runs that it has hurt within the last hour, or hurts now."""
        return 0 if self.counted in {"failed_in_a_row", "not_redriven"} else self.count or 0


@dataclass(frozen=True, slots=True)
class Causes:
    """Reader of what needs a person.

    Args:
        since: The begin of the last hour.
        failed: The runs that have failed since, by the figures.
        ran_minute: The runs that have succeeded or failed within the last minute, by the figures.
        waiting: The tenant's due runs.
        fleet: The fleet, for a reader who sees all tenants.
    """

    connection: Conn
    tenant: str
    shards: int
    now: datetime
    since: datetime
    failed: int
    ran_minute: int
    waiting: Sequence[Waiting]
    fleet: FleetStatus | None

    def find(self) -> tuple[Need, ...]:
        """Return the needs, those that stop work first, then the most harm."""
        failing = list(self._failing_jobs())
        needs = [
            *failing, *self._set_aside(), *self._missing_and_late(), *self._limits(), *self._dead_letters(failing),
            *self._freezes(), *(self._of_fleet(self.fleet) if self.fleet else ()),
        ]  # fmt: skip
        return tuple(sorted(needs, key=_by_harm))

    def _of_fleet(self, fleet: FleetStatus) -> Iterator[Need]:
        """Yield the faults of the installation, with the runs and timers of this tenant alone."""
        overdue = self._overdue(fleet)
        unserved = [each for each in self.waiting if each.why.code == WaitCode.NO_EXECUTOR]
        missing = _missing_roles(fleet)
        for each in fleet.problems:
            role, need = _role_of(each), Need("fleet", each.severity, each.what, each.evidence, remedy=each.remedy)
            if role == "executor" and unserved:
                yield _counting(need, unserved)
            elif role == "scheduler" and overdue is not None:
                yield replace(need, count=overdue.count, at_least=overdue.at_least, counted=overdue.counted)
            elif each.check == "executors":
                yield from () if self._lost_handlers(fleet) else (_silent(need, each.runs or 0, fleet),)
            elif each.check not in _OF_TENANTS:
                yield need
        if overdue is not None and "scheduler" not in missing:
            yield overdue
        for outbox in fleet.outbox if "relay" not in missing else ():
            if outbox.oldest > _LATE:
                words = f"messages of lane {OutboxLane(outbox.lane)} wait for a relay"
                evidence = f"the oldest is due for {age_text(outbox.oldest)}"
                since = self.now - outbox.oldest
                yield Need("outbox", Severity.WARNING, words, evidence, since, remedy="tidewheel status")

    def _overdue(self, fleet: FleetStatus) -> Need | None:
        if not fleet.overdue_timers:
            return None
        found = read_upcoming(self.connection, self.tenant, self.shards, [_EPOCH, self.now - _OVERDUE])
        words = "timers of jobs are overdue: occurrences have not fired"
        need = Need("timers", Severity.ERROR, words, counted="overdue", remedy="tidewheel doctor")
        return replace(need, count=found.jobs, at_least=found.at_least) if found.jobs else None

    def _lost_handlers(self, fleet: FleetStatus) -> bool:
        """Return True if runs wait for a handler of each silent executor: those needs name its last heartbeat."""
        lost = {(each.queue, each.handler) for each in self.waiting if each.why.code in _MISSING}
        silent = [(each.queues, each.handlers or ()) for each in fleet.services if each.queues and each.is_silent]
        return bool(silent) and all(
            any(queue in queues and handler in handlers for queue, handler in lost) for queues, handlers in silent
        )

    def _failing_jobs(self) -> Iterator[Need]:
        day = self.now - _DAY
        columns: dict[str, object] = {
            "tenant": self.tenant, "first_id": first_run_id(day), "since": day, "hour": self.since,
            "failed": self.failed, "look": _FAILURES, "least": _IN_A_ROW, "runs": _RUNS,
        }  # fmt: skip
        for job in read_rows(self.connection, class_row(_Failing), _SQL["find_failing_jobs"], columns):
            error = job.error_type or ("timed out" if job.state == RunState.TIMED_OUT else "no error recorded")
            yield Need(
                "failing_job", Severity.ERROR if job.fails else Severity.WARNING, job.words,
                f"{error}: {job.message}" if job.message else error, job.since if job.fails else None, job.newest_at,
                job.in_hour or job.in_a_row, job.at_least, "failed" if job.in_hour else "failed_in_a_row", job.remedy,
                job.key, job.job_id, job.error_type, job.version,
            )  # fmt: skip

    def _set_aside(self) -> Iterator[Need]:
        columns = {"tenant": self.tenant, "limit": _SET_ASIDE}
        rows = self.connection.execute(_SQL["find_set_aside"], columns, binary=True).fetchall()
        for key, job_id, error, since in cast("list[tuple[str, UUID, str, datetime]]", rows):
            words, remedy = "is set aside: no next time could be computed", f"tidewheel job release {shlex.quote(key)}"
            yield Need(
                "set_aside", Severity.ERROR, words, error, since, since, remedy=remedy, key=key, job_id=job_id
            )  # fmt: skip

    def _missing_and_late(self) -> Iterator[Need]:
        """Yield a need for each queue, handler or target that no live executor has, and for each late lane."""
        fleet = self.fleet
        no_executor = fleet is not None and "executor" in _missing_roles(fleet)
        late = {(each.queue, each.lane) for each in long_held(fleet.held, self.now)} if fleet else set[object]()
        for (code, queue, rest), parts in _causes(self.waiting).items():
            oldest = min(parts, key=lambda each: each.oldest_at)
            waited, remedy = self.now - oldest.oldest_at, oldest.why.remedy or ""
            if code == WaitCode.SLOT:
                many = sum(each.count for each in parts)
                evidence = self._left(many) if many >= _BACKLOG and waited >= _LATE else ""
                if evidence or waited >= _LONG_WAIT or (queue, rest) in late:
                    severity = Severity.WARNING if self.ran_minute or not evidence else Severity.ERROR
                    words = backlog_words(queue, rest)
                    yield _counting(Need("waiting_runs", severity, words, evidence, remedy=remedy), parts)
            elif waited >= _SETTLED and not (no_executor and code == WaitCode.NO_EXECUTOR):
                need = Need("waiting_runs", Severity.ERROR, oldest.why.reason, oldest.why.detail or "", remedy=remedy)
                yield _counting(need, parts)

    def _left(self, waiting: int) -> str:
        """Return the time that a backlog takes at the pace of the last minute; empty if that is short."""
        if not self.ran_minute:
            return "no run has ended in the last minute"
        left = timedelta(minutes=waiting / self.ran_minute)
        words = f"at {self.ran_minute:,} runs a minute the backlog clears in {duration(left)}"
        return words if left >= _LONG_WAIT else ""

    def _limits(self) -> Iterator[Need]:
        """Yield a need for each limit or order that holds runs, whatever queues and handlers these have."""
        held: dict[str, list[Waiting]] = {}
        for each in self.waiting:
            if each.why.code in _LIMITS:
                held.setdefault(_limit(each), []).append(each)
        for words, parts in held.items():
            oldest = min(parts, key=lambda each: each.oldest_at)
            if self.now - oldest.oldest_at >= _HELD:
                remedy = "" if oldest.is_mixed else oldest.why.remedy or ""
                yield _counting(Need("held_runs", Severity.WARNING, words, remedy=remedy), parts)

    def _dead_letters(self, failing: Sequence[Need]) -> Iterator[Need]:
        """Yield one need for the dead letters of jobs that do not fail now, and of messages."""
        columns = {"tenant": self.tenant, "look": LETTERS, "except_jobs": [each.job_id for each in failing]}
        rows = self.connection.execute(_SQL["count_waiting_dead_letters"], columns, binary=True).fetchall()
        [(waiting, since, latest, looked)] = cast("list[tuple[int, datetime | None, datetime | None, int]]", rows)
        if waiting:
            words = f"{'other ' if failing else ''}dead letter{'s' if waiting > 1 else ''}"
            yield Need(
                "dead_letters", Severity.WARNING, words, since=since, latest=latest, count=waiting,
                at_least=looked >= LETTERS, counted="not_redriven", remedy="tidewheel dlq list --not-redriven",
            )  # fmt: skip

    def _freezes(self) -> Iterator[Need]:
        for each in list_freezes(self.connection, self.tenant, counts_all=False):
            freeze, count = each.freeze, each.waiting or None
            yield Need(
                "freeze", Severity.WARNING, freeze_text(freeze), freeze.words, freeze.since, count=count,
                at_least=each.waiting >= MAX_WAITING, counted="waiting" if count else None, remedy=freeze.thaw_command,
            )  # fmt: skip


def _by_harm(need: Need) -> tuple[object, ...]:
    """Return the place of a need; a missing service hurts all runs, and a band of its own names a freeze."""
    newest = need.latest or need.since or _EPOCH
    is_error = need.severity == Severity.ERROR
    is_past, is_fleet_error = need.words == RECOVERED, need.kind == "fleet" and is_error
    return need.kind == "freeze", not is_fleet_error, not is_error, is_past, -need.hurt, -newest.timestamp()


def _role_of(finding: Finding) -> str | None:
    """Return the service that a finding misses; the remedy is the command that starts it."""
    return finding.remedy.rpartition(" ")[2] if finding.check == "services" else None


def _silent(need: Need, runs: int, fleet: FleetStatus) -> Need:
    """Return the need of silent executors, with their last heartbeat and the runs that they hold."""
    last = [each.last_heartbeat_at for each in fleet.services if each.queues is not None and each.is_silent]
    held = replace(need, count=runs, counted="orphaned") if runs else need
    return replace(held, evidence=lost_words(runs), since=min(last, default=None), latest=max(last, default=None))


def with_slots(
    needs: Sequence[Need],
    waiting: Sequence[Waiting],
    read_able: Callable[[Sequence[tuple[str, str]]], Sequence[AbleExecutors]],
) -> tuple[Need, ...]:
    """Return needs with the slots of the executors that could claim the runs which wait for one.

    Args:
        read_able: Reads the live executors that can run each of some handlers, behind its queue.
    """
    waits = {backlog_words(each.queue, each.lane): each for each in waiting if each.why.code == WaitCode.SLOT}
    late = {need.words: waits[need.words] for need in needs if need.words in waits}
    able = read_able([(each.queue, each.handler) for each in late.values()]) if late else ()
    slots = dict(zip(late, (each.words for each in able), strict=True))
    return tuple(_with_slots(need, slots.get(need.words, "")) for need in needs)


def _with_slots(need: Need, words: str) -> Need:
    pace = need.evidence and f". {need.evidence[:1].upper()}{need.evidence[1:]}"
    return replace(need, evidence=f"{words}{pace}") if words else need


def backlog_words(queue: str, lane: str) -> str:
    """Return the fault of a lane whose runs wait for an executor."""
    return f"runs are waiting in queue {queue}, lane {lane}"


def _missing_roles(fleet: FleetStatus) -> frozenset[str | None]:
    return frozenset(_role_of(each) for each in fleet.problems)


def _counting(need: Need, parts: Sequence[Waiting]) -> Need:
    count, at_least = sum(each.count for each in parts), any(each.at_least for each in parts)
    since, latest = min(each.oldest_at for each in parts), max(each.newest_at for each in parts)
    return replace(need, count=count, at_least=at_least, counted="waiting", since=since, latest=latest)


def _causes(waiting: Sequence[Waiting]) -> dict[tuple[WaitCode, str, str], list[Waiting]]:
    causes: dict[tuple[WaitCode, str, str], list[Waiting]] = {}
    for each in waiting:
        code = each.why.code
        if code in _MISSING or code == WaitCode.SLOT:
            rest = {WaitCode.SLOT: each.lane, WaitCode.NO_EXECUTOR: ""}.get(code, each.handler)
            causes.setdefault((code, each.queue, rest), []).append(each)
    return causes


def _limit(each: Waiting) -> str:
    """Return the limit that holds a run, in words that are the same for all runs that it holds."""
    words = each.why.reason
    if each.is_mixed:
        return "other limits hold runs"
    if each.why.code == WaitCode.TENANT:
        return words
    if each.why.code == WaitCode.TENANT_RATE:
        return f"runs are {words}"
    waits = words.removeprefix("waits ").replace("its turn", "their turn", 1)
    return words if waits == words else f"runs wait {waits}"


@dataclass(frozen=True, slots=True)
class _Failing:
    """A job that fails by one error; the row of `find_failing_jobs`."""

    key: str
    job_id: UUID
    error_type: str | None
    state: str
    in_hour: int
    at_least: bool
    in_a_row: int
    since: datetime | None
    newest_at: datetime
    since_version: int | None
    recovered: bool
    message: str | None

    @property
    def fails(self) -> bool:
        """True if its last runs have failed."""
        return self.in_a_row >= _IN_A_ROW

    @property
    def version(self) -> int | None:
        """The version from which on it fails, if that is certain."""
        return self.since_version if self.fails else None

    @property
    def words(self) -> str:
        """The manner in which it fails."""
        if not self.fails:
            if self.recovered:
                return RECOVERED
            return "failed" if self.in_hour == 1 else "failing intermittently"
        return "failing" if self.version is None else f"failing with version {self.version}"

    @property
    def remedy(self) -> str:
        """A command; runs that fail at times may succeed the second time."""
        key = shlex.quote(self.key)
        if self.version is not None:
            return f"tidewheel job rollback {key} {self.version - 1} --if-version {self.version}"
        if self.fails:
            return f"tidewheel run list --job {key} --status {self.state}"
        error = f" --error {shlex.quote(self.error_type)}" if self.error_type else ""
        return f"tidewheel dlq redrive --job {key}{error}"
