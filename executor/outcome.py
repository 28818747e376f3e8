"""The outcome of an attempt, and the end of its output; both bounded.

The tail is written to the database while the attempt runs, and with its end. Only one of these two writes may create
the row: `begin_flush` and `close` decide under one lock which one.

An attempt that prints gigabytes must not fill the executor's log. Beyond the limit its lines are dropped there, with
one warning. The last 64 KiB are stored with the run in any case.
"""

import logging
import re
import threading
import traceback
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from pydantic_core import PydanticSerializationError

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Cancel, Permanent, RetryAfter, Snooze
from tidewheel.jobs.strict_json import strict_json
from tidewheel.jobs.values import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES
from tidewheel.redaction import redact
from tidewheel.runs import AttemptOutcome
from tidewheel.transitions.finished import FINAL_TIMEOUTS, timeout_message, timeout_of, timeout_type

LOGGER = "tidewheel.output"
_LOG = logging.getLogger(LOGGER)

_TRACE_CHARACTERS = 32 * 1024
# Source: the module `traceback`. The capturing group keeps the sentence between two tracebacks.
_CHAINED = re.compile(
    r"(?<=\n)(\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n)"
    r"(?=Traceback \(most recent call last\):\n)"
)
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*")
_UNCUT_TIMES = 32  # a worker process keeps so much more: redaction does not shorten a text to a part so small

OUTPUT_BYTES = 64 * 1024
_STREAM_BYTES = 1024 * 1024  # of one attempt between two polls; more is dropped from the topic, and counted
_PIECE_BYTES = 256 * 1024
_BURST_BYTES = 64 * 1024  # the amount that is stored with the run anyway
_BYTES_PER_SECOND = 4 * 1024  # 350 MB a day for an attempt that never stops printing
_LINE_COST = 200  # bytes of the JSON around a line
_LONGEST_LINE = 8 * 1024

