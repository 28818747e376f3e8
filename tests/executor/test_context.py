"""Contexts: the values that handlers read, and the calls that they make."""

import asyncio
import json
import logging
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.executor.attempting import NOON, RUN
from tidewheel.clock import SystemClock
from tidewheel.errors import Permanent
from tidewheel.executor.context import Context, Flag
from tidewheel.executor.handler_channel import Previous

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class Wire:
    def __init__(self) -> None:
        self.told: list[tuple[bytes | None, bytes | None]] = []

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self.told.append((progress, checkpoint))

    def wait_saved(self) -> None:
        self.told.append((b"wait", None))

    def previous(self) -> Previous:
        return Previous(NOON, {"seen": 3}, NOON)


class Place(BaseModel):
    page: int


def context_of(**fields: object) -> Context:
    """The context of an attempt that has a minute."""
    known: dict[str, object] = {
        "run_id": RUN,
        "attempt": 1,
        "job_key": "job",
        "tenant": "default",
        "scheduled_at": NOON,
        "deadline_seconds": 60.0,
        "labels": {},
        "idempotency_key": str(RUN),
        "traceparent": None,
        "logger": logging.LoggerAdapter(logging.getLogger("test"), {}),
        "_cancelled": Flag(),
    }
    return Context(**(known | fields))  # type: ignore[arg-type]  # each by its name


def wired(**fields: object) -> tuple[Context, Wire]:
    wire = Wire()
    return context_of(_channel=wire, **fields), wire


def test_heartbeat_is_json_with_given_fields_only() -> None:
    context, wire = wired()
    context.heartbeat()
    context.heartbeat("half")
    context.heartbeat(checkpoint=Place(page=4))
    context.heartbeat({"share": 0.5}, [1, None])
    assert wire.told == [
        (None, None),
        (b'"half"', None),
        (None, b'{"page":4}'),
        (b'{"share":0.5}', b"[1,null]"),
    ]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"progress": "x" * 4095}, r"progress has 4097 bytes as JSON, more than 4096; report a count"),
        ({"checkpoint": "x" * 65535}, r"checkpoint has 65537 bytes as JSON, more than 65536; store the data elsewhere"),
        ({"progress": object()}, r"progress cannot be serialized to JSON .*; use numbers"),
        ({"checkpoint": {"a": {1, object()}}}, r"checkpoint cannot be serialized to JSON"),
        ({"progress": {"share": math.inf}}, r"progress cannot be serialized to JSON \(share is inf, .*\)"),
        ({"progress": "\ud800"}, r"progress cannot be serialized to JSON"),
    ],
)
def test_unstorable_heartbeat_raises_in_the_handler(told: dict[str, object], message: str) -> None:
    context, wire = wired()
    with pytest.raises(ValueError, match=message):
        context.heartbeat(**told)
    assert wire.told == []


def test_largest_heartbeat_is_accepted() -> None:
    context, wire = wired()
    context.heartbeat("x" * 4094, "x" * 65534)
    assert [(len(progress or b""), len(checkpoint or b"")) for progress, checkpoint in wire.told] == [(4096, 65536)]


@pytest.mark.parametrize(("saved", "seen"), [(None, None), (b'{"page":4}', {"page": 4}), (b"0", 0)])
def test_checkpoint_is_the_last_saved_one(saved: bytes | None, seen: object) -> None:
    assert context_of(_checkpoint=saved).checkpoint == seen


def test_remaining_time_decreases_and_the_deadline_is_an_instant() -> None:
    context = context_of()
    first = context.remaining_seconds
    assert 0 < context.remaining_seconds < first <= 60
    assert timedelta(0) < context.deadline - SystemClock().now() <= timedelta(seconds=60)
    assert replace(context, deadline_seconds=0.0).remaining_seconds == 0


def test_context_without_an_executor_works_in_unit_tests() -> None:
    context = context_of()
    context.heartbeat(1, 2)
    assert (context.checkpoint, context.previous()) == (None, Previous())


def test_previous_run_is_read_on_a_thread_or_awaited_on_the_loop() -> None:
    context, _ = wired()
    assert context.previous() == Previous(NOON, {"seen": 3}, NOON)
    assert asyncio.run(context.previous_async()) == Previous(NOON, {"seen": 3}, NOON)


async def test_blocking_read_on_the_loop_is_refused_with_the_async_call() -> None:
    context, _ = wired()
    with pytest.raises(RuntimeError, match=r"write `await ctx\.previous_async\(\)`"):
        context.previous()


