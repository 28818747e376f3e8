"""Captures what attempts of this process print and log, each with its run, and passes it on to the process's own log.

Which attempt writes is a context variable, set around the handler's call. What a thread writes that a handler started
by itself, without its context, belongs to nobody. Nothing is done for an attempt that writes nothing.
"""

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO, cast

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.echo import LOGGER, telling

current: ContextVar[Attempt | None] = ContextVar("tidewheel_attempt", default=None)

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # of a log record, as it is kept with the run


@contextmanager
def captured() -> Generator[None]:
    """Capture standard output, standard error and logging of this process, as long as the block."""
    root = logging.getLogger()
    stdout, stderr, handlers = sys.stdout, sys.stderr, root.handlers[:]
    sys.stdout = cast("TextIO", _Stream(stdout))
    sys.stderr = cast("TextIO", _Stream(stderr))
    root.handlers[:] = [_Records(handlers)]
    try:
        yield
    finally:
        sys.stdout, sys.stderr, root.handlers[:] = stdout, stderr, handlers


def writing() -> Attempt | None:
    """The attempt that writes; None outside of attempts, and while what one wrote is being passed on."""
    return None if telling.get() else current.get()


class _Stream:
    """A text stream that gives what an attempt writes to the attempt."""

    def __init__(self, original: TextIO) -> None:
        self._original = original
        self.buffer = _Bytes(original)

    def __getattr__(self, name: str) -> object:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        attempt = writing()
        if attempt is None:
            return self._original.write(text)
        attempt.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)


class _Bytes:
    """The same for bytes."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def __getattr__(self, name: str) -> object:
        return getattr(self._original.buffer, name)

    def write(self, data: bytes) -> int:
        attempt = writing()
        if attempt is None:
            return self._original.buffer.write(data)
        attempt.write(bytes(data))
        return len(data)


class _Records(logging.Handler):
    """Keeps an attempt's log records with it, and hands them on to the handlers that were there, as far as allowed."""

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self.setFormatter(logging.Formatter(LINE))

    def handle(self, record: logging.LogRecord) -> bool:
        # No lock of its own: the others' are taken where they write.
        attempt = None if record.name == LOGGER else writing()
        if attempt is None or self._keep(attempt, record):
            for handler in self._handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)
        return True

    def _keep(self, attempt: Attempt, record: logging.LogRecord) -> bool:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - a record that cannot be written must not end who logs it
            self.handleError(record)
            return False
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        for name, value in attempt.about.items():
            if name not in vars(record):
                setattr(record, name, value)
        return attempt.keep(line).allows(len(line))
