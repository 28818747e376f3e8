"""A handler of a newer release, which the executors that run already do not know."""

import tidewheel
from tests.faults.handlers import note
from tidewheel.executor.context import Context


@tidewheel.handler("late")
async def late(context: Context, payload: object) -> None:
    """An effect, at once."""
    await note(context, payload)
