"""Chunk handlers that do what the payload of each run names."""

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from pydantic import BaseModel

import tidewheel

MOST = 4
_TICK_SECONDS = 0.005


class Act(BaseModel):
    """The payload of a run: it names the calls of its test, and what the handler does with the run."""

    calls: str
    does: str = "succeed"


@dataclass
class Calls:
    """The calls of one test, each with its runs."""

    opened: threading.Event = field(default_factory=threading.Event)
    made: list[list[UUID]] = field(default_factory=list[list[UUID]])
    stopped: int = 0  # by a CancelledError
    ended: int = 0
    cancelled: set[UUID] = field(default_factory=set[UUID])  # as the items say at the end of a call

    @property
    def sizes(self) -> list[int]:
        return [len(runs) for runs in self.made]

    @property
    def runs(self) -> list[UUID]:
        return [run_id for runs in self.made for run_id in runs]


CALLS: dict[str, Calls] = {}

Items = Sequence[tidewheel.Item[Act]]


def _note(items: Items) -> Calls:
    calls = CALLS[items[0].payload.calls]
    for item in items:
        if item.payload.does == "early":
            item.succeed()
    calls.made.append([item.run_id for item in items])
    return calls


def _act(items: Items) -> None:
    for item in items:
        if item.attempt > 1 or item.payload.does in {"succeed", "wait"}:
            item.succeed(item.context.checkpoint or {"with": len(items)})
        elif item.payload.does == "fail":
            item.fail(ValueError("as asked"))
        elif item.payload.does == "snooze":
            item.fail(tidewheel.Snooze(1))
        elif item.payload.does == "raise":
            raise LookupError("midway")
        elif item.payload.does == "log":
            item.log.warning("line of %s", item.run_id)
            print("line of the call")  # noqa: T201 - which is what is kept, or not
            logging.getLogger("own").warning("record of the call")
            item.succeed()
        elif item.payload.does == "beat":
            item.context.heartbeat(progress=len(items), checkpoint="here")
            item.fail(ValueError("after a checkpoint"))


def _waits(items: Items, calls: Calls) -> bool:
    return any(item.payload.does in {"wait", "early"} for item in items) and not calls.opened.is_set()


def _note_end(items: Items, calls: Calls) -> None:
    calls.cancelled |= {item.run_id for item in items if item.cancelled}
    calls.ended += 1


@tidewheel.handler("chunks.loop", chunk=tidewheel.Chunk(most=MOST, wait="300ms"))
async def on_loop(items: Items) -> None:
    calls = _note(items)
    try:
        while _waits(items, calls):
            await asyncio.sleep(_TICK_SECONDS)
        _act(items)
    except asyncio.CancelledError:
        calls.stopped += 1
        raise
    finally:
        _note_end(items, calls)


@tidewheel.handler("chunks.thread", chunk=tidewheel.Chunk(most=MOST, wait="300ms"))
def on_thread(items: Items) -> None:
    calls = _note(items)
    while _waits(items, calls) and not all(item.cancelled for item in items):
        calls.opened.wait(_TICK_SECONDS)
    _act(items)
    _note_end(items, calls)


@tidewheel.handler("chunks.patient", chunk=tidewheel.Chunk(most=MOST, wait=10))
async def patient(items: Items) -> None:
    _note(items)
    _act(items)


@tidewheel.handler("chunks.many", chunk=tidewheel.Chunk(most=100, wait="300ms"))
async def many(items: Items) -> None:
    await on_loop(items)


@tidewheel.handler("chunks.own", chunk=tidewheel.Chunk(most=MOST, wait="300ms"))
def complete_together(items: Sequence[tidewheel.Item[str]]) -> None:
    if (calls := CALLS.get(items[0].payload)) is not None:  # of a test that stops one of the runs meanwhile
        calls.made.append([item.run_id for item in items])
        calls.opened.wait(30)
    with psycopg.connect(items[0].payload) as own:
        for item in items:
            own.execute("INSERT INTO effects VALUES (%s, %s)", [item.run_id, item.attempt])
            item.context.complete_in(own, len(items))
    for item in items:
        item.succeed()


@tidewheel.handler("chunks.place", chunk=tidewheel.Chunk(most=MOST))
def process_of(items: Sequence[tidewheel.Item[None]]) -> None:
    for item in items:
        item.succeed(os.getpid())
