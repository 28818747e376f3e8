"""The reasons for which open runs wait, for a page of runs at once.

Each reason is a code with a sentence and a remedy. The command line and REST show these sentences and write none of
their own. A pause makes no run wait, for it holds timers alone. Nor does a missing topic: the sweep of executors starts
the run a second later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import Annotated, NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import Field

from tidewheel.control.reads.stored import rows_as
from tidewheel.ids import job_id
from tidewheel.jobs.values import RESERVED, format_second
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, OWNED, AttemptOutcome, Gate, Move, RunState, sources

_SQL = Statements("tidewheel.control")

LEASE = timedelta(seconds=30)
"""The lease of an executor that has recorded none."""
AFTER_LOSS = "is retried, or fails if its job is at_most_once"
"""What becomes of a run whose attempt is lost."""

_MOST = 10_000  # open runs that are looked at for active ones until a scheduler has counted these: about 10 ms

_CLAIMABLE = frozenset(sources(Move.CLAIM))
_ENDS: Mapping[object, str] = {
    AttemptOutcome.LOST: "was lost with its executor",
    AttemptOutcome.TIMED_OUT: "timed out",
}


class WaitCode(StrEnum):
    """The kind of a reason."""

    CANCEL = "cancel"
    FROZEN = "frozen"
    NOT_YET = "not_yet"
    RETRY = "retry"
    NO_EXECUTOR = "no_executor"
    NO_HANDLER = "no_handler"
    NO_TARGET = "no_target"
    SLOT = "slot"
    TURN = "turn"
    KEY = "key"
    ORDER = "order"
    TENANT = "tenant"
    TENANT_RATE = "tenant_rate"
    PARENTS = "parents"
    EXTERNAL = "external"
    RUNNING = "running"
    EXECUTOR_SILENT = "executor_silent"


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason for which an open run has not ended."""

    code: Annotated[WaitCode, Field(description="Its kind.")]
    words: Annotated[str, Field(description="The reason as a sentence.")]
    remedy: Annotated[str | None, Field(description="What an operator can do; null where nothing is wrong.")] = None
    until: Annotated[datetime | None, Field(description="When it ends, if that is known.")] = None
    behind_run_id: Annotated[UUID | None, Field(description="The run whose end it awaits.")] = None
    executor_id: Annotated[UUID | None, Field(description="The executor that owns its attempt.")] = None
    freezes: Annotated[tuple[Freeze, ...], Field(description="The standing freezes that name it.")] = ()
    cancellation_id: Annotated[int | None, Field(description="The cancellation by filter that names it.")] = None
    cancel_requested: Annotated[
        bool, Field(description="True if its own cancel is accepted, or a cancellation names it.")
    ] = False
    detail: Annotated[
        str | None,
        Field(
            description="What `words` has beside the reason: the error of the last attempt, the last heartbeat of an"
            " executor, which run is next, or what becomes of the attempt."
        ),
    ] = None

    @property
    def reason(self) -> str:
        """Its words without the detail."""
        return self.words.replace(f" ({self.detail})", "", 1).removesuffix(f"; {self.detail}")


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """The rows that decide for what an open run waits."""

    run_id: UUID
    tenant: str
    state: str
    queue: str
    handler: str
    attempt: int
    publish_at: datetime | None
    is_ahead: bool  # that is in the future
    started_at: datetime | None
    external_deadline_at: datetime | None
    behind_run_id: UUID | None  # its job's active run, if that is another
    behind_state: str | None
    executor_id: UUID | None
    executor: str | None
    seen_at: datetime | None  # the last heartbeat of the executor that owns its attempt
    is_silent: bool  # its lease is over, or it has no row
    cancel_requested: bool  # a cancel waits for the row of the run
    cancellation_id: int | None  # the first cancellation by filter that names it
    able: int  # live executors that can run it
    serving: int  # live executors of its queue
    able_seen_at: datetime | None  # the last heartbeat of any executor that could run it
    waits_for_key: str | None = None  # the concurrency key that has no place for it; empty for its tenant
    key_running: int | None = None  # places of that key that runs hold
    key_at_once: int | None = None  # places of that key; None for no bound
    key_wake_at: datetime | None = None  # when the rate of that key lets the next run start
    workflow_run_id: UUID | None = None  # the root's run of its occurrence of a workflow
    workflow_is_paused: bool = False
    is_batch: bool = False  # which has no root
    behind_workflow: UUID | None = None  # the occurrence that keeps the place of its job's active run, which has ended
    parents: int | None = None
    parents_ended: int | None = None
    order_key: str | None = None
    order_head: UUID | None = None  # the run that is first in that order
    order_blocked_by: UUID | None = None  # the failed run that blocks its ordering key
    rate_per_second: float | None = None  # of its tenant, if that rate holds it
    now: datetime | None = None
    created_at: datetime | None = None
    lease_ends_at: datetime | None = None  # that of the executor that owns its attempt


