"""Handlers of the runs whose records the pages show."""

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
