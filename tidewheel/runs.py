"""The life of a run: every state and every move, written once.

SQL takes its allowed sources and its target from `MOVES`. Tests compare the CHECK constraints, the final states, the
API's enumeration and `docs/run-states.md` with this table. No other file spells a state out.

`Lane`, `Cause` and `Overlap` exist a second time, as generated wire enums (`tidewheel.schemas.generated.records`) with
a further symbol `unknown` for the values of newer releases. Code converts them by value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from types import MappingProxyType


class RunState(StrEnum):
    """A run's state. The sentence below each member is its row in `docs/run-states.md`."""

    QUEUED = "queued"
    """Waits for an executor, which can claim it from its `publish_at` on. Until then it is shown as `scheduled`."""
    BUFFERED = "buffered"
    """Waits for its job's active run (overlap policy), for a place of its key, or for its turn in an order."""
    RUNNING = "running"
    """An executor owns its attempt and renews the lease by heartbeats."""
    WAITING = "waiting"
    """Its attempt is over. It waits for `run.complete` or a reply on Kafka, until its deadline."""
    RETRYING = "retrying"
    """Its last attempt failed or was lost. An executor can claim the next one from `publish_at` on."""
    CANCELLING = "cancelling"
    """A cancel was requested while its attempt runs. It becomes `cancelled` when the attempt ends."""
    BLOCKED = "blocked"
    """Waits until the runs of its parents in a workflow have ended."""
    SUCCEEDED = "succeeded"
    """An attempt succeeded."""
    FAILED = "failed"
    """No retry is left, the failure is permanent, or too many executors were lost. There is a dead letter."""
    TIMED_OUT = "timed_out"
    """A timeout expired and no retry is left. The reason names the timeout. There is a dead letter."""
    CANCELLED = "cancelled"
    """Ended on request of a client, of its handler, or because its job was deleted."""
    SKIPPED = "skipped"
    """Never started, for one of the reasons of a skip."""


class SkipReason(StrEnum):
    """The reason why an occurrence or its run was skipped; `SKIP_WORDS` has the clause that people read."""

    OVERLAP = "overlap"
    MISFIRE = "misfire"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    BOUND = "bound"
    MANUAL = "manual"
    CATCH_UP_LIMIT = "catch_up_limit"
    FROZEN = "frozen"
    PARENTS = "parents"
    DELETED = "deleted"


SKIP_WORDS: Mapping[str, str] = {
    SkipReason.OVERLAP: "another run of the job was active",
    SkipReason.MISFIRE: "not fired in time (misfire)",
    SkipReason.PAUSED: "the job was paused",
    SkipReason.EXCLUDED: "a calendar excludes the day",
    SkipReason.BOUND: "it is outside the job's bounds",
    SkipReason.MANUAL: "by request",
    SkipReason.CATCH_UP_LIMIT: "the setting catch_up fires only some of those missed",
    SkipReason.FROZEN: "a freeze was in force",
    SkipReason.PARENTS: "a parent did not end as the condition requires",
    SkipReason.DELETED: "the job was deleted",
}


class Cause(StrEnum):
    """The reason why a run exists."""

    TIMER = "timer"
    """An occurrence of the job's schedule."""
    TRIGGER = "trigger"
    """A `job.trigger` request, or the `on_failure` job of a run that failed."""
    BACKFILL = "backfill"
    """An occurrence of the past, created by a backfill."""
    WORKFLOW = "workflow"
    """A run of a workflow that its parents have released."""
    RETRY = "retry"
    """A `run.retry` request or a redriven dead letter: a new run in place of one that ended."""


class Lane(StrEnum):
    """Priority class of a run, with a topic of its own, so that a backlog delays no run of another lane."""

    CRITICAL = "critical"
    """First of the lanes. Executors reserve slots for it."""
    STANDARD = "standard"
    """The default of jobs."""
    BATCH = "batch"
    """Last of the lanes, for backfills and bulk work."""


class Overlap(StrEnum):
    """Policy for a run that is about to start while another run of its job is active."""

    SKIP = "skip"
    """The new run is skipped."""
    BUFFER_ONE = "buffer_one"
    """The new run waits, or is skipped if another one waits already."""
    BUFFER_ALL = "buffer_all"
    """The new run waits behind all waiting runs."""
    CANCEL_OTHER = "cancel_other"
    """A cancel of the active run is requested. The new run waits for its end, in place of any older waiting run."""
    TERMINATE_OTHER = "terminate_other"
    """The active run ends as `cancelled` at once, and the new run starts."""
    ALLOW_ALL = "allow_all"
    """The new run starts beside the active one."""


