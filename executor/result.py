"""What a handler returned, as the outcome that holds it."""

from pydantic_core import PydanticSerializationError, to_json

from tidewheel.executor.outcome import Outcome, failed, succeeded

_NOTHING = succeeded(None)


def written(returned: object) -> Outcome:
    """A success with what the handler returned, as JSON."""
    if returned is None:
        return _NOTHING
    try:
        return succeeded(to_json(returned, inf_nan_mode="strings"))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        # Its effect is done: a retry would repeat it for the sake of a return value.
        return failed("ResultNotSerializable", str(error), permanent=True)
