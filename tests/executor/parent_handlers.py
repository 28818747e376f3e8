"""Handlers: one returns its payload, three read what their parents returned, three add to their batch."""

import pytest

import tidewheel
from tidewheel.errors import InvalidInput
from tidewheel.executor.context_parts import Parent


@tidewheel.handler("flow.give")
async def give(context: tidewheel.Context, payload: object) -> object:
    del context
    if payload is None:
        message = "there is nothing to give"
        raise tidewheel.Permanent(message)
    return payload


@tidewheel.handler("flow.read-async")
async def read_async(context: tidewheel.Context, payload: object) -> object:
    del payload
    one = await context.parent_async("a")
    return {key: _shown(each) for key, each in (await context.parents_async()).items()} | {"one": _shown(one)}


def _read(context: tidewheel.Context, payload: object) -> object:
    del payload
    return {key: _shown(each) for key, each in context.parents().items()} | {"one": _shown(context.parent("a"))}


tidewheel.handler("flow.read")(_read)


@tidewheel.handler("flow.read-isolated", isolation="process")
def read_isolated(context: tidewheel.Context, payload: object) -> object:
    return _read(context, payload)


def _runs(ref: str) -> list[dict[str, object]]:
    return [
        {"ref": f"{ref}-1", "key": "leaf", "after": [ref], "payload": {"from": ref}},
        {"ref": f"{ref}-2", "key": "leaf"},
    ]


@tidewheel.handler("flow.grow-async")
async def grow_async(context: tidewheel.Context, payload: str) -> object:
    """Add the same two runs to its batch in each of two attempts; return what the second has added."""
    added = await context.batch.add_async(_runs(payload))
    return _second(context, added=added)


def _grow(context: tidewheel.Context, payload: str) -> object:
    return _second(context, added=context.batch.add(_runs(payload)))


tidewheel.handler("flow.grow")(_grow)


@tidewheel.handler("flow.grow-isolated", isolation="process")
def grow_isolated(context: tidewheel.Context, payload: str) -> object:
    """The same in a worker process; there a refusal arrives too."""
    with pytest.raises(InvalidInput, match="no-such-job"):
        context.batch.add([{"ref": "x", "key": "no-such-job"}])
    return _grow(context, payload)


def _second(context: tidewheel.Context, *, added: bool) -> object:
    if context.attempt == 1:
        raise ValueError(str(added))
    return [context.attempt, added]


def _shown(parent: Parent) -> list[object]:
    return [parent.status, len(str(parent.result)) if parent.left_out_bytes == 0 else "left out", parent.expired]