OVERLAP_EFFECTS: Mapping[str, str] = {
    Overlap.SKIP: "the new run is skipped",
    Overlap.BUFFER_ONE: "the new run waits; if another run is already waiting, the new run is skipped",
    Overlap.BUFFER_ALL: "the new run waits behind all others",
    Overlap.CANCEL_OTHER: "the active run receives a cancel, and the new run waits for it to end",
    Overlap.TERMINATE_OTHER: "the active run ends as cancelled at once, and the new run starts",
    Overlap.ALLOW_ALL: "both run",
}
"""What becomes of a new run while another run of its job is active, by the overlap policy: a part of a sentence."""


class Gate(IntFlag):
    """Bits of `job_runs.gates`: further duties of a claim or an end of the run; most runs have none.

    The uniform claim starts no run with a bit of `BARRED`. An end returns the bits, so that a further statement runs
    only for the rows that need it. A test of a bit returns an int: that of an `IntFlag` takes ten times as long.
    """

    __and__ = __rand__ = int.__and__  # type: ignore[assignment]  # code tests the result, and keeps none as a Gate

    MET = 1
    """Another run of its job has come, or it is its job's active run: its end releases that (ADR 0008)."""
    FLOW = 2
    """It belongs to an occurrence of a workflow: its end writes a release. Its claim is an ordinary one."""
    KEY = 4
    """It has a concurrency key: it starts only with a place of the key (ADR 0053)."""
    HOLDS_KEY = 8
    """It holds a place of its key: its row counts in `run_keys.running` until its attempt ends."""
    HOLDS_TENANT = 16
    """It holds a place of its tenant, which limits runs in flight: its row counts until its attempt ends."""
    ORDER = 32
    """It has a place in the order of its key: its end lets the next run start (ADR 0063)."""
    MOVED = 64
    """A trigger has replaced its inputs: only a message with its `publish_at` claims it (ADR 0060)."""
    WHOLE = 128
    """It is a root's run, and starts as the active run: its occurrence keeps that place until its own end."""
    PASSES = 256
    """With `ORDER`: the next run starts though this one fails."""


def order_gates(*, passes: bool) -> Gate:
    """Return the gates of a run with an ordering key; `passes` if the next run starts though it fails."""
    return Gate.ORDER | Gate.PASSES if passes else Gate.ORDER


BARRED = Gate.MET | Gate.KEY | Gate.MOVED | Gate.WHOLE
HOLDS = Gate.HOLDS_KEY | Gate.HOLDS_TENANT


class AttemptOutcome(StrEnum):
    """The end of an attempt. `lost`, `released` and `snoozed` are never states of runs."""

    SUCCEEDED = "succeeded"
    """The handler returned, or the target answered with success."""
    FAILED = "failed"
    """The handler raised, or the target answered with an error; counted against `max_attempts`."""
    TIMED_OUT = "timed_out"
    """A timeout of the attempt expired; counted against `max_attempts`."""
    CANCELLED = "cancelled"
    """The attempt ended after its cancel was requested."""
    LOST = "lost"
    """Its executor missed its lease; counted against `max_lost` only."""
    RELEASED = "released"
    """Its executor stopped and released it; not counted."""
    SNOOZED = "snoozed"
    """The handler raised `Snooze`; not counted."""


class Move(StrEnum):
    """A change of a run's state. The sentence below each member is its row in `docs/run-states.md`."""

    CLAIM = "claim"
    """An executor claims the run, by Kafka message or by sweep."""
    BUFFER = "buffer"
    """A claim finds no free place of the key, or an active run of the job and a policy that makes this one wait."""
    PROMOTE = "promote"
    """The active run ends, a place becomes free, or the last parent ends: the next waiting run is queued.

    The scheduler repairs missed cases.
    """
    RELEASE = "release"
    """An executor that stops gives the run back, and the attempt is not counted."""
    SNOOZE = "snooze"
    """The handler raised `Snooze`, and the attempt is not counted."""
    RETRY = "retry"
    """The attempt failed or timed out (counted), or its executor was lost (counted separately)."""
    WAIT = "wait"
    """The target accepted the work and reports its end later."""
    REQUEST_CANCEL = "request_cancel"
    """A client cancels a run that is running, `cancel_other` replaces it, or its handler raises `Cancel`."""
    SUCCEED = "succeed"
    """The handler returned, the target answered with success, or a client reported success by `run.complete`."""
    FAIL = "fail"
    """The attempt failed, and no retry is left or the failure is permanent."""
    TIME_OUT = "time_out"
    """A timeout expired and no retry is left, or the run did not start within `schedule_to_start`."""
    CANCEL = "cancel"
    """A client cancels the run or deletes its job, or the attempt of a run that is `cancelling` has ended."""
    SKIP = "skip"
    """A reason of a skip holds: the run never starts."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: the states in which a move is allowed, and the state it leads to."""

    sources: frozenset[RunState]
    target: RunState


