"""A handler that takes its whole process along."""

import os

import tidewheel
from tidewheel.executor.context import Context


@tidewheel.handler("killer")
async def killer(context: Context, payload: object) -> None:
    """End the interpreter, as a fault in a library's C code would."""
    print(f"attempt {context.attempt} ends the process", flush=True)  # noqa: T201
    os._exit(70)
