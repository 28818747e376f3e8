"""Capture output and logs of attempts in this process, and write them to the database and to a topic.

A context variable, set around the handler's call, names the attempt that writes. Output of a thread that a handler
started without its context belongs to no attempt. An attempt without output costs nothing.

While attempts run, a thread writes their output to the database each second, and to a topic if one is configured. The
rest is written with an attempt's end. The topic gets all output while Kafka is available. Without Kafka, output is
dropped from the topic on purpose, and counted: no attempt waits for its log.
"""

import logging
import random
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
from tidewheel.executor.handler_services import REFUSED_ALIKE, SetAside
from tidewheel.executor.log_lines import LogFormat
from tidewheel.executor.outcome import LOGGER, forwarding
from tidewheel.kafka.clients import producer
from tidewheel.postgres.session import Session, is_refused
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.redaction import redact
from tidewheel.transitions.attempts import AttemptOutput, flush_outputs

_LOG = logging.getLogger("tidewheel.executor")

Running = Callable[[], Iterable[Attempt]]

_EVERY_SECONDS = 1.0
_BATCH = 100  # attempts in one statement: 6.4 MB at most
_LAST_SECONDS = 2.0  # for sending the rest to the topic when the executor ends
_TRIED_MS = 10_000  # for the delivery of one message: later, newer output matters more

current: ContextVar[Attempt | None] = ContextVar("tidewheel_attempt", default=None)


@contextmanager
def captured() -> Generator[None]:
    """Capture standard output, standard error and logging of this process during the block."""
    root = logging.getLogger()
    stdout, stderr, handlers = sys.stdout, sys.stderr, root.handlers[:]
    sys.stdout = cast("TextIO", _CapturedText(stdout))
    sys.stderr = cast("TextIO", _CapturedText(stderr))
    root.handlers[:] = [_Records(handlers)]
    try:
        yield
    finally:
        sys.stdout, sys.stderr, root.handlers[:] = stdout, stderr, handlers


def writing() -> Attempt | None:
    """Return the attempt that writes; None outside attempts, and while output is being forwarded."""
    return None if forwarding.get() else current.get()


class _CapturedText:
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
    """Keeps an attempt's log records, and passes them to the original log handlers within the limit."""

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self.setFormatter(LogFormat())

    def handle(self, record: logging.LogRecord) -> bool:
        # Without this handler's own lock: the original handlers take theirs.
        attempt = None if record.name == LOGGER else writing()
        if attempt is None or self._keep(attempt, record):
            for handler in self._handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)
        return True

    def _keep(self, attempt: Attempt, record: logging.LogRecord) -> bool:
        try:
            text = redact(self.format(record))
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not raise in the code that logs it
            self.handleError(record)
            return False
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        for name, value in attempt.about.items():
            if name not in vars(record):
                setattr(record, name, value)
        return attempt.keep(line).allows(len(line))


class Flusher:
    """The thread that writes the output of running attempts, also to a topic if there is one."""

    def __init__(self, session: Session, executor_id: UUID, running: Running, stream: "OutputTopic | None") -> None:
        self._session, self._executor_id, self._running, self._stream = session, executor_id, running, stream
        self._aside = SetAside[tuple[UUID, int]]()
        self._stop = Shutdown()
        loop = (self._stop, "output of attempts", self.step)
        self._thread = threading.Thread(target=run_loop, args=loop, name="output", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Shutdown; the rest is written with the attempts' ends."""
        self._stop.request()
        self._thread.join(timeout=10)
        self._session.close()
        if self._stream is not None:
            self._stream.close()

    def step(self) -> float:
        """Write new output; return the seconds until the next poll."""
        attempts = [attempt for attempt in self._running() if attempt.output is not None]
        if self._stream is not None:
            self._stream.send(attempts)
        self._aside.keep({attempt.key for attempt in attempts})
        due = [attempt for attempt in attempts if not self._aside.waits(attempt.key)]
        unwritten = [(attempt, written) for attempt in due if (written := _new(attempt)) is not None]
        for start in range(0, len(unwritten), _BATCH):
            self._flush_batch(unwritten[start : start + _BATCH])
        return _EVERY_SECONDS

    def _flush_batch(self, unwritten: list[tuple[Attempt, AttemptOutput]]) -> None:
        """Flush these; one by one if the database refuses them together. What it refuses alone is set aside."""
        try:
            self._flush(unwritten)
        except Unavailable as error:
            if not is_refused(error):
                raise
        else:
            return
        refused: list[tuple[Attempt, Unavailable]] = []
        for number, one in enumerate(random.sample(unwritten, len(unwritten)), start=1):  # as in `Completer`
            try:
                self._flush([one])
            except Unavailable as error:
                refused.append((one[0], error))
                if not is_refused(error) or number == len(refused) == REFUSED_ALIKE:
                    raise
        for attempt, reason in refused:
            seconds = self._aside.add(attempt.key)
            text = "flushing the output of run %s failed (%s); retrying in %.0f s"
            _LOG.warning(text, attempt.run_id, reason, seconds, extra=attempt.about)

    def _flush(self, unwritten: list[tuple[Attempt, AttemptOutput]]) -> None:
        try:
            stored = self._session.within(flush_outputs, self._executor_id, [written for _, written in unwritten])
        except psycopg.Error as error:
            raise Unavailable(str(error)) from error
        for attempt, written in unwritten:
            self._aside.drop(attempt.key)
            if attempt.output is not None and attempt.key in stored:
                attempt.output.flushed(written.output_bytes)


def _new(attempt: Attempt) -> AttemptOutput | None:
    flush = attempt.output.begin_flush() if attempt.output else None
    return None if flush is None else AttemptOutput(attempt.run_id, attempt.started.attempt, *flush)


class OutputTopic:
    """The topic of outputs, keyed by run_id; used by one thread, except `ended`."""

    def __init__(self, kafka: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._producer = producer(kafka, role="outputs", timeout_ms=_TRIED_MS, on_delivery=self._on_delivery)
        self._ended: deque[Attempt] = deque()

    def ended(self, attempt: Attempt) -> None:
        """Send the last output of an ended attempt with the next poll."""
        self._ended.append(attempt)

    def send(self, attempts: Iterable[Attempt]) -> None:
        """Send new output of these attempts and of ended ones; never waits for Kafka."""
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        for attempt in [*attempts, *ended]:
            self._send(attempt)
        self._producer.poll(0)

    def close(self) -> None:
        """Send the rest, for two seconds at most."""
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
            piece_headers: list[tuple[str, str | bytes | None]] = [*headers, ("offset", str(piece.offset))]
            try:
                self._producer.produce(self._topic, key=key.encode(), value=piece.data, headers=piece_headers)
            except (BufferError, KafkaException):
                metrics.count("output_bytes_dropped", len(piece.data))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            metrics.count("output_bytes_dropped", len(message.value() or b""))
