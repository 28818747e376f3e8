"""Handlers of a workflow: one returns its payload, and three read what their parents returned."""

import tidewheel
from tidewheel.executor.handler_channel import Parent
from tidewheel.executor.handlers import Handler, registered


@tidewheel.handler("flow.give")
async def give(context: tidewheel.Context, payload: object) -> object:
    """Return the payload; fail without one."""
    del context
    if payload is None:
        message = "there is nothing to give"
        raise tidewheel.Permanent(message)
    return payload


@tidewheel.handler("flow.read-async")
async def read_async(context: tidewheel.Context, payload: object) -> object:
    """Return the parents, and one of them."""
    del payload
    one = await context.parent_async("a")
    return {key: _shown(each) for key, each in (await context.parents_async()).items()} | {"one": _shown(one)}


def _read(context: tidewheel.Context, payload: object) -> object:
    del payload
    return {key: _shown(each) for key, each in context.parents().items()} | {"one": _shown(context.parent("a"))}


tidewheel.handler("flow.read")(_read)


@tidewheel.handler("flow.read-isolated", isolation="process")
def read_isolated(context: tidewheel.Context, payload: object) -> object:
    """The same in a worker process."""
    return _read(context, payload)


def _shown(parent: Parent) -> list[object]:
    return [parent.status, len(str(parent.result)) if parent.left_out_bytes == 0 else "left out", parent.expired]


def handlers() -> dict[str, Handler]:
    """Those of this module, by name."""
    return {name: found for name, found in registered().items() if name.startswith("flow.")}
