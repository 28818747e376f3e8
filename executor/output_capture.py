"""Captures what attempts of this process print and log, each with its run, and passes it on to the process's own log.

Which attempt writes is a context variable, set around the handler's call. What a thread writes that a handler started
by itself, without its context, belongs to nobody. Nothing is done for an attempt that writes nothing.

Writes what attempts print while they run: to the database each second, and to a topic where that is wanted.

What an attempt has written since is written with its end. The topic takes everything as long as Kafka is there; when it
is away output is lost to it, on purpose, and counted: no attempt waits for its log.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO, cast
from uuid import UUID

import psycopg
from confluent_kafka import KafkaError, KafkaException, Message

from tidewheel.errors import Unavailable
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.attempt_output import LOGGER, telling
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Session
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.transitions.attempts import AttemptOutput, flush_outputs

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


_EVERY_SECONDS = 1.0
_BATCH = 100  # attempts in one statement: 6.4 MB at most
_LAST_SECONDS = 2.0  # for what the topic is still to get when the executor ends

_TRIED_MS = 10_000  # how long one message is tried: later, newer output matters more

Running = Callable[[], Iterable[Attempt]]


class Flusher:
    """The thread that writes what attempts have written so far.

    Args:
        session: Its own.
        executor_id: In whose hands the attempts are.
        running: The attempts of this process.
        stream: Where everything goes too; None where it does not.
    """

    def __init__(self, session: Session, executor_id: UUID, running: Running, stream: "Stream | None") -> None:
        self._session, self._executor_id, self._running, self._stream = session, executor_id, running, stream
        self._stop = Shutdown()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what is not written yet is written with the attempts' ends."""
        self._stop.request()
        self._thread.join(timeout=10)
        self._session.close()
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        run_loop(self._stop, "output of attempts", self.step)

    def step(self) -> float:
        """Write what is new; returns how long to wait until the next look, in seconds."""
        attempts = [attempt for attempt in self._running() if attempt.output is not None]
        if self._stream is not None:
            self._stream.send(attempts)
        wanted = [(attempt, written) for attempt in attempts if (written := _new(attempt)) is not None]
        for start in range(0, len(wanted), _BATCH):
            self._flush(wanted[start : start + _BATCH])
        return _EVERY_SECONDS

    def _flush(self, wanted: list[tuple[Attempt, AttemptOutput]]) -> None:
        try:
            with self._session.transaction() as connection:
                stored = flush_outputs(connection, self._executor_id, [written for _, written in wanted])
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        for attempt, written in wanted:
            if attempt.output is not None and attempt.key in stored:
                attempt.output.flushed(written.output_bytes)


def _new(attempt: Attempt) -> AttemptOutput | None:
    begun = attempt.output.begin_flush() if attempt.output else None
    return None if begun is None else AttemptOutput(attempt.run_id, attempt.started.attempt, *begun)


class Stream:
    """The topic of outputs, keyed by run_id; used by one thread, but for `ended`."""

    def __init__(self, kafka: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._producer = producer(kafka, role="outputs", timeout_ms=_TRIED_MS, on_delivery=self._on_delivery)
        self._ended: deque[Attempt] = deque()

    def ended(self, attempt: Attempt) -> None:
        """An attempt is over: what it wrote last is sent with the next look."""
        self._ended.append(attempt)

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Send what these have written since, and those that have ended; never waits for Kafka."""
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        for attempt in [*attempts, *ended]:
            self._send(attempt)
        self._producer.poll(0)

    def close(self) -> None:
        """Send what is left, as far as that does not take long."""
        self.send([])
        left = self._producer.flush(_LAST_SECONDS)
        if left:
            self._producer.purge()
            self._producer.flush(_LAST_SECONDS)

    def _send(self, attempt: Attempt) -> None:
        output = attempt.output
        if output is None:
            return
        dropped, output.dropped = output.dropped, 0
        if dropped:
            metrics.count("output_bytes_dropped", dropped)
        key = str(attempt.run_id)
        headers: list[tuple[str, str | bytes | None]] = [("run_id", key), ("attempt", str(attempt.started.attempt))]
        for piece in output.take_stream():
            place: list[tuple[str, str | bytes | None]] = [*headers, ("offset", str(piece.offset))]
            try:
                self._producer.produce(self._topic, key=key.encode(), value=piece.data, headers=place)
            except (BufferError, KafkaException):
                metrics.count("output_bytes_dropped", len(piece.data))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            metrics.count("output_bytes_dropped", len(message.value() or b""))
