"""Handlers that set the next interval of their job: on the loop, on a thread and in a process."""

import os
import threading

import psycopg
import pytest

import tidewheel


def _next(context: tidewheel.Context, payload: float) -> None:
    with pytest.raises(ValueError, match="write 1s to 400d"):
        context.next_in("1ms")
    context.next_in("99s")
    context.next_in(payload)


tidewheel.handler("next.thread")(_next)


@tidewheel.handler("next.loop")
async def on_loop(context: tidewheel.Context, payload: float) -> None:
    _next(context, payload)
    raise tidewheel.Permanent("nothing to do")


@tidewheel.handler("next.process", isolation="process")
def in_process(context: tidewheel.Context, payload: float) -> None:
    _next(context, payload)


@tidewheel.handler("next.dies", isolation="process")
def die(context: tidewheel.Context, payload: float) -> None:
    _next(context, payload)
    os._exit(1)


@tidewheel.handler("next.hangs", isolation="process")
def hang(context: tidewheel.Context, payload: float) -> None:
    _next(context, payload)
    threading.Event().wait()


def _complete(context: tidewheel.Context, payload: dict[str, str]) -> None:
    with psycopg.connect(payload["database"]) as connection:
        context.next_in(payload["next_in"])
        context.complete_in(connection)
        with pytest.raises(RuntimeError, match="call next_in before it"):
            context.next_in("1h")


tidewheel.handler("next.complete")(_complete)


@tidewheel.handler("next.complete-process", isolation="process")
def complete_in_process(context: tidewheel.Context, payload: dict[str, str]) -> None:
    _complete(context, payload)