def read_waits(connection: Conn, run_ids: Sequence[UUID]) -> dict[UUID, Wait]:
    """Return the reasons of those of these runs that are open, by three statements at most."""
    if not run_ids:
        return {}
    columns: dict[str, object] = {
        "run_ids": list(run_ids), "lease": LEASE, "active": list(IN_FLIGHT), "most": _MOST,
        "holds_key": Gate.HOLDS_KEY, "holds_tenant": Gate.HOLDS_TENANT,
    }  # fmt: skip
    found = read_rows(connection, class_row(WaitFacts), _SQL["read_waits"], columns)
    claimable = [facts.run_id for facts in found if facts.state in _CLAIMABLE]
    freezes: dict[UUID, list[Freeze]] = {}
    if claimable:
        for row in read_rows(connection, rows_as(_FrozenRun), _SQL["find_freezes_of_runs"], {"run_ids": claimable}):
            freezes.setdefault(row.run_id, []).append(row.freeze)
    ends = _last_ends(connection, [facts for facts in found if facts.state == RunState.RETRYING and facts.is_ahead])
    return {
        facts.run_id: wait_of(facts, tuple(freezes.get(facts.run_id, ())), ends.get(facts.run_id, _ENDED))
        for facts in found
    }


class LastEnd(NamedTuple):
    """The end of a run's last attempt in words, and its error."""

    words: str
    error: str | None = None


_ENDED = LastEnd("ended")


def _last_ends(connection: Conn, retrying: Sequence[WaitFacts]) -> dict[UUID, LastEnd]:
    """Return how the last attempts of these runs ended."""
    days = [each for facts in retrying for each in (facts.created_at, facts.now) if each is not None]
    if not days:
        return {}
    columns = {"run_ids": [facts.run_id for facts in retrying], "since": min(days), "until": max(days)}
    found = connection.execute(_SQL["read_last_attempts"], columns, binary=True).fetchall()
    rows = cast("list[tuple[UUID, str, str | None]]", found)
    return {run_id: LastEnd(_ENDS.get(outcome, "failed"), error or None) for run_id, outcome, error in rows}


def wait_of(facts: WaitFacts, freezes: tuple[Freeze, ...], last: LastEnd) -> Wait:
    """Return the reason for which a run waits, after a last attempt that ended so."""
    if not (facts.cancel_requested or facts.cancellation_id is not None or facts.state == RunState.CANCELLING):
        return _going_on(facts, freezes, last)
    found = _owned(facts) if facts.state in OWNED else _cancelled(facts)
    return replace(found, cancel_requested=True)


def _cancelled(facts: WaitFacts) -> Wait:
    number = facts.cancellation_id
    if number is None:
        return Wait(WaitCode.CANCEL, "cancel accepted; a scheduler ends the run shortly")
    words = f"cancellation {number} includes the run: no executor starts the run, and a scheduler ends it"
    return Wait(WaitCode.CANCEL, words, cancellation_id=number)


def _going_on(facts: WaitFacts, freezes: tuple[Freeze, ...], last: LastEnd) -> Wait:
    match facts.state:
        case RunState.BUFFERED:
            return _buffered(facts)
        case RunState.BLOCKED:
            return _parents(facts)
        case RunState.WAITING:
            return _external(facts)
        case RunState.RUNNING:
            return _owned(facts)
        case _:
            return _claimable(facts, freezes, last)


