"""Outcomes of attempts, as runners return them; bounded, so that no handler can fill the database."""

import re
import traceback
from dataclasses import dataclass
from datetime import timedelta

from pydantic_core import PydanticSerializationError

from tidewheel.errors import Cancel, Permanent, RetryAfter, Snooze
from tidewheel.jobs.strict_json import strict_json
from tidewheel.jobs.values import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES
from tidewheel.redaction import redact
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.retry import FINAL_TIMEOUTS, timeout_message, timeout_of, timeout_type

_TRACE_CHARACTERS = 32 * 1024
# Source: the module `traceback`. The capturing group keeps the sentence between two tracebacks.
_CHAINED = re.compile(
    r"(?<=\n)(\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n)"
    r"(?=Traceback \(most recent call last\):\n)"
)
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*")
_UNCUT_TIMES = 32  # a worker process keeps so much more: redaction does not shorten a text to a part so small


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt.

    Args:
        result: JSON text of the returned value, at most 64 KiB.
        error_type: Name of the error's type, such as `ValueError` or `http_500`.
        error_message: Text of the error, cut to 4096 characters.
        trace: The traceback, cut to its last 32 Ki characters. A message is cut first.
        retry_after: The earliest next attempt, if the target named one.
        not_started: True if the target certainly did nothing: even an at-most-once run may start again.
        waits: Time limit for an end that comes from outside, by task token; None if this is the end.
        completes: True if the handler has called `complete_in`: if it has committed, this outcome changes nothing.
    """

    kind: AttemptOutcome
    result: bytes | None = None
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    permanent: bool = False
    retry_after: timedelta | None = None
    snooze: timedelta = timedelta(0)
    not_started: bool = False
    waits: timedelta | None = None
    completes: bool = False

    @property
    def timeout(self) -> str | None:
        """Field name of the timeout that expired, such as `start_to_close`; None if none did."""
        if self.kind is not AttemptOutcome.TIMED_OUT or self.error_type is None:
            return None
        return timeout_of(self.error_type)


RELEASED = Outcome(AttemptOutcome.RELEASED)
NOT_STARTED = Outcome(AttemptOutcome.RELEASED, not_started=True)
CANCELLED = Outcome(AttemptOutcome.CANCELLED)


def succeeded(result: bytes | None) -> Outcome:
    """Return a success. A result above 64 KiB is a permanent failure: a retry would repeat the effect."""
    if result is not None and len(result) > MAX_RESULT_BYTES:
        message = f"the result has {len(result)} bytes, more than {MAX_RESULT_BYTES}; return a reference instead"
        return failed("ResultTooLarge", message, permanent=True)
    return Outcome(AttemptOutcome.SUCCEEDED, result=result)


def waiting(timeout: timedelta) -> Outcome:
    """Return an outcome that is no end yet: the end comes from outside, by task token, within `timeout`."""
    return Outcome(AttemptOutcome.SUCCEEDED, waits=timeout)


def failed(
    error_type: str,
    message: str,
    *,
    trace: str = "",
    permanent: bool = False,
    retry_after: timedelta | None = None,
    not_started: bool = False,
) -> Outcome:
    """Return a failure."""
    return Outcome(
        AttemptOutcome.FAILED,
        error_type=_clean(error_type)[:255],
        error_message=error_text(message),
        trace=trace_text(trace),
        permanent=permanent,
        retry_after=retry_after,
        not_started=not_started,
    )


class _Limits:
    """The characters that this process keeps of texts."""

    message, trace = MAX_ERROR_CHARACTERS, _TRACE_CHARACTERS


def leave_cuts_to_executor() -> None:
    """Keep longer texts: only the executor knows what to redact, and a secret that is cut is not found."""
    _Limits.message, _Limits.trace = MAX_ERROR_CHARACTERS * _UNCUT_TIMES, _TRACE_CHARACTERS * _UNCUT_TIMES


def error_text(text: str) -> str:
    """Return an error's message as it is stored: redacted, cut, without what PostgreSQL cannot store."""
    return _clean(redact(text))[: _Limits.message]


def trace_text(text: str) -> str | None:
    """Return a traceback as it is stored: redacted, its end, without what PostgreSQL cannot store.

    Long messages are cut first, so that they do not push out the frames.
    """
    clean = _clean(redact(text))
    if len(clean) > _Limits.trace:
        clean = "".join(map(_with_short_message, _CHAINED.split(clean)))
    return clean[-_Limits.trace :] or None


def _with_short_message(part: str) -> str:
    """Return one traceback of a chain with at most as much of its message as an error's message has."""
    frames = _FRAMES.match(part)
    if frames is None or len(part) - frames.end() <= _Limits.message:
        return part
    return f"{part[: frames.end() + _Limits.message]}…\n"


def timed_out(which: str, seconds: float) -> Outcome:
    """Return the outcome of an expired timeout."""
    return Outcome(
        AttemptOutcome.TIMED_OUT,
        error_type=timeout_type(which),
        error_message=timeout_message(which, seconds),
        permanent=which in FINAL_TIMEOUTS,
    )


def from_exception(error: BaseException) -> Outcome:
    """Return the outcome of an exception that a handler raised."""
    if isinstance(error, Snooze):
        return Outcome(AttemptOutcome.SNOOZED, snooze=error.delay)
    if isinstance(error, Cancel):
        return CANCELLED
    trace = "".join(traceback.format_exception(error))
    name = type(error).__name__
    after = error.delay if isinstance(error, RetryAfter) else None
    return failed(name, str(error), trace=trace, permanent=isinstance(error, Permanent), retry_after=after)


def serialize_result(returned: object) -> Outcome:
    """Return a success with the handler's return value as JSON."""
    if returned is None:
        return _NO_RESULT
    try:
        return succeeded(strict_json(returned))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        # Permanent: the effect is done, and a retry would repeat it for the sake of a return value.
        return failed("ResultNotSerializable", str(error), permanent=True)


def _clean(text: str) -> str:
    # PostgreSQL's text cannot hold NUL, and UTF-8 cannot hold lone surrogates.
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


_NO_RESULT = succeeded(None)
