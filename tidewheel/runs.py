"""A run's life: every state, every move, written once.

SQL gets its allowed sources and its target from `MOVES`; the CHECK constraints, the final states, the API's enumeration
and the diagram in `docs/run-states.md` are compared with this table by tests. No state is spelled out anywhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    BUFFERED = "buffered"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    CANCELLING = "cancelling"
    BLOCKED = "blocked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Cause(StrEnum):
    """Why there is a run."""

    TIMER = "timer"
    TRIGGER = "trigger"
    BACKFILL = "backfill"
    WORKFLOW = "workflow"
    RETRY = "retry"


class Lane(StrEnum):
    """Priority class; one topic each."""

    CRITICAL = "critical"
    STANDARD = "standard"
    BATCH = "batch"


class Overlap(StrEnum):
    """What happens when a run is about to start while another of its job has the turn."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW_ALL = "allow_all"


class AttemptOutcome(StrEnum):
    """How an attempt ended; `lost` is an attempt's outcome, never a run's state."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"
    SNOOZED = "snoozed"


class Move(StrEnum):
    """What can happen to a run."""

    CLAIM = "claim"
    BUFFER = "buffer"
    PROMOTE = "promote"
    RELEASE = "release"
    SNOOZE = "snooze"
    RETRY = "retry"
    WAIT = "wait"
    REQUEST_CANCEL = "request_cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    TIME_OUT = "time_out"
    CANCEL = "cancel"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: from which states a move is allowed, and where it leads."""

    sources: frozenset[RunState]
    target: RunState


_S = RunState

MOVES: Mapping[Move, Transition] = MappingProxyType(
    {
        Move.CLAIM: Transition(frozenset({_S.QUEUED, _S.RETRYING}), _S.RUNNING),
        Move.BUFFER: Transition(frozenset({_S.QUEUED}), _S.BUFFERED),
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
OWNED = [RunState.RUNNING, RunState.CANCELLING]  # an executor's attempt is under way; its lease guards it
DEAD_LETTERED = frozenset({_S.FAILED, _S.TIMED_OUT})
SCHEDULED = "scheduled"  # no state: how a queued run is shown while its publish_at is ahead

_END_MOVES: Mapping[RunState, Move] = MappingProxyType(
    {MOVES[move].target: move for move in (Move.SUCCEED, Move.FAIL, Move.TIME_OUT, Move.CANCEL, Move.SKIP)}
)


def sources(move: Move) -> list[str]:
    """The states a move may start from, sorted, as SQL wants them."""
    return sorted(MOVES[move].sources)


def target(move: Move) -> RunState:
    """The state a move leads to."""
    return MOVES[move].target


def end_of(state: RunState, wanted: RunState) -> RunState | None:
    """The terminal state that a run in `state` reaches when its attempt reports `wanted`.

    A run that is being cancelled can only become cancelled, whatever its handler managed to do meanwhile.

    Returns:
        None where the state machine has no such move: the report comes too late.
    """
    if state is RunState.CANCELLING:
        return RunState.CANCELLED
    move = _END_MOVES[wanted]
    return wanted if state in MOVES[move].sources else None


def sequence_of(attempt: int, *, ended_running: bool | None) -> int:
    """The position of an event within its run, derived so that nobody has to count.

    Started is `2a - 1`, the end of attempt `a` `2a`, an end between attempts `2a + 1`: strictly increasing over a run's
    life, the same again when the same event is written again.

    Args:
        attempt: The run's attempt when it happens; 0 before the first claim.
        ended_running: None for the start of the attempt, True for its end, False for a run that ended while none ran.
    """
    if ended_running is None:
        return 2 * attempt - 1
    return 2 * attempt if ended_running else 2 * attempt + 1
