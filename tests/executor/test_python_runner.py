"""Handlers: coroutines on the loop, functions on threads, payloads by model, results as JSON."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter

from tests.executor.attempting import NOON, RUN, Reports, attempt_of, run_attempt
from tests.fixtures.services import until
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import Handler
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.runs import AttemptOutcome


class Mail(BaseModel):
    to: str
    copies: int = 1


Function = Callable[[Context, Any], object] | Callable[[Context, Any], Awaitable[object]]


def run(
    function: Function,
    job: dict[str, Any] | None = None,
    *,
    model: type[BaseModel] | None = None,
    **fields: Any,  # noqa: ANN401
) -> Outcome:
    adapter: TypeAdapter[object] | None = None if model is None else TypeAdapter(model)
    handler = Handler("a", function, inspect.iscoroutinefunction(function), adapter)
    return run_attempt(lambda: PythonRunner({"a": handler}, threads=2), attempt_of(job, **fields))


async def echo(_: Context, payload: object) -> object:
    return payload


def echo_on_thread(_: Context, payload: object) -> object:
    assert threading.current_thread() is not threading.main_thread()
    return payload


@pytest.mark.parametrize("function", [echo, echo_on_thread])
def test_handler_gets_the_payload_and_its_result_is_stored_as_json(function: Function) -> None:
    outcome = run(function, {"payload": {"to": "ann", "n": [1, None, 2.5]}})
    assert (outcome.kind, outcome.result) == (AttemptOutcome.SUCCEEDED, b'{"to":"ann","n":[1,null,2.5]}')


def test_handler_without_a_return_value_has_no_result() -> None:
    def nothing(_: Context, payload: object) -> None:
        del payload

    assert run(nothing) == Outcome(AttemptOutcome.SUCCEEDED)


def test_payload_and_result_may_be_models() -> None:
    async def mail(_: Context, payload: Mail) -> Mail:
        return payload.model_copy(update={"copies": payload.copies + 1})

    assert run(mail, {"payload": {"to": "ann"}}, model=Mail).result == b'{"to":"ann","copies":2}'


def test_runs_payload_overrides_its_jobs() -> None:
    outcome = run(echo, {"payload": "job"}, payload=b'"run"', payload_content_type="application/json")
    assert outcome.result == b'"run"'


@pytest.mark.parametrize(
    ("value", "error_type"),
    [
        (object(), "ResultNotSerializable"),
        ("x" * 65_536, "ResultTooLarge"),
        ({"a": {1, object()}}, "ResultNotSerializable"),
        ({"a": [{1: 2, "1": 3}]}, "ResultNotSerializable"),  # one name in JSON: a value would be lost
        ({"a": [1.5, float("nan")]}, "ResultNotSerializable"),
        (float("-inf"), "ResultNotSerializable"),
    ],
)
@pytest.mark.parametrize("on_thread", [False, True])
def test_unserializable_result_fails_permanently(value: object, error_type: str, on_thread: bool) -> None:  # noqa: FBT001
    """Its effect is done: another attempt would repeat it for the sake of a return value."""

    def returns(_: Context, payload: object) -> object:
        del payload
        return value

    async def returns_later(_: Context, payload: object) -> object:
        del payload
        return value

    outcome = run(returns if on_thread else returns_later)
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, error_type, True)


@pytest.mark.parametrize("way", [SystemExit, KeyboardInterrupt])
def test_handler_on_a_thread_cannot_end_the_process(way: type[BaseException]) -> None:
    def leaves(_: Context, payload: object) -> None:
        raise way(payload)

    outcome = run(leaves)
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, way.__name__, False)


def test_context_identifies_the_run() -> None:
    seen: list[Context] = []

    async def looks(context: Context, payload: object) -> None:
        del payload
        seen.append(context)

    context_text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run(looks, {"labels": {"a": "1", "b": "1"}, "start_to_close": "7s"}, labels={"b": "2"}, traceparent=context_text)
    [context] = seen
    assert (context.run_id, context.attempt, context.job_key, context.tenant) == (RUN, 1, "job", "default")
    assert (context.scheduled_at, context.deadline_seconds, context.labels) == (NOON, 7.0, {"a": "1", "b": "2"})
    assert (UUID(context.idempotency_key), context.traceparent, context.cancelled) == (RUN, context_text, False)
    assert context.logger.extra == {"run_id": str(RUN), "attempt": 1, "job_key": "job"}


def test_abandoned_thread_keeps_its_slot_until_it_returns() -> None:
    """A thread cannot be stopped: its flag is set, and the slot is free when the function has ended."""
    began, told, may_end = threading.Event(), threading.Event(), threading.Event()

    def stubborn(context: Context, payload: object) -> None:
        del payload
        began.set()
        while not context.cancelled:
            threading.Event().wait(0.005)
        told.set()
        assert may_end.wait(30)

    reports = Reports()
    runner = PythonRunner({"a": Handler("a", stubborn, is_async=False, payload=None)}, threads=1)

    async def work() -> None:
        task = asyncio.create_task(runner.run(attempt_of(reports=reports)))
        assert await asyncio.to_thread(began.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert told.wait(30)
    assert reports.released == 0
    may_end.set()
    asyncio.run(runner.close())
    until(lambda: reports.released == 1, "its slot is free")