STEPPED = b'{"tidewheel.steps":{"charge":{"cents":9}},"checkpoint":4}'


def test_finished_step_is_saved_before_it_returns() -> None:
    context, wire = wired()
    assert context.step("charge", lambda: Place(page=4)) == {"page": 4}
    assert wire.told == [(None, b'{"tidewheel.steps":{"charge":{"page":4}}}'), (b"wait", None)]


def test_later_attempt_gets_the_saved_result_of_a_step() -> None:
    context, wire = wired(_checkpoint=STEPPED)
    assert context.step("charge", lambda: pytest.fail("it ran again")) == {"cents": 9}
    assert wire.told == []
    assert context.step("receipt", lambda: None) is None
    assert wire.told[0] == (None, b'{"tidewheel.steps":{"charge":{"cents":9},"receipt":null},"checkpoint":4}')


def test_steps_and_the_handlers_own_checkpoint_keep_each_other() -> None:
    context, wire = wired(_checkpoint=STEPPED)
    assert context.checkpoint == 4
    context.heartbeat("half", checkpoint=5)
    context.step("receipt", lambda: [1])
    assert wire.told[0] == (b'"half"', b'{"tidewheel.steps":{"charge":{"cents":9}},"checkpoint":5}')
    assert wire.told[1] == (None, b'{"tidewheel.steps":{"charge":{"cents":9},"receipt":[1]},"checkpoint":5}')
    again = context_of(_checkpoint=wire.told[1][1])
    assert (again.checkpoint, again.step("receipt", dict)) == (5, [1])
    assert context_of(_checkpoint=b'{"tidewheel.steps":{"charge":1}}').checkpoint is None


def test_step_that_raises_is_not_saved_and_its_error_reaches_the_handler() -> None:
    context, wire = wired()

    def fails() -> None:
        message = "the card was refused"
        raise LookupError(message)

    with pytest.raises(LookupError, match="the card was refused"):
        context.step("charge", fails)
    assert wire.told == []


def test_names_of_steps_are_unique_in_an_attempt() -> None:
    context, _ = wired(_checkpoint=STEPPED)
    context.step("charge", dict)
    with pytest.raises(ValueError, match=r"step 'charge' was used before in this attempt; give each step"):
        context.step("charge", dict)
    for name in ("", "x" * 256):
        with pytest.raises(ValueError, match=r"a step has 1 to 255 characters"):
            context.step(name, dict)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("x" * 65536, r"step 'big' has 65538 bytes as JSON, and brings .* more than 65536; store it elsewhere"),
        (object(), r"step 'big' cannot be serialized to JSON"),
    ],
)
def test_result_of_a_step_that_does_not_fit_is_no_reason_to_repeat_it(result: object, message: str) -> None:
    context, wire = wired()
    with pytest.raises(Permanent, match=message):
        context.step("big", lambda: result)
    assert wire.told == []
    context.step("small", lambda: 1)
    with pytest.raises(ValueError, match=r"checkpoint and finished steps have \d+ bytes"):
        context.heartbeat(checkpoint="x" * 65500)


async def test_coroutine_awaits_its_steps() -> None:
    context, wire = wired()

    async def charge() -> dict[str, int]:
        await asyncio.sleep(0)
        return {"cents": 9}

    with pytest.raises(RuntimeError, match=r"block the event loop; write `await ctx.step_async\('charge', …\)`"):
        context.step("charge", dict)
    one, two = await asyncio.gather(context.step_async("charge", charge), context.step_async("plain", lambda: 2))
    assert (one, two) == ({"cents": 9}, 2)
    saved = [told for told in wire.told if told != (b"wait", None)]
    assert json.loads(saved[-1][1] or b"")["tidewheel.steps"] == {"charge": {"cents": 9}, "plain": 2}


@given(results=st.dictionaries(st.text(min_size=1, max_size=20), JSON, max_size=5), own=st.none() | JSON)
def test_any_results_of_steps_come_back_as_they_were(results: dict[str, object], own: object) -> None:
    context, wire = wired()
    for name, result in results.items():
        context.step(name, lambda result=result: result)
    if own is not None:
        context.heartbeat(checkpoint=own)
    saved = next((told for _, told in reversed(wire.told) if told is not None), None)
    again = context_of(_checkpoint=saved)
    assert again.checkpoint == own
    assert {name: again.step(name, lambda: pytest.fail("it ran again")) for name in results} == results
