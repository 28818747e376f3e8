"""For every kind of end of an attempt, log, metrics, rows, event and `explain` say the same."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY

from tests.control.explain.explaining import explanation_of
from tests.executor.ending_handlers import ending_handlers
from tests.executor.http_target import Answer, serving
from tests.executor.running import Executing
from tests.executor.test_attempt_output import Lines
from tests.fixtures.database import Database, Template
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tidewheel.local.stack import StackInfo
from tidewheel.nouns.runs.detail import show_run
from tidewheel.runs import FINAL, MOVES, AttemptOutcome, Move, RunState
from tidewheel.task_tokens import TASK_TOKEN_HEADER

pytestmark = pytest.mark.kafka

ALL_WAYS = ("loop", "thread", "process")
STOPPED = "stopped"  # the queue of the executors that a test stops
FIRST, LAST = "failure 1 of 3, retrying in 10 ms: ", "failure 1 of 1, the run fails: "
ONCE: dict[str, Any] = {"delivery": "at_most_once"}
NO_RETRY: dict[str, Any] = {"retry": {"max_attempts": 1}}
SUCCEEDED, COMPLETED = r"succeeded in \S+ m?s", r"succeeded in \S+ m?s, by complete_in"
CANCELLED = (r"cancel requested", r"cancelled after \S+ m?s")
S, F, T = AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT
numbers = count(1)


@dataclass(frozen=True)
class End:
    """A kind of end: what each attempt does, as `ending_handlers.py` names it, and what is seen of it."""

    do: tuple[str, ...]
    outcomes: tuple[AttemptOutcome, ...]
    lines: tuple[str, ...]  # regular expressions of whole lines
    move: Move  # from `running`
    ways: tuple[str, ...] = ALL_WAYS
    act: str = ""
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def state(self) -> RunState:
        """The state of the run, by its last attempt."""
        return RunState(self.outcomes[-1].value)


ENDS = {
    "returned": End(("return",), (S,), (SUCCEEDED,), Move.SUCCEED),
    "raised": End(("raise", "return"), (F, S), (FIRST + "ValueError: no such order", SUCCEEDED), Move.RETRY),
    "raised for the last time": End(("raise",), (F,), (LAST + "ValueError: no such order",), Move.FAIL, job=NO_RETRY),
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
        job={"start_to_close": "1s"},
    ),
    "completed in its own transaction": End(("complete",), (S,), (COMPLETED,), Move.SUCCEED),
    "completed on the last attempt": End(("complete",), (S,), (COMPLETED,), Move.SUCCEED, job=NO_RETRY),
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
    "lost": End(("return", "return"), (AttemptOutcome.LOST, S), (SUCCEEDED,), Move.RETRY, act="lose"),
    "http 200": End(("200",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("http",)),
    "http 500": End(("500",), (F,), (LAST + "http_500: .*",), Move.FAIL, ways=("http",), job=NO_RETRY),
    "http 202": End(
        ("202",),
        (S,),
        ("waiting up to 3600 s for external completion",),
        Move.WAIT,
        ways=("http",),
        act="complete",
    ),
    "program that succeeds": End(("true",), (S,), (SUCCEEDED,), Move.SUCCEED, ways=("shell",)),
    "program that fails": End(("false",), (F,), (LAST + "exit_1: .*",), Move.FAIL, ways=("shell",), job=NO_RETRY),
}
CASES = [pytest.param(end, way, id=f"{name}-{way}") for name, end in ENDS.items() for way in end.ways]


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    kept, log = Lines(), logging.getLogger("tidewheel.executor")
    before = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    yield kept
    log.removeHandler(kept)
    log.setLevel(before)


@pytest.fixture(scope="module")
def executing(template: Template, info: StackInfo, lines: Lines) -> Iterator[Executing]:
    """One executor for all cases but those that stop one."""
    del lines
    database = Database(template.copy(), template.installation)
    made = Executing(database, info.kafka)
    made.make_topics()
    with serving_runs(made, "default"):
        yield made
    database.close()


def serving_runs(executing: Executing, queue: str) -> AbstractContextManager[None]:
    return executing.running(
        known=ending_handlers(),
        queues=queue,
        targets="handler,http,shell",
        log_runs=True,
        drain_timeout=timedelta(0),
        http_allow_private=True,
        shell_allow="/bin/true,/bin/false",
    )


def counted() -> Counter[tuple[str, str]]:
    """Return the counters of ends in this process."""
    found: Counter[tuple[str, str]] = Counter()
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name in {"tidewheel_attempts_total", "tidewheel_runs_ended_total"}:
                [label] = sample.labels.values()
                found[sample.name, label] = int(sample.value)
    return found


def fired(executing: Executing, end: End, target: object) -> UUID:
    """Fire a job that is due now; return its run."""
    database, key = executing.database, f"job-{next(numbers)}"
    retry = {"max_attempts": 3, "backoff": "fixed", "initial": "10ms", "jitter": "0%"}
    payload = {"do": end.do, "url": database.url}
    at = {"once": (database.now() + timedelta(milliseconds=20)).isoformat()}
    queue = STOPPED if end.act in {"stop", "lose"} else "default"
    database.submit(key, target=target, payload=payload, schedule=at, **({"queue": queue, "retry": retry} | end.job))
    until(lambda: fire_due(database), "it fires")
    return database.value("SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE key = %s", [key])


def target_of(way: str, end: End, url: str) -> object:
    if way == "http":
        return {"type": "http", "url": url} | ({"async": True, "async_timeout": "1h"} if end.do == ("202",) else {})
    return {"type": "shell", "argv": [f"/bin/{end.do[0]}"]} if way == "shell" else f"ends.{way}"


def cancel(executing: Executing, run_id: UUID) -> None:
    until(lambda: executing.state(run_id) is RunState.RUNNING, "it runs")
    executing.database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})


def stop(executing: Executing, run_id: UUID) -> None:
    """Stop the executor that runs it, and start another."""
    saved = "SELECT count(progress) FROM run_inputs WHERE run_id = %s"
    with serving_runs(executing, STOPPED):
        until(lambda: executing.database.value(saved, [run_id]), "its handler has started")
    with serving_runs(executing, STOPPED):
        until(lambda: executing.state(run_id) in FINAL, "it ends")


def lose(executing: Executing, run_id: UUID) -> None:
    """Let an executor own it that sends no heartbeat."""
    ghost = uuid4()
    executing.database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, lease, last_heartbeat_at, started_at)"
        " VALUES (%s, 'ghost', '{}', '{}', 1, '100ms', now(), now())",
        [ghost],
    )
    executing.database.begin(run_id, ghost)
    quick = {"lease": timedelta(milliseconds=600)}
    with executing.running(known=ending_handlers(), queues=STOPPED, log_runs=True, **quick):
        until(lambda: executing.state(run_id) in FINAL, "it ends")


ACTS: dict[str, Callable[[Executing, UUID], None]] = {"cancel": cancel, "stop": stop, "lose": lose}


@pytest.mark.parametrize(("end", "way"), CASES)
def test_log_metrics_rows_event_and_explanation_of_an_end_agree(
    executing: Executing, lines: Lines, end: End, way: str
) -> None:
    database, before = executing.database, counted()
    with serving(Answer(status=int(end.do[0]) if way == "http" else 200)) as server:
        run_id = fired(executing, end, target_of(way, end, server.url()))
        if end.act == "complete":
            until(lambda: executing.state(run_id) is RunState.WAITING, "it waits")
            token = server.received[0].headers[TASK_TOKEN_HEADER.lower()]
            session = database.session()
            with session.transaction() as connection:
                database.apply_batch_within(connection, {"type": "run.complete", "token": token, "status": "succeeded"})
            session.close()
        elif end.act:
            ACTS[end.act](executing, run_id)
        ended = executing.ended(run_id)
    until(lambda: len(lines.about(run_id)) >= len(end.lines), f"the log: {lines.about(run_id)}")
    assert (ended.state, ended.attempt) == (end.state, len(end.outcomes))
    assert database.attempts(run_id) == list(enumerate(end.outcomes, 1))
    if end.do[-1].startswith("complete"):
        assert ended.result == b'"completed"', "what the handler returned or raised later changes nothing"
    written = lines.about(run_id)
    assert all(re.fullmatch(line, text) for line, text in zip(end.lines, written, strict=True)), written
    [event] = [one for one in database.completions() if one.run_id == str(run_id)]
    assert (event.status, event.attempt) == (end.state, len(end.outcomes))
    assert (event.error and event.error.type) == ended.error_type
    expected = Counter({("tidewheel_attempts_total", outcome.value): 1 for outcome in end.outcomes})
    expected["tidewheel_runs_ended_total", end.state.value] = 1
    assert counted() - before == expected
    detail = database.within(show_run, "default", run_id)
    explained = explanation_of(database, detail.summary.scheduled_at, detail.summary.key)
    assert f"{end.state.replace('_', ' ')}" in explained.words
    assert [one.outcome for one in detail.attempts] == list(end.outcomes)


def test_table_has_every_outcome_state_and_move() -> None:
    """A new kind of end fails here until it has its row."""
    assert {outcome for end in ENDS.values() for outcome in end.outcomes} == set(AttemptOutcome)
    assert {end.state for end in ENDS.values()} == FINAL - {RunState.SKIPPED}
    started = {move for move, row in MOVES.items() if RunState.RUNNING in row.sources}
    assert {end.move for end in ENDS.values()} == started
