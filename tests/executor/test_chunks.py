"""Chunk handlers: which runs share a call, and how each of them ends."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.executor import chunk_handlers
from tests.executor.chunk_handlers import CALLS, MOST, Calls
from tests.executor.handlers import handlers
from tests.executor.own_transactions import MAKE_EFFECTS, effects
from tests.executor.running import Executing
from tests.fixtures.acts import about, submission
from tests.fixtures.services import until
from tidewheel.executor.output_capture import captured
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import ReplyStatus

pytestmark = pytest.mark.kafka

SOON: dict[str, Any] = {"retry": {"max_attempts": 3, "initial": "10ms", "jitter": "0%"}}
LARGE_BYTES, FULL = 250_000, 56  # payloads that fill an executor, in three forms each: 40 MiB
BOTH = pytest.mark.parametrize("handler", ["chunks.loop", "chunks.thread"])


@pytest.fixture
def calls() -> Iterator[Calls]:
    """The calls of this test, which no longer wait at its end."""
    name = uuid4().hex
    CALLS[name] = made = Calls()
    yield made
    made.opened.set()


class Chunked:
    def __init__(self, executing: Executing, calls: Calls) -> None:
        self.executing, self.database = executing, executing.database
        self.calls, self._name = calls, next(name for name, one in CALLS.items() if one is calls)

    def act(self, does: str = "succeed") -> dict[str, object]:
        return {"calls": self._name, "does": does}

    def trigger(self, handler: str, *does: str, **job: object) -> list[UUID]:
        return [self.executing.trigger(handler, self.act(each), **SOON | job) for each in does]

    def states(self, runs: list[UUID]) -> set[str]:
        return {self.executing.ended(run_id).state for run_id in runs}

    def outcomes(self, run_id: UUID) -> list[str]:
        return [outcome for _, outcome in self.database.attempts(run_id)]


@pytest.fixture
def chunked(executing: Executing, calls: Calls) -> Chunked:
    return Chunked(executing, calls)


def running(chunked: Chunked, **settings: object) -> Any:  # noqa: ANN401
    return chunked.executing.running(known=handlers(chunk_handlers), **settings)


@pytest.mark.landing
@BOTH
def test_runs_that_are_due_together_share_calls_up_to_the_most(chunked: Chunked, handler: str) -> None:
    runs = chunked.trigger(handler, *["succeed"] * (MOST + 2))
    with running(chunked):
        assert chunked.states(runs) == {"succeeded"}
        results = sorted(chunked.executing.ended(run_id).result or b"" for run_id in runs)
    assert (chunked.calls.sizes, sorted(chunked.calls.runs)) == ([MOST, 2], sorted(runs))
    assert results == [b'{"with":2}'] * 2 + [b'{"with":4}'] * MOST


def test_published_runs_share_a_call(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.loop", *["succeed"] * MOST)
    chunked.executing.publish(*runs)
    with running(chunked, sweep=timedelta(days=1)):
        assert chunked.states(runs) == {"succeeded"}
    assert chunked.calls.sizes == [MOST]


@BOTH
def test_outcomes_before_an_exception_stand_and_the_others_run_again_alone(chunked: Chunked, handler: str) -> None:
    runs = chunked.trigger(handler, "succeed", "fail", "raise", "succeed")
    with running(chunked):
        assert chunked.states(runs) == {"succeeded"}
    first = chunked.calls.made[0]
    assert sorted(first) == sorted(runs)
    assert sorted(chunked.calls.sizes[1:]) == [1] * len(chunked.calls.sizes[1:])
    before = first.index(runs[2])
    for place, run_id in enumerate(first):
        stands = run_id in {runs[0], runs[3]} and place < before
        assert chunked.outcomes(run_id) == (["succeeded"] if stands else ["failed", "succeeded"]), place
    raised = chunked.database.rows(
        "SELECT error_type, error_message FROM ended_attempts WHERE run_id = %s AND attempt = 1", [runs[2]]
    )
    assert raised == [("LookupError", "midway")]


@BOTH
def test_run_that_is_given_no_outcome_fails_with_the_remedy(chunked: Chunked, handler: str) -> None:
    left, done = chunked.trigger(handler, "nothing", "succeed", retry={"max_attempts": 1})
    with running(chunked):
        ended = chunked.executing.ended(left)
        assert chunked.executing.ended(done).state == "succeeded"
    assert (ended.state, ended.error_type) == ("failed", "NoOutcome")
    assert "item.succeed or item.fail" in (ended.error_message or "")


def test_invalid_payload_fails_its_own_run_alone(chunked: Chunked) -> None:
    wrong = chunked.executing.trigger("chunks.loop", {"call": "none"}, **SOON)
    right = chunked.trigger("chunks.loop", "succeed", "succeed")
    with running(chunked):
        assert chunked.states(right) == {"succeeded"}
        assert chunked.executing.ended(wrong).error_type == "InvalidPayload"
    assert chunked.calls.sizes == [2]


def test_snoozed_run_runs_again(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.loop", "snooze", "succeed")
    with running(chunked):
        assert chunked.states(runs) == {"succeeded"}
    assert chunked.calls.sizes == [2, 1]
    assert chunked.outcomes(runs[0]) == ["snoozed", "succeeded"]


@pytest.mark.landing
@BOTH
@pytest.mark.parametrize("timeout", ["start_to_close", "heartbeat", "schedule_to_close"])
def test_timeout_decides_one_run_while_the_others_go_on(chunked: Chunked, handler: str, timeout: str) -> None:
    [brief] = chunked.trigger(handler, "succeed", retry={"max_attempts": 1}, **{timeout: "1s"})
    others = chunked.trigger(handler, "wait", "wait")
    with running(chunked):
        ended = chunked.executing.ended(brief)
        assert (ended.state, ended.reason, chunked.calls.ended) == ("timed_out", timeout, 0)
        chunked.calls.opened.set()
        assert chunked.states(others) == {"succeeded"}
    assert (chunked.calls.sizes, chunked.calls.stopped) == ([3], 0)


@BOTH
def test_cancel_decides_one_run_while_the_others_go_on(chunked: Chunked, handler: str) -> None:
    runs = chunked.trigger(handler, "wait", "wait", "wait")
    with running(chunked):
        until(lambda: chunked.calls.made, "the call begins")
        chunked.database.apply_batch({"type": "run.cancel", "run_id": str(runs[1])})
        assert chunked.executing.ended(runs[1]).state == "cancelled"
        assert chunked.calls.ended == 0
        chunked.calls.opened.set()
        assert chunked.states([runs[0], runs[2]]) == {"succeeded"}
    assert chunked.calls.stopped == 0


@pytest.mark.landing
@BOTH
def test_call_ends_and_frees_its_slots_when_no_run_is_left(chunked: Chunked, handler: str) -> None:
    """A coroutine by a CancelledError, a thread by what it sees."""
    runs = chunked.trigger(handler, *["wait"] * 3, retry={"max_attempts": 1}, start_to_close="1s")
    with running(chunked, slots=3):
        assert chunked.states(runs) == {"timed_out"}
        until(lambda: chunked.calls.ended, "the call ends")
        assert chunked.calls.stopped == (handler == "chunks.loop")
        assert chunked.states(chunked.trigger(handler, *["succeed"] * 3)) == {"succeeded"}


@pytest.mark.landing
@BOTH
def test_time_limit_of_a_decided_run_has_no_effect(chunked: Chunked, handler: str) -> None:
    brief: dict[str, Any] = {"retry": {"max_attempts": 1}, "start_to_close": "1s", "heartbeat": "1s"}
    [early, late] = chunked.trigger(handler, "early", "succeed", **brief)
    other = chunked.trigger(handler, "wait")
    with running(chunked):
        assert chunked.states([early]) == {"succeeded"}
        assert chunked.states([late]) == {"timed_out"}
        chunked.calls.opened.set()
        assert chunked.states(other) == {"succeeded"}
    assert (chunked.calls.cancelled, chunked.calls.stopped) == ({late}, 0)


def test_missing_heartbeat_of_a_decided_run_ends_no_call(chunked: Chunked) -> None:
    brief: dict[str, Any] = {"retry": {"max_attempts": 1}, "heartbeat": "1s"}
    early = chunked.trigger("chunks.loop", "early", **brief)
    with running(chunked):
        assert chunked.states(early) == {"succeeded"}
        assert chunked.states(chunked.trigger("chunks.loop", "wait", **brief)) == {"timed_out"}
        until(lambda: chunked.calls.ended, "the later call ends")
        assert (chunked.calls.stopped, chunked.calls.ended) == (1, 1)
        chunked.calls.opened.set()
    assert (chunked.calls.stopped, chunked.calls.ended) == (1, 2)


def test_last_time_limit_ends_a_call_whose_runs_are_decided(chunked: Chunked) -> None:
    early = chunked.trigger("chunks.loop", "early", "early", start_to_close="1s")
    with running(chunked):
        assert chunked.states(early) == {"succeeded"}
        until(lambda: chunked.calls.stopped, "the call is cancelled")


def test_cancelled_runs_that_wait_for_a_thread_free_their_slots(chunked: Chunked) -> None:
    [busy] = chunked.trigger("chunks.thread", "wait")
    with running(chunked, threads=1, slots=3, cancel_grace=timedelta(minutes=1)):
        until(lambda: chunked.calls.made, "the thread is busy")
        waiting = chunked.trigger("chunks.thread", "succeed", "succeed")
        until(lambda: {chunked.database.open_run(each).state for each in waiting} == {"running"}, "they are claimed")
        for run_id in waiting:
            chunked.database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})
        assert chunked.states(waiting) == {"cancelled"}
        assert chunked.states(chunked.trigger("chunks.loop", "succeed", "succeed")) == {"succeeded"}
        chunked.calls.opened.set()
        assert chunked.states([busy]) == {"succeeded"}
    assert chunked.calls.sizes == [1, 2]


def test_run_that_waits_for_a_thread_times_out(chunked: Chunked) -> None:
    [busy] = chunked.trigger("chunks.thread", "wait")
    with running(chunked, threads=1):
        until(lambda: chunked.calls.made, "the thread is busy")
        [brief] = chunked.trigger("chunks.thread", "succeed", schedule_to_close="1s", start_to_close="1s")
        [patient] = chunked.trigger("chunks.thread", "succeed", start_to_close="1s", heartbeat="1s")
        ended = chunked.executing.ended(brief)
        assert (ended.state, ended.reason) == ("timed_out", "schedule_to_close")
        chunked.calls.opened.set()
        assert chunked.states([busy, patient]) == {"succeeded"}
    assert brief not in chunked.calls.runs
    assert chunked.outcomes(patient) == ["succeeded"]


def test_run_whose_time_is_over_when_the_call_starts_never_starts(chunked: Chunked) -> None:
    [brief] = chunked.trigger("chunks.patient", "succeed", schedule_to_close="1s")
    others = chunked.trigger("chunks.patient", *["succeed"] * (MOST - 2))
    with running(chunked):
        over = "SELECT schedule_to_close_at < now() - interval '0.5 s' FROM job_runs WHERE run_id = %s"
        until(lambda: chunked.database.rows(over, [brief]) == [(True,)], "its time is over")
        others += chunked.trigger("chunks.patient", "succeed")
        ended = chunked.executing.ended(brief)
        assert (ended.state, ended.reason) == ("timed_out", "schedule_to_close")
        assert chunked.states(others) == {"succeeded"}
    assert brief not in chunked.calls.runs


def test_cancelled_run_that_waits_for_others_never_starts(chunked: Chunked) -> None:
    run_id, *others = chunked.trigger("chunks.patient", *["succeed"] * (MOST - 1))
    with running(chunked):
        until(lambda: chunked.database.open_run(run_id).state == "running", "it is claimed")
        chunked.database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})
        assert chunked.executing.ended(run_id).state == "cancelled"
        others += chunked.trigger("chunks.patient", "succeed")
        assert chunked.states(others) == {"succeeded"}
    assert run_id not in chunked.calls.runs


def test_full_executor_starts_a_chunk_that_nothing_can_join(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.patient", "succeed", "succeed")
    with running(chunked, slots=2):
        for ended in [chunked.executing.ended(run_id) for run_id in runs]:
            assert ended.started_at is not None
            assert ended.finished_at is not None
            assert ended.finished_at - ended.started_at < timedelta(seconds=5), "it waits up to 10 s for others"
    assert chunked.calls.sizes == [2]


@pytest.mark.landing
@BOTH
def test_stopping_executor_releases_a_call_and_its_runs_are_gathered_again(chunked: Chunked, handler: str) -> None:
    runs = chunked.trigger(handler, "wait", "wait", "wait")
    with running(chunked, drain_timeout=timedelta(0)):
        until(lambda: chunked.calls.made, "the call begins")
    assert {chunked.database.open_run(run_id).failed_attempts for run_id in runs} == {0}
    assert chunked.calls.stopped == (handler == "chunks.loop")
    chunked.calls.opened.set()
    with running(chunked):
        assert chunked.states(runs) == {"succeeded"}
    assert {tuple(chunked.outcomes(run_id)) for run_id in runs} == {("released", "succeeded")}
    assert chunked.calls.sizes == [3, 3]


def test_stopping_executor_starts_what_waits_for_others(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.patient", "succeed", "succeed")
    with running(chunked):
        until(lambda: {one.state for one in chunked.database.job_runs()} == {"running"}, "both are claimed")
    assert {tuple(chunked.outcomes(run_id)) for run_id in runs} == {("succeeded",)}
    assert chunked.calls.sizes == [2]


def test_runs_of_two_tenants_or_two_versions_never_share_a_call(chunked: Chunked) -> None:
    database, job = chunked.database, {"target": "chunks.loop", "payload": chunked.act()}
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for tenant in ("default", "acme"):
        replies = database.apply_batch(submission("job", **job) | {"tenant": tenant})
        assert [reply.status for reply in replies] == [ReplyStatus.ACCEPTED]
    runs = [database.apply_batch(about("job.trigger", "job", tenant=tenant)) for tenant in ("default", "acme")]
    database.submit("job", **job | {"description": "the second"})
    runs += [database.apply_batch(about("job.trigger", "job"))]
    with running(chunked):
        assert chunked.states([UUID(reply.run_id) for [reply] in runs]) == {"succeeded"}
    assert chunked.calls.sizes == [1, 1, 1]


def test_runs_of_one_ordering_key_never_share_a_call(chunked: Chunked) -> None:
    chunked.database.submit("job", target="chunks.loop", payload=chunked.act())
    ordered = [chunked.database.trigger("job", ordering_key="acme") for _ in range(3)]
    free = [chunked.database.trigger("job") for _ in range(2)]
    with running(chunked):
        assert chunked.states(ordered + free) == {"succeeded"}
    assert [sorted(set(call) & set(ordered)) for call in chunked.calls.made] == [[run_id] for run_id in ordered]


def test_at_most_once_runs_run_alone(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.loop", "succeed", "raise", delivery="at_most_once")
    with running(chunked):
        assert sorted(chunked.executing.ended(run_id).state for run_id in runs) == ["failed", "succeeded"]
    assert chunked.calls.sizes == [1, 1]


def test_payloads_count_until_the_call_has_ended(chunked: Chunked) -> None:
    payload = chunked.act("early") | {"ignored": "y" * LARGE_BYTES}
    chunked.database.submit("large", target="chunks.many", payload=payload)
    early = [chunked.database.trigger("large") for _ in range(FULL)]
    with running(chunked, slots=100):
        assert chunked.states(early) == {"succeeded"}
        beyond = chunked.database.trigger("large")
        assert chunked.states(chunked.trigger("chunks.loop", "succeed", lane="critical")) == {"succeeded"}
        assert chunked.executing.state(beyond) is RunState.QUEUED
        chunked.calls.opened.set()
        assert chunked.states([beyond]) == {"succeeded"}


def test_log_of_an_item_is_stored_with_its_run_and_output_of_the_call_with_none(
    chunked: Chunked, caplog: pytest.LogCaptureFixture
) -> None:
    runs = chunked.trigger("chunks.loop", "log", "log")
    with captured(), running(chunked):
        assert chunked.states(runs) == {"succeeded"}
        [alone] = chunked.trigger("chunks.loop", "log")
        assert chunked.executing.ended(alone).state == "succeeded"
    found = dict(chunked.database.rows("SELECT run_id, output FROM attempt_outputs WHERE output IS NOT NULL"))
    for run_id in runs:
        [line] = found[run_id].decode().splitlines()
        assert line.endswith(f"line of {run_id}")
    assert "line of the call" in found[alone].decode()
    places = {record.funcName for record in caplog.records if record.getMessage().startswith("line of ")}
    assert places == {"_act"}, "the line that logs, not one of Tidewheel"


def test_runs_of_a_call_complete_in_one_transaction(chunked: Chunked) -> None:
    chunked.database.execute(MAKE_EFFECTS)
    url = chunked.database.url_of("application")
    runs = [chunked.executing.trigger("chunks.own", url, ordering_key=key) for key in ("a", "b", "c")]
    with running(chunked):
        ends = [chunked.executing.ended(run_id) for run_id in runs]
    assert {(end.state, end.attempt, end.result) for end in ends} == {("succeeded", 1, b"3")}
    assert [effects(chunked.database, run_id) for run_id in runs] == [1, 1, 1]


def test_run_that_is_over_in_a_common_transaction_costs_the_others_no_failure(chunked: Chunked) -> None:
    chunked.database.execute(MAKE_EFFECTS)
    url, calls = chunked.database.url_of("application"), chunked.calls
    CALLS[url] = calls
    runs = [chunked.executing.trigger("chunks.own", url) for _ in range(3)]
    with running(chunked):
        until(lambda: calls.made, "the call begins")
        chunked.database.apply_batch({"type": "run.cancel", "run_id": str(runs[1])})
        assert chunked.executing.ended(runs[1]).state == "cancelled"
        calls.opened.set()
        assert chunked.states([runs[0], runs[2]]) == {"succeeded"}
    assert {tuple(chunked.outcomes(run_id)) for run_id in (runs[0], runs[2])} == {("released", "succeeded")}
    assert [effects(chunked.database, run_id) for run_id in runs] == [1, 0, 1]


def test_run_that_has_lost_two_executors_runs_in_a_worker_process(chunked: Chunked) -> None:
    run_id = chunked.executing.trigger("chunks.place")
    chunked.database.execute("UPDATE job_runs SET attempt = 2, lost_attempts = 2 WHERE run_id = %s", [run_id])
    with running(chunked):
        ended = chunked.executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 3)
    assert int(ended.result or b"") != os.getpid()


def test_checkpoint_of_an_item_reaches_the_attempt_that_runs_alone(chunked: Chunked) -> None:
    runs = chunked.trigger("chunks.thread", "beat", "beat")
    with running(chunked):
        assert {chunked.executing.ended(run_id).result for run_id in runs} == {b'"here"'}
    assert {tuple(chunked.outcomes(run_id)) for run_id in runs} == {("failed", "succeeded")}
