"""The names of timeouts: what reason, error type, completion and dead letter say when one has struck.

Who keeps which is told in docs/adr/0018-who-keeps-which-timeout.md.
"""

from enum import StrEnum


class Timeout(StrEnum):
    """A timeout, by the name of the field that sets it."""

    START_TO_CLOSE = "start_to_close"  # one attempt took too long
    HEARTBEAT = "heartbeat"  # an attempt said nothing for too long
    SCHEDULE_TO_START = "schedule_to_start"  # no attempt began in time
    SCHEDULE_TO_CLOSE = "schedule_to_close"  # all attempts together took too long
    ASYNC_TIMEOUT = "async_timeout"  # nobody completed an http target's run that had answered 202
    REPLY_TIMEOUT = "reply_timeout"  # no reply came to a kafka target's message


FINAL_TIMEOUTS = frozenset({Timeout.SCHEDULE_TO_START, Timeout.SCHEDULE_TO_CLOSE})  # no attempt follows

_PREFIX = "timeout_"


def timeout_type(which: str) -> str:
    """The error type of a timeout, as `non_retryable` would name it.

    >>> timeout_type(Timeout.HEARTBEAT)
    'timeout_heartbeat'
    """
    return f"{_PREFIX}{which}"


def timeout_of(error_type: str) -> str:
    """The timeout that an error type names."""
    return error_type.removeprefix(_PREFIX)


def timeout_message(which: str, seconds: float) -> str:
    """What its error says.

    >>> timeout_message(Timeout.SCHEDULE_TO_START, 1.5)
    'schedule_to_start of 1.5 s has passed'
    """
    return f"{which} of {seconds:g} s has passed"