_S = RunState

MOVES: Mapping[Move, Transition] = MappingProxyType(
    {
        Move.CLAIM: Transition(frozenset({_S.QUEUED, _S.RETRYING}), _S.RUNNING),
        Move.BUFFER: Transition(frozenset({_S.QUEUED, _S.RETRYING}), _S.BUFFERED),
        Move.PROMOTE: Transition(frozenset({_S.BUFFERED, _S.BLOCKED}), _S.QUEUED),
        Move.RELEASE: Transition(frozenset({_S.RUNNING}), _S.QUEUED),
        Move.SNOOZE: Transition(frozenset({_S.RUNNING}), _S.QUEUED),
        Move.RETRY: Transition(frozenset({_S.RUNNING, _S.WAITING}), _S.RETRYING),
        Move.WAIT: Transition(frozenset({_S.RUNNING}), _S.WAITING),
        Move.REQUEST_CANCEL: Transition(frozenset({_S.RUNNING}), _S.CANCELLING),
        Move.SUCCEED: Transition(frozenset({_S.RUNNING, _S.WAITING}), _S.SUCCEEDED),
        Move.FAIL: Transition(frozenset({_S.RUNNING, _S.WAITING}), _S.FAILED),
        Move.TIME_OUT: Transition(
            frozenset({_S.QUEUED, _S.BUFFERED, _S.RUNNING, _S.WAITING, _S.RETRYING}), _S.TIMED_OUT
        ),
        Move.CANCEL: Transition(
            frozenset({_S.QUEUED, _S.BUFFERED, _S.WAITING, _S.RETRYING, _S.CANCELLING, _S.BLOCKED}), _S.CANCELLED
        ),
        Move.SKIP: Transition(frozenset({_S.QUEUED, _S.BUFFERED, _S.BLOCKED}), _S.SKIPPED),
    }
)

FINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.TIMED_OUT, _S.CANCELLED, _S.SKIPPED})
OPEN = frozenset(RunState) - FINAL
NOT_STARTED = [RunState.QUEUED, RunState.BUFFERED, RunState.BLOCKED]  # of a run without an attempt
OWNED = [RunState.RUNNING, RunState.CANCELLING]  # an executor owns the attempt, guarded by its lease
IN_FLIGHT = [*OWNED, RunState.WAITING]  # its attempt has begun and has not ended
DEAD_LETTERED = frozenset({_S.FAILED, _S.TIMED_OUT})
SCHEDULED = "scheduled"  # not a state: a queued run is shown so while its publish_at is ahead

_END_MOVES: Mapping[RunState, Move] = MappingProxyType(
    {MOVES[move].target: move for move in (Move.SUCCEED, Move.FAIL, Move.TIME_OUT, Move.CANCEL, Move.SKIP)}
)


def sources(move: Move) -> list[str]:
    """Return the states a move may start from, sorted, as a parameter of SQL."""
    return sorted(MOVES[move].sources)


def target(move: Move) -> RunState:
    """Return the state a move leads to."""
    return MOVES[move].target


def end_of(state: RunState, reported: RunState) -> RunState | None:
    """Return the terminal state of a run in `state` whose attempt reports `reported`.

    A run that is `cancelling` can only become `cancelled`, even if its handler succeeds meanwhile.

    Returns:
        None if no move leads there: the report is late.
    """
    if state is RunState.CANCELLING:
        return RunState.CANCELLED
    move = _END_MOVES[reported]
    return reported if state in MOVES[move].sources else None


def sequence_of(attempt: int, *, ended_running: bool | None) -> int:
    """Return the position of an event within its run, derived from the attempt and not counted.

    The start of attempt `a` is `2a - 1`, its end `2a`, an end between attempts `2a + 1`. Positions strictly increase
    over a run's life, and the same event always has the same position.

    Args:
        attempt: The run's attempt at the event; 0 before the first claim.
        ended_running: None for the start of the attempt, True for its end, False for the end of a run without one.
    """
    if ended_running is None:
        return 2 * attempt - 1
    return 2 * attempt if ended_running else 2 * attempt + 1
