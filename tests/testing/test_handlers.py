"""`run_handler`: one attempt by the code that executors run, and everything that it tells."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

import tidewheel
from tidewheel.clock import SystemClock
from tidewheel.errors import Refused
from tidewheel.executor.context_parts import Parent, Previous
from tidewheel.testing.handlers import run_chunk, run_chunk_async, run_handler, run_handler_async

AT = datetime(2027, 3, 1, 12, tzinfo=UTC)


class Order(BaseModel):
    to: str
    copies: int = 1


@tidewheel.handler("kit.order")
async def order(context: tidewheel.Context, payload: Order) -> dict[str, object]:
    print("printing", payload.to)  # noqa: T201 - which is what is kept
    context.logger.warning("copies: %d", payload.copies)
    context.heartbeat(progress=50, checkpoint={"done": 1})
    context.heartbeat(progress=100)
    return {"to": payload.to, "at": context.scheduled_at, "went_on_from": context.checkpoint, "labels": context.labels}


@tidewheel.handler("kit.on-thread")
def on_thread(context: tidewheel.Context, payload: object) -> object:
    return {"attempt": context.attempt, "payload": repr(payload), "before": context.previous().result}


@tidewheel.handler("kit.parents")
async def parents(context: tidewheel.Context, payload: object) -> object:
    one = await context.parent_async("load")
    return [one.result, {key: each.status for key, each in (await context.parents_async()).items()}, payload]


@tidewheel.handler("kit.grow")
def grow(context: tidewheel.Context, payload: list[dict[str, object]]) -> list[bool]:
    return [context.batch.add(payload), context.batch.add(payload)]


@tidewheel.handler("kit.raise")
def raise_it(context: tidewheel.Context, payload: str) -> None:
    if payload == "look" and context.cancelled:
        raise tidewheel.Cancel
    raise {
        "value": ValueError("no such thing"),
        "permanent": tidewheel.Permanent("no such address"),
        "retry-after": tidewheel.RetryAfter(30),
        "snooze": tidewheel.Snooze(5),
        "exit": SystemExit(3),
    }[payload]


@tidewheel.handler("kit.sleep")
async def sleep(context: tidewheel.Context, payload: float) -> None:
    del context
    await asyncio.sleep(payload)


@tidewheel.handler("kit.chunk", chunk=tidewheel.Chunk(most=4))
async def print_all(items: Sequence[tidewheel.Item[Order]]) -> None:
    for item in items:
        if item.payload.copies > 9:
            raise tidewheel.RetryAfter(30)
        item.log.warning("printing %s", item.payload.to)
        item.context.heartbeat(progress=100)
        item.succeed([item.job_key, item.attempt, len(items)])


@tidewheel.handler("kit.chunk-on-thread", chunk=tidewheel.Chunk(most=2))
def stop_late(items: Sequence[tidewheel.Item[object]]) -> None:
    items[0].fail(tidewheel.Permanent("no such address"))
    assert items[1].deadline > SystemClock().now()
    while not items[1].cancelled:
        pass
    items[1].succeed()


@tidewheel.handler("kit.chunk-endless", chunk=tidewheel.Chunk(most=2))
async def wait_for_ever(items: Sequence[tidewheel.Item[object]]) -> None:
    await asyncio.Event().wait()


TURNS: list[None] = []  # of the loop, while payloads are read


class Slow(BaseModel):
    turns: int = 0

    def model_post_init(self, context: object) -> None:
        threading.Event().wait(0.006)
        self.turns = len(TURNS)


@tidewheel.handler("kit.chunk-of-slow", chunk=tidewheel.Chunk(most=5))
async def turns_before(items: Sequence[tidewheel.Item[Slow]]) -> None:
    for item in items:
        item.succeed(item.payload.turns)


@tidewheel.handler("kit.own", isolation="process")
def own(context: tidewheel.Context, payload: object) -> str:
    context.complete_in(payload, {"kept": True})  # type: ignore[arg-type]  # not read here
    return "said too late"


def test_coroutine_gets_its_payload_and_returns_its_result() -> None:
    result = run_handler(
        order, Order(to="ann", copies=2), checkpoint=[1], scheduled_at=AT, labels={"team": "x"}, key="orders"
    ).assert_succeeded()
    assert result.result == {
        "to": "ann",
        "at": "2027-03-01T12:00:00Z",
        "went_on_from": [1],
        "labels": {"team": "x"},
    }
    assert (result.progress, result.checkpoint) == (100, {"done": 1})
    assert result.output.startswith("printing ann\n")
    assert result.output.endswith("copies: 2\n")


def test_plain_function_runs_on_a_thread_by_its_name() -> None:
    result = run_handler("kit.on-thread", b"\x00\xff", attempt=3, previous=Previous(result=7)).assert_succeeded()
    assert result.result == {"attempt": 3, "payload": repr(b"\x00\xff"), "before": 7}
    assert run_handler("kit.on-thread").result == {"attempt": 1, "payload": "None", "before": None}


def test_parents_are_given_by_their_results_or_states() -> None:
    given = {"load": {"at": AT}, "check": Parent(None, "failed")}
    result = run_handler("kit.parents", parents=given).assert_succeeded()
    assert result.result == [{"at": "2027-03-01T12:00:00Z"}, {"load": "succeeded", "check": "failed"}, None]
    assert run_handler("kit.parents").error_type == "LookupError"


def test_runs_that_it_adds_to_its_batch_are_checked_and_reported() -> None:
    runs = [
        {"ref": "a", "key": "load", "payload": {"n": 1}},
        {"ref": "b", "key": "load", "after": ["a"], "delay": "5s"},
    ]
    result = run_handler(grow, runs).assert_succeeded()
    assert (result.result, result.added_runs) == ([True, False], tuple(runs))
    refused = run_handler(grow, [{"ref": "a"}])
    assert (refused.error_type, refused.added_runs) == ("InvalidInput", ())
    assert "runs.0.key" in (refused.error_message or "")


def test_invalid_payload_fails_as_in_production() -> None:
    result = run_handler("kit.order", {"copies": "many"})
    assert (result.outcome, result.error_type, result.again_in) == ("failed", "InvalidPayload", None)
    with pytest.raises(AssertionError, match="the attempt ended failed: InvalidPayload"):
        result.assert_succeeded()


@pytest.mark.parametrize(
    ("what", "outcome", "error_type", "again"),
    [
        ("value", "failed", "ValueError", True),
        ("permanent", "failed", "Permanent", False),
        ("retry-after", "failed", "RetryAfter", True),
        ("snooze", "snoozed", None, True),
        ("exit", "failed", "SystemExit", True),
    ],
)
def test_exceptions_have_their_production_outcome(
    what: str,
    outcome: str,
    error_type: str | None,
    again: bool,  # noqa: FBT001
) -> None:
    result = run_handler(raise_it, what)
    assert (result.outcome, result.error_type, result.again_in is not None) == (outcome, error_type, again)


def test_next_step_after_the_attempt_is_reported() -> None:
    assert run_handler(raise_it, "snooze").again_in == timedelta(seconds=5)
    assert run_handler(raise_it, "retry-after").again_in == timedelta(seconds=30)
    retry = {"max_attempts": 2, "backoff": "fixed", "initial": "7s", "jitter": "0%"}
    assert run_handler(raise_it, "value", retry=retry).again_in == timedelta(seconds=7)
    assert run_handler(raise_it, "value", retry=retry, attempt=2).again_in is None
    assert "no such thing" in (run_handler(raise_it, "value").trace or "")


def test_handler_may_start_with_a_requested_cancel() -> None:
    assert run_handler(raise_it, "look", cancelled=True).outcome == "cancelled"


def test_handler_has_its_jobs_timeout() -> None:
    result = run_handler(sleep, 30, start_to_close="100ms")
    assert (result.outcome, result.error_type) == ("timed_out", "timeout_start_to_close")


def test_complete_in_is_reported_as_the_result() -> None:
    """Also of a handler with a process of its own, which runs here all the same."""
    connection = object()
    result = run_handler(own, None)
    assert (result.outcome, result.result, result.completed_in) == ("succeeded", {"kept": True}, (None,))
    del connection


def test_run_handler_is_awaited_from_a_coroutine() -> None:
    async def test() -> object:
        with pytest.raises(RuntimeError, match="write `await run_handler_async"):
            run_handler(order, {"to": "ann"})
        return (await run_handler_async(order, {"to": "ann"})).assert_succeeded().progress

    assert asyncio.run(test()) == 100


def test_logging_and_printing_are_restored_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    run_handler(order, {"to": "ann"})
    print("mine")  # noqa: T201
    assert logging.getLogger().handlers == before
    assert "mine" in capsys.readouterr().out


def test_unknown_handler_is_refused_with_the_nearest() -> None:
    with pytest.raises(LookupError, match=r"there is no handler 'kit\.ordr'; did you mean 'kit\.order'\?"):
        run_handler("kit.ordr")
    with pytest.raises(LookupError, match=r"decorate it with @tidewheel\.handler"):
        run_handler(print)


def test_invalid_field_of_the_job_is_refused() -> None:
    with pytest.raises(Refused, match="start_to_close"):
        run_handler(order, {"to": "ann"}, start_to_close="soon")


def test_runs_of_a_chunk_get_outcomes_of_one_call() -> None:
    small, large = Order(to="ann"), Order(to="bob", copies=10)
    first, wrong, last, left = run_chunk(print_all, [small, {"to": 1}, large, small], key="orders")
    assert (first.assert_succeeded().result, first.progress) == (["orders", 1, 3], 100)
    assert first.output.endswith("printing ann\n")
    assert (wrong.error_type, last.error_type, left.error_type) == ("InvalidPayload", "RetryAfter", "RetryAfter")
    assert left.again_in == timedelta(seconds=30)


def test_timeout_of_a_run_decides_it_before_the_call_ends() -> None:
    first, second = run_chunk("kit.chunk-on-thread", [1, 2], start_to_close="100ms")
    assert (first.error_type, first.again_in) == ("Permanent", None)
    assert (second.outcome, second.error_type) == ("timed_out", "timeout_start_to_close")


def test_one_run_of_a_chunk_handler_runs_alone() -> None:
    assert run_handler(print_all, Order(to="ann"), attempt=2).assert_succeeded().result == ["kit.chunk", 2, 1]
    assert run_handler("kit.chunk-on-thread").error_type == "Permanent"


def test_chunk_of_another_handler_or_of_too_many_runs_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'kit\.order' has no chunk; write run_handler"):
        run_chunk(order, [])
    with pytest.raises(ValueError, match=r"more than Chunk\.most, 2; pass fewer"):
        run_chunk("kit.chunk-on-thread", [1, 2, 3])


def test_at_most_once_runs_of_a_chunk_handler_have_a_call_each() -> None:
    results = run_chunk(print_all, [Order(to="ann"), Order(to="bob")], delivery="at_most_once", key="orders")
    assert [result.result for result in results] == [["orders", 1, 1]] * 2


def test_cancellation_of_a_call_propagates() -> None:
    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await run_chunk_async(wait_for_ever, [1, 2])

    asyncio.run(work())


def test_loop_goes_on_while_the_payloads_of_a_large_chunk_are_read() -> None:
    async def count_turns() -> None:
        while True:
            TURNS.append(None)
            await asyncio.sleep(0)

    async def work() -> None:
        counting = asyncio.create_task(count_turns())
        results = await run_chunk_async(turns_before, [{"turns": 0}] * 5)
        counting.cancel()
        assert len({result.result for result in results}) == 5

    asyncio.run(work())


def test_chunk_in_a_coroutine_is_awaited() -> None:
    async def work() -> None:
        with pytest.raises(RuntimeError, match="await run_chunk_async"):
            run_chunk(print_all, [Order(to="ann")])
        [result] = await run_chunk_async(print_all, [Order(to="ann")])
        assert result.succeeded

    asyncio.run(work())
