"""Kinds of ends: what each attempt does, and what log, metrics, rows, event and `explain` then show."""

from dataclasses import dataclass, field
from typing import Any

from tidewheel.runs import MOVES, OWNED, AttemptOutcome, Move, RunState

ALL_WAYS = ("loop", "thread", "process")
OUTSIDE = ("http", "kafka")  # the targets whose end comes from outside
STOPPED = "stopped"  # the queue of the executors that a test stops
NOBODY: dict[str, Any] = {"queue": "nobody"}  # a queue that no executor serves
REMOTE: dict[str, Any] = {"queue": "remote"}  # the queue of an executor over REST
FIRST, LAST = "failure 1 of 3, retrying in 10 ms: ", "failure 1 of 1, the run fails: "
ONCE: dict[str, Any] = {"delivery": "at_most_once"}
NO_RETRY: dict[str, Any] = {"retry": {"max_attempts": 1}}
LATE_RETRY: dict[str, Any] = {"retry": {"max_attempts": 3, "initial": "1h", "jitter": "0%"}}
SUCCEEDED, COMPLETED = r"succeeded in \S+ m?s", r"succeeded in \S+ m?s, by complete_in"
CANCELLED = (r"cancel requested", r"cancelled after \S+ m?s")
LATER = "failure 1 of 3, retrying in 3600 s: ValueError: no such order"
WAITS = r"waiting up to \d+ s for external completion"
S, F, T = AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT
C = AttemptOutcome.CANCELLED


@dataclass(frozen=True)
class End:
    """A kind of end: what each attempt does, as `ending_handlers.py` names it, and what is seen of it."""

    do: tuple[str, ...]
    outcomes: tuple[AttemptOutcome, ...]
    lines: tuple[str, ...]  # regular expressions of whole lines
    move: Move
    ways: tuple[str, ...] = ALL_WAYS
    act: str = ""
    job: dict[str, Any] = field(default_factory=dict[str, Any])
    source: RunState = RunState.RUNNING  # of the move

    @property
    def between(self) -> bool:
        return self.source not in (*OWNED, RunState.WAITING)

    @property
    def state(self) -> RunState:
        return MOVES[self.move].target if self.between else RunState(self.outcomes[-1].value)


