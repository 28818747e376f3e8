"""The handler that does nothing."""

from tidewheel import Context, handler


@handler("noop")
async def noop(context: Context, payload: object) -> None:
    """Nothing."""