def _claimable(facts: WaitFacts, freezes: tuple[Freeze, ...], last: LastEnd) -> Wait:
    if freezes:
        words = "\n".join(freeze.words for freeze in freezes)
        action = "; ".join(f"`{freeze.thaw_command}`" for freeze in freezes)
        return Wait(WaitCode.FROZEN, words, action, freezes=freezes)
    if facts.is_ahead and facts.publish_at is not None:
        at = format_second(facts.publish_at)
        if facts.state != RunState.RETRYING:
            return Wait(WaitCode.NOT_YET, f"may start at {at}", until=facts.publish_at)
        error = f" ({last.error})" if last.error else ""
        words = f"attempt {facts.attempt} {last.words}{error}; retrying at {at}"
        return Wait(WaitCode.RETRY, words, until=facts.publish_at, detail=last.error)
    return _due(facts)


def _due(facts: WaitFacts) -> Wait:
    if facts.able and facts.waits_for_key is not None:
        return _key(facts, facts.waits_for_key)
    if facts.able:
        who = "the live executor" if facts.able == 1 else f"one of {facts.able} live executors"
        words = f"waits for {who} of queue {facts.queue}"
        remedy = "`tidewheel status` shows the slots in use; if all are busy, start more executors, else read the logs"
        return Wait(WaitCode.SLOT, words, remedy)
    return _without_executor(facts)


def read_lack(connection: Conn, tenant: str, key: str) -> Wait | None:
    """Return why none of the live executors could run a job now; None if one could, or if none lives."""
    columns: dict[str, object] = {"job_id": job_id(tenant, key), "lease": LEASE}
    found = read_row(connection, class_row(_Able), _SQL["read_able"], columns)
    return None if found is None or found.able or not found.alive else _without_executor(found)


def _without_executor(facts: "_Able | WaitFacts") -> Wait:
    queue, code = facts.queue, WaitCode.NO_HANDLER
    last = f"the last one has been silent since {format_second(facts.able_seen_at)}" if facts.able_seen_at else None
    reason = f"no live executor of queue {queue} has handler {facts.handler}"
    if not facts.serving:
        code, reason = WaitCode.NO_EXECUTOR, f"no live executor serves queue {queue}"
    elif facts.handler.startswith(RESERVED):
        kind = facts.handler.removeprefix(RESERVED)
        code, reason = WaitCode.NO_TARGET, f"no live executor of queue {queue} runs {kind} targets"
    return _detailed(code, reason, last, start_executor(queue, facts.handler))


def _detailed(code: WaitCode, reason: str, detail: str | None, remedy: str, executor_id: UUID | None = None) -> Wait:
    words = f"{reason}; {detail}" if detail else reason
    return Wait(code, words, remedy, executor_id=executor_id, detail=detail)


def start_executor(queue: str, handler: str) -> str:
    """Return the remedy for runs that no live executor can run.

    >>> start_executor("reports", "tidewheel.shell")
    'TIDEWHEEL_TARGETS=shell tidewheel service executor --queues reports, with an allow-list of what jobs may use'
    """
    if handler.startswith(RESERVED):
        kind = handler.removeprefix(RESERVED)
        start = f"TIDEWHEEL_TARGETS={kind} tidewheel service executor --queues {queue}"
        return f"{start}, with an allow-list of what jobs may use"
    start = f"tidewheel service executor --queues {queue} --handlers MODULES"
    return f"{start}, where MODULES includes the module that defines {handler}"


def _buffered(facts: WaitFacts) -> Wait:
    if facts.rate_per_second is not None:
        reason = f"held by the tenant's rate, {facts.rate_per_second:g} runs a second"
        remedy = f"raise the rate with `tidewheel admin tenant limits {facts.tenant} --triggers-per-second`"
        return _detailed(WaitCode.TENANT_RATE, reason, "the oldest held run starts first", remedy)
    if facts.waits_for_key is not None:
        return _key(facts, facts.waits_for_key)
    return _turn(facts) if facts.order_key is None else _order(facts, facts.order_key)


def _turn(facts: WaitFacts) -> Wait:
    if facts.behind_run_id is None:
        return Wait(WaitCode.TURN, "the job's active run has ended; a scheduler or an executor queues this run next")
    if facts.behind_workflow is not None:
        words = f"waits for the occurrence of run {facts.behind_workflow} to end, by the job's overlap policy"
        remedy = f"tidewheel workflow show {facts.behind_workflow}"
        return Wait(WaitCode.TURN, words, remedy, behind_run_id=facts.behind_run_id)
    words = f"waits behind run {facts.behind_run_id}, the job's active run, which is {facts.behind_state}"
    remedy = f"tidewheel run show {facts.behind_run_id}"
    return Wait(WaitCode.TURN, words, remedy, behind_run_id=facts.behind_run_id)


