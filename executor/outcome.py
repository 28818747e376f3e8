"""How an attempt ended, as its runner tells it; bounded, so that no handler can fill the database.

What a handler returned, as the outcome that holds it.
"""

import traceback
from dataclasses import dataclass
from datetime import timedelta

from pydantic_core import PydanticSerializationError, to_json

from tidewheel.errors import Cancel, Permanent, RetryAfter, Snooze
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.retry import FINAL_TIMEOUTS, timeout_message, timeout_of, timeout_type

RESULT_BYTES = 64 * 1024
_MESSAGE_CHARACTERS = 4096
_TRACE_CHARACTERS = 32 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt.

    Args:
        kind: What the attempt row will say.
        result: JSON text of what was returned, at most 64 KiB.
        error_type: Name of the error's type, such as `ValueError` or `http_500`.
        error_message: What it said, cut to 4096 characters.
        trace: The traceback, cut to its last 32 Ki characters.
        permanent: No further attempt makes sense.
        retry_after: The earliest next attempt, where the target asked for one.
        snooze: How long to wait, for a snooze.
        not_begun: It is certain that the target did nothing: even a run that may begin once may begin again.
        waits: How long the end may take that is told from outside; None where this is the end.
    """

    kind: AttemptOutcome
    result: bytes | None = None
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    permanent: bool = False
    retry_after: timedelta | None = None
    snooze: timedelta = timedelta(0)
    not_begun: bool = False
    waits: timedelta | None = None

    @property
    def timeout(self) -> str | None:
        """Which timeout struck, by its field's name, such as `start_to_close`; None where none did."""
        if self.kind is not AttemptOutcome.TIMED_OUT or self.error_type is None:
            return None
        return timeout_of(self.error_type)


RELEASED = Outcome(AttemptOutcome.RELEASED)
NOT_BEGUN = Outcome(AttemptOutcome.RELEASED, not_begun=True)
CANCELLED = Outcome(AttemptOutcome.CANCELLED)


def succeeded(result: bytes | None) -> Outcome:
    """A success; a result above 64 KiB is a failure that says so, since a retry would repeat the effect."""
    if result is not None and len(result) > RESULT_BYTES:
        message = f"the result has {len(result)} bytes, more than {RESULT_BYTES}; return a reference instead"
        return failed("ResultTooLarge", message, permanent=True)
    return Outcome(AttemptOutcome.SUCCEEDED, result=result)


def waiting(timeout: timedelta) -> Outcome:
    """No end yet: it is told from outside, with the attempt's task token, within `timeout`."""
    return Outcome(AttemptOutcome.SUCCEEDED, waits=timeout)


def failed(
    error_type: str,
    message: str,
    *,
    trace: str = "",
    permanent: bool = False,
    retry_after: timedelta | None = None,
    not_begun: bool = False,
) -> Outcome:
    """A failure, its texts cut and cleaned of what PostgreSQL cannot store."""
    return Outcome(
        AttemptOutcome.FAILED,
        error_type=_clean(error_type)[:255],
        error_message=_clean(message)[:_MESSAGE_CHARACTERS],
        trace=_clean(trace)[-_TRACE_CHARACTERS:] or None,
        permanent=permanent,
        retry_after=retry_after,
        not_begun=not_begun,
    )


def timed_out(which: str, seconds: float) -> Outcome:
    """A timeout; `which` names the one that struck."""
    return Outcome(
        AttemptOutcome.TIMED_OUT,
        error_type=timeout_type(which),
        error_message=timeout_message(which, seconds),
        permanent=which in FINAL_TIMEOUTS,
    )


def from_exception(error: BaseException) -> Outcome:
    """What a handler's exception means."""
    if isinstance(error, Snooze):
        return Outcome(AttemptOutcome.SNOOZED, snooze=error.delay)
    if isinstance(error, Cancel):
        return CANCELLED
    trace = "".join(traceback.format_exception(error))
    name = type(error).__name__
    after = error.delay if isinstance(error, RetryAfter) else None
    return failed(name, str(error), trace=trace, permanent=isinstance(error, Permanent), retry_after=after)


def _clean(text: str) -> str:
    # NUL has no place in PostgreSQL's text, lone surrogates none in UTF-8.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


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