ENDS = {
    "returned": End(("return",), (S,), (SUCCEEDED,), Move.SUCCEED),
    "raised": End(("raise", "return"), (F, S), (FIRST + "ValueError: no such order", SUCCEEDED), Move.RETRY),
    "raised for the last time": End(
        ("raise",), (F,), (LAST + "ValueError: no such order",), Move.FAIL, ways=("loop",), job=NO_RETRY
    ),
    "permanent": End(
        ("permanent",), (F,), ("failure 1 of 3, the run fails without a retry: Permanent: no such address",), Move.FAIL
    ),
    "snoozed": End(("snooze", "return"), (AttemptOutcome.SNOOZED, S), ("snoozed for 1 s", SUCCEEDED), Move.SNOOZE),
    "cancelled by its handler": End(("cancel",), (AttemptOutcome.CANCELLED,), CANCELLED[1:], Move.REQUEST_CANCEL),
    "cancelled by request": End(("hold",), (AttemptOutcome.CANCELLED,), CANCELLED, Move.REQUEST_CANCEL, act="cancel"),
    "returned in spite of a cancel": End(
        ("hold-return",), (AttemptOutcome.CANCELLED,), CANCELLED, Move.REQUEST_CANCEL, act="cancel"
    ),
    "raised in spite of a cancel": End(
        ("hold-raise",),
        (AttemptOutcome.CANCELLED,),
        (CANCELLED[0], "attempt failed during the run's cancellation; the run is cancelled: ValueError: stopped"),
        Move.REQUEST_CANCEL,
        ways=("loop", "thread"),
        act="cancel",
    ),
    "timed out": End(
        ("hold",),
        (T,),
        ("failure 1 of 1, the run times out: timeout_start_to_close: start_to_close of 1 s has passed",),
        Move.TIME_OUT,
        job=NO_RETRY | {"start_to_close": "1s"},
    ),
    "timed out and retried": End(
        ("hold", "return"),
        (T, S),
        (FIRST + "timeout_start_to_close: start_to_close of 1 s has passed", SUCCEEDED),
        Move.RETRY,
        ways=("thread",),
        job={"start_to_close": "1s"},
    ),
    "completed in its own transaction": End(("complete",), (S,), (COMPLETED,), Move.SUCCEED),
    "completed on the last attempt": End(
        ("complete",), (S,), (COMPLETED,), Move.SUCCEED, ways=("process",), job=NO_RETRY
    ),
    "completed, not committed": End(
        ("complete-forget", "complete"),
        (F, S),
        (FIRST + "NotCommitted: the handler called complete_in and returned, .*commit it first.*", COMPLETED),
        Move.RETRY,
    ),
    "completed, then raised": End(
        ("complete-raise",),
        (S,),
        ("failed after complete_in; the run remains succeeded: ValueError: after the commit",),
        Move.SUCCEED,
    ),
    "completed, then timed out": End(
        ("complete-overrun",),
        (S,),
        ("failed after complete_in; the run remains succeeded: timeout_start_to_close: .*",),
        Move.SUCCEED,
        ways=("loop",),
        job={"start_to_close": "1s"},
    ),
    "its process died": End(("die",), (F,), (LAST + "ProcessDied: .*",), Move.FAIL, ways=("process",), job=NO_RETRY),
    "released": End(
        ("hold", "return"), (AttemptOutcome.RELEASED, S), ("released", SUCCEEDED), Move.RELEASE, act="stop"
    ),
    "unknown, at most once": End(
        ("hold",),
        (F,),
        ("failure 1 of 3, the run fails without a retry: unknown_outcome: the executor stopped .*",),
        Move.FAIL,
        act="stop",
        job=ONCE,
    ),
    "lost": End(("return", "return"), (AttemptOutcome.LOST, S), (SUCCEEDED,), Move.RETRY, ways=("loop",), act="lose"),
    "http 200": End(("200",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("http",)),
    "http 500": End(("500",), (F,), (LAST + "http_500: .*",), Move.FAIL, ways=("http",), job=NO_RETRY),
    "waiting, completed": End(("202",), (S,), (WAITS,), Move.SUCCEED, OUTSIDE, "complete", source=RunState.WAITING),
    "waiting, failed": End(("202",), (F,), (WAITS,), Move.FAIL, OUTSIDE, "fail", NO_RETRY, RunState.WAITING),
    "waiting, failed and retried": End(
        ("202", "200"), (F, S), (WAITS, SUCCEEDED), Move.RETRY, ("http",), "fail", source=RunState.WAITING
    ),
    "waiting, timed out": End(("202",), (T,), (WAITS,), Move.TIME_OUT, OUTSIDE, "overdue", NO_RETRY, RunState.WAITING),
    "waiting, timed out and retried": End(
        ("202", "200"), (T, S), (WAITS, SUCCEEDED), Move.RETRY, ("http",), "overdue", source=RunState.WAITING
    ),
    "waiting, cancelled": End(("202",), (C,), (WAITS,), Move.CANCEL, OUTSIDE, "cancel", source=RunState.WAITING),
    "never started": End(
        (), (), (), Move.TIME_OUT, ("loop",), "overdue", NOBODY | {"schedule_to_start": "100ms"}, RunState.QUEUED
    ),
    "cancelled before its start": End((), (), (), Move.CANCEL, ("loop",), "cancel", NOBODY, RunState.QUEUED),
    "retrying, timed out": End(
        ("raise",),
        (F,),
        (LATER,),
        Move.TIME_OUT,
        ("loop",),
        "overdue",
        LATE_RETRY | {"schedule_to_close": "1s"},
        RunState.RETRYING,
    ),
    "retrying, cancelled": End(
        ("raise",), (F,), (LATER,), Move.CANCEL, ("loop",), "cancel", LATE_RETRY, RunState.RETRYING
    ),
    "message written": End(("written",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("kafka",)),
    "message refused": End(
        ("nowhere",), (F,), (LAST + "kafka_unknown_topic: .*",), Move.FAIL, ways=("kafka",), job=NO_RETRY
    ),
    "function that returns": End(("200",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("lambda",)),
    "function that raises": End(
        ("broken",), (F,), (LAST + "KeyError: no order",), Move.FAIL, ways=("lambda",), job=NO_RETRY
    ),
    **{
        f"reported, {name}": End(do, outcomes, (), move, ("rest",), "report", REMOTE | job)
        for name, do, outcomes, move, job in (
            ("succeeded", ("succeeded",), (S,), Move.SUCCEED, {}),
            ("failed", ("failed",), (F,), Move.FAIL, NO_RETRY),
            ("failed and retried", ("failed", "succeeded"), (F, S), Move.RETRY, {}),
            ("timed out", ("timed_out",), (T,), Move.TIME_OUT, NO_RETRY),
            ("cancelled", ("cancelled",), (C,), Move.REQUEST_CANCEL, {}),
        )
    },
    "program that succeeds": End(("true",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("shell",)),
    "program that fails": End(("false",), (F,), (LAST + "exit_1: .*",), Move.FAIL, ways=("shell",), job=NO_RETRY),
}