def _parents(facts: WaitFacts) -> Wait:
    root = facts.workflow_run_id
    kind = "batch" if facts.is_batch else "workflow"
    place = f"batch {root}" if facts.is_batch else f"workflow occurrence of run {root}"
    if facts.workflow_is_paused:
        return Wait(WaitCode.PARENTS, f"the {place} is paused", f"tidewheel {kind} resume {root}")
    ended = "" if facts.parents is None else f": {facts.parents_ended} of {facts.parents} have ended"
    words = f"waits for its parents in the {place}{ended}"
    return Wait(WaitCode.PARENTS, words, f"tidewheel {kind} show {root}")


def _key(facts: WaitFacts, key: str) -> Wait:
    held, places = facts.key_running or 0, facts.key_at_once
    if not key:
        most = held if places is None else places
        reason = f"tenant {facts.tenant} has {held} of {most} active runs"
        remedy = f"raise the limit with `tidewheel admin tenant limits {facts.tenant} --in-flight N`"
        return _detailed(WaitCode.TENANT, reason, "the oldest waiting run starts when one ends", remedy)
    if places is not None and held >= places:
        words = f"waits for a place of the concurrency key {key!r}: {held} of {places} are taken"
        remedy = f"`tidewheel admin limit set {key!r} --at-once {places + 1}`, or raise at_once in its jobs"
        return Wait(WaitCode.KEY, words, remedy)
    words = f"waits for the rate of the concurrency key {key!r}; the oldest waiting run starts first"
    remedy = f"`tidewheel admin limit set {key!r} --rate ...`, or raise rate in its jobs"
    return Wait(WaitCode.KEY, words, remedy, until=facts.key_wake_at)


def _order(facts: WaitFacts, key: str) -> Wait:
    head, blocker = facts.order_head, facts.order_blocked_by
    if blocker is not None and head is None:
        words = f"the ordering key {key!r} is blocked: run {blocker} failed"
        command = f"`tidewheel admin ordering-key unblock {quote(key)}`"
        remedy = f"{command} retries that run; with --skip the next one starts"
        return Wait(WaitCode.ORDER, words, remedy, behind_run_id=blocker)
    words = f"waits for its turn in the ordering key {key!r}"
    if head is None:
        return Wait(WaitCode.ORDER, f"{words}; a scheduler queues the next run")
    return Wait(WaitCode.ORDER, f"{words}: run {head} is first", f"tidewheel run show {head}", behind_run_id=head)


def _external(facts: WaitFacts) -> Wait:
    until = facts.external_deadline_at
    words = "waits for external completion, by task token or reply"
    words += f", until {format_second(until)}" if until else ""
    return Wait(WaitCode.EXTERNAL, words, until=until, executor_id=facts.executor_id)


def _owned(facts: WaitFacts) -> Wait:
    name = facts.executor or facts.executor_id
    if facts.is_silent:
        silent = f"has been silent since {format_second(facts.seen_at)}" if facts.seen_at else "is silent"
        ended = f"its lease ended at {format_second(facts.lease_ends_at)}, and " if facts.lease_ends_at else ""
        detail = f"{ended}a live executor ends attempt {facts.attempt} as lost; the run {AFTER_LOSS}"
        remedy = f"start an executor of queue {facts.queue} if none is running"
        reason = f"executor {name} {silent}"
        return _detailed(WaitCode.EXECUTOR_SILENT, reason, detail, remedy, facts.executor_id)
    runs = f"running on {name}{f' since {format_second(facts.started_at)}' if facts.started_at else ''}"
    if facts.cancel_requested or facts.state == RunState.CANCELLING:
        runs = f"{runs}; cancel requested"
    number = facts.cancellation_id
    cancel = "" if number is None else f"; cancellation {number} includes the run and signals the attempt"
    return Wait(WaitCode.RUNNING, f"{runs}{cancel}", executor_id=facts.executor_id, cancellation_id=number)


@dataclass(frozen=True, slots=True)
class _Able:
    queue: str
    handler: str
    able: int
    serving: int
    alive: int
    able_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class _FrozenRun(Freeze):
    run_id: UUID

    @property
    def freeze(self) -> Freeze:
        return Freeze(self.tenant, self.queue, self.labels, self.key_prefix, self.by, self.reason, self.since)
