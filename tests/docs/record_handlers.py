"""Handlers of the runs whose records the pages show."""

import sys

import tidewheel


@tidewheel.handler("send-email")
async def send_email(context: tidewheel.Context, letter: dict[str, str]) -> dict[str, str]:
    """Return the address."""
    del context
    return {"sent": letter["to"]}


@tidewheel.handler("fails")
def fail(context: tidewheel.Context, payload: object) -> None:
    """Fail on every attempt."""
    del context, payload
    message = "no such account"
    raise ValueError(message)


@tidewheel.handler("print-pages")
def print_pages(context: tidewheel.Context, payload: object) -> None:
    """Write two lines at once."""
    del context, payload
    sys.stdout.write("page 1 of 7\npage 2 of 7\n")