forwarding: ContextVar[bool] = ContextVar("tidewheel_forwarding", default=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt.

    If its handler has called `complete_in` and has committed, an outcome that `completes` changes nothing.
    """

    kind: AttemptOutcome
    result: bytes | None = None  # JSON text of the returned value, at most 64 KiB
    error_type: str | None = None  # such as `ValueError` or `http_500`
    error_message: str | None = None  # cut to 4096 characters
    trace: str | None = None  # cut to its last 32 Ki characters; a message is cut first
    permanent: bool = False
    retry_after: timedelta | None = None  # until the earliest next attempt, if the target named one
    snooze: timedelta = timedelta(0)
    not_started: bool = False  # the target certainly did nothing: even an at-most-once run may start again
    waits: timedelta | None = None  # the time limit of an end that comes from outside; None if this is the end
    completes: bool = False
    next_in: timedelta | None = None  # from the run's end to the job's next run, if the attempt has set it

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


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the full stream, behind `offset` bytes."""

    offset: int
    data: bytes


class Output:
    """The tail of an attempt's output, and the number of bytes it ever wrote; safe from every thread.

    If it is streamed, all output is kept until `take_stream`. It begins closed if the attempt's end is being recorded.
    """

    __slots__ = ("_closed", "_flushed", "_lock", "_stream", "_tail", "_touched", "dropped", "written")

    def __init__(self, *, streamed: bool = False, closed: bool = False) -> None:
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._flushed = 0
        self._touched, self._closed = False, closed
        self._stream = bytearray() if streamed else None
        self.written = 0
        self.dropped = 0

    def write(self, data: bytes) -> None:
        """Append; bytes more than 64 KiB back are dropped."""
        with self._lock:
            self.written += len(data)
            _append(self._tail, data, OUTPUT_BYTES)
            if self._stream is not None:
                self.dropped += _append(self._stream, data, _STREAM_BYTES)

    def tail(self) -> bytes | None:
        """Return the last 64 KiB; None if there is no output."""
        with self._lock:
            return self._end()

    def begin_flush(self) -> tuple[bytes, int] | None:
        """Return the unflushed tail and all bytes written; None if nothing is new or the end is recorded."""
        with self._lock:
            tail = self._end()
            if self._closed or tail is None or self.written == self._flushed:
                return None
            self._touched = True
            return tail, self.written

    def flushed(self, written: int) -> None:
        """Record that this many bytes are in the database."""
        self._flushed = written

    def close(self) -> bool:
        """Flush nothing from now on: the end is being recorded. Return True if nothing was ever flushed."""
        with self._lock:
            self._closed = True
            return not self._touched

    def take_stream(self) -> list[Piece]:
        """Return the output since the last call, in pieces that fit into a message."""
        with self._lock:
            if not self._stream:
                return []
            taken = bytes(self._stream)
            self._stream.clear()
            first = self.written - len(taken)
        starts = range(0, len(taken), _PIECE_BYTES)
        return [Piece(first + start, taken[start : start + _PIECE_BYTES]) for start in starts]

    def _end(self) -> bytes | None:
        return bytes(self._tail[-OUTPUT_BYTES:]) or None


def _append(kept: bytearray, data: bytes, limit: int) -> int:
    """Append within a limit; return the number of bytes dropped. Cut rarely: each cut copies the whole."""
    before = len(kept) + len(data)
    if len(data) > limit:
        kept.clear()  # or a gap would lie between the old bytes and the end of the new ones
    kept += data[-limit:]
    if len(kept) > 2 * limit:
        del kept[:-limit]
    return before - len(kept)


class LogForwarder:
    """Forwards one attempt's output to the log within a rate limit; safe from every thread."""

    __slots__ = ("_about", "_lock", "_rest", "_since", "_tokens", "_warned")

    def __init__(self, about: dict[str, object]) -> None:
        self._about = about
        self._lock = threading.Lock()
        self._rest = b""
        self._tokens, self._since = float(_BURST_BYTES), monotonic_seconds()
        self._warned = False

    def write(self, data: bytes) -> None:
        """Forward complete lines; the rest waits for its end."""
        with self._lock:
            lines, muted = self._whole_lines(data)
        self._emit(lines, muted=muted)

    def close(self) -> None:
        """Forward the last line, which has no end."""
        with self._lock:
            lines, muted = self._whole_lines(b"\n") if self._rest else ([], False)
        self._emit(lines, muted=muted)

    def allows(self, size: int) -> bool:
        """Return True if a log record of the attempt may be forwarded; uses up its part of the limit."""
        with self._lock:
            allowed = self._take(size)
            muted = self._mute() if not allowed else False
        self._emit([], muted=muted)
        return allowed

    def _whole_lines(self, data: bytes) -> tuple[list[str], bool]:
        # Bytes beyond the limit cannot be forwarded, so they are not even split.
        *whole, self._rest = (self._rest + data[:_BURST_BYTES]).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        lines: list[str] = []
        for line in whole:
            if not self._take(len(line)):
                self._rest = b""
                return lines, self._mute()
            lines.append(line.decode("utf-8", "replace"))
        return lines, False

    def _take(self, size: int) -> bool:
        now = monotonic_seconds()
        self._tokens = min(self._tokens + (now - self._since) * _BYTES_PER_SECOND, float(_BURST_BYTES))
        self._since = now
        if self._tokens < size + _LINE_COST:
            return False
        self._tokens -= size + _LINE_COST
        return True

    def _mute(self) -> bool:
        first, self._warned = not self._warned, True
        return first

    def _emit(self, lines: list[str], *, muted: bool) -> None:
        if not lines and not muted:
            return
        # A log handler may write to the streams that are captured.
        token = forwarding.set(True)
        try:
            for line in lines:
                _LOG.info("%s", line, extra=self._about)
            if muted:
                _LOG.warning(
                    "the attempt writes more than %d bytes a second; the executor drops the rest from this log",
                    _BYTES_PER_SECOND,
                    extra=self._about,
                )  # fmt: skip
        finally:
            forwarding.reset(token)
