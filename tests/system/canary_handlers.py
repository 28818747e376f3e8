"""Handlers that put the executor's own passwords into errors and log lines."""

import logging
import os

import tidewheel
from tidewheel.executor.context import Context


@tidewheel.handler("confess")
async def confess(context: Context, payload: object) -> None:
    """Log each password of the executor's environment, and fail with all of them."""
    known = " ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("TIDEWHEEL_"))
    logging.getLogger("confess").warning("the environment is %s", known, extra={"environment": known})
    raise ConnectionError(known)
