"""Contexts: the values that handlers read, and the calls that they make."""

import asyncio
import logging
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import BaseModel

from tests.executor.attempting import NOON, RUN
from tidewheel.clock import SystemClock
from tidewheel.executor.context import Context, Flag, Previous


class Wire:
    """A channel that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes | None, bytes | None]] = []

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self.told.append((progress, checkpoint))

    def previous(self) -> Previous:
        return Previous(NOON, {"seen": 3}, NOON)


class Place(BaseModel):
    """A checkpoint."""

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
    context.heartbeat({"share": math.inf}, [1, None])
    assert wire.told == [
        (None, None),
        (b'"half"', None),
        (None, b'{"page":4}'),
        (b'{"share":"Infinity"}', b"[1,null]"),
    ]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"progress": "x" * 4095}, r"progress has 4097 bytes as JSON, more than 4096; report a count"),
        ({"checkpoint": "x" * 65535}, r"checkpoint has 65537 bytes as JSON, more than 65536; store the data elsewhere"),
        ({"progress": object()}, r"progress cannot be serialized to JSON .*; use numbers"),
        ({"checkpoint": {"a": {1, object()}}}, r"checkpoint cannot be serialized to JSON"),
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


def test_blocking_read_on_the_loop_is_refused_with_the_async_call() -> None:
    context, _ = wired()

    async def wrong() -> None:
        context.previous()

    with pytest.raises(RuntimeError, match=r"write `await ctx\.previous_async\(\)`"):
        asyncio.run(wrong())
