"""Output of attempts is stored with their run, and forwarded to the log within limits."""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import cast
from uuid import UUID

import pytest
from confluent_kafka import Consumer
from prometheus_client import REGISTRY

from tests.executor import noisy_handlers
from tests.executor.attempting import RUN, attempt_of
from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import PATIENCE_SECONDS, until
from tests.relay.topics import make_topics
from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.attempt_output import OUTPUT_BYTES, Output
from tidewheel.executor.handler_services import HandlerServices
from tidewheel.executor.output_capture import OutputTopic, captured
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.local.stack import StackInfo

HANDLERS = noisy_handlers.handlers()


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def about(self, run_id: UUID) -> list[str]:
        return [r.getMessage() for r in self.records if vars(r).get("run_id") == str(run_id)]


@contextmanager
def logged() -> Generator[Lines]:
    """Collect the log lines of a process whose attempts are captured.

    No fixture: pytest puts its own streams back between a test's setup and the test.
    """
    root, lines = logging.getLogger(), Lines()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [lines]
    root.setLevel(logging.INFO)
    try:
        with captured():
            yield lines
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_first_output_during_the_end_is_not_flushed() -> None:
    """Or its row and that of the end would be one too many, and the end could not be stored."""
    attempt = attempt_of()
    assert attempt.seal_output()
    attempt.write(b"late")
    assert attempt.output is not None
    assert attempt.output.begin_flush() is None
    assert attempt.seal_output()


def attempt(handler: str, payload: object, **given: object) -> Attempt:
    made = attempt_of({"target": f"noisy.{handler}", "payload": payload})
    for name, value in given.items():
        setattr(made, name, value)
    return made


def run(*attempts: Attempt) -> None:
    async def work() -> None:
        runner = PythonRunner(HANDLERS, threads=len(attempts))
        for made, outcome in zip(attempts, await asyncio.gather(*map(runner.run, attempts)), strict=True):
            made.report(outcome)
        await runner.close()

    asyncio.run(work())


def lines_of(made: Attempt) -> list[str]:
    assert made.output is not None
    return (made.output.tail() or b"").decode().splitlines()


def test_each_attempt_gets_its_own_output() -> None:
    names = [f"n{number}" for number in range(6)]
    attempts = [attempt("say" if number % 2 else "say-on-thread", name) for number, name in enumerate(names)]
    with logged():
        run(*attempts)
    for number, (name, made) in enumerate(zip(names, attempts, strict=True)):
        out, err, raw, log, ctx, *late = lines_of(made)
        assert (out, err, raw) == (f"out {name}", f"err {name}", f"bytes {name}")
        assert log.endswith(f"WARNING shop.stock: log {name}")
        assert ctx.endswith(f"WARNING tidewheel.handler: ctx {name}")
        assert late == ([f"thread {name}", f"task {name}"] if number % 2 else [f"late {name}"])


def test_each_line_is_logged_with_its_run() -> None:
    with logged() as log:
        run(attempt("say-on-thread", "x"))
    assert log.about(RUN) == ["out x", "err x", "bytes x", "log x", "ctx x", "late x"]


def test_output_outside_of_attempts_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    with logged() as log:
        print("nobody's")  # noqa: T201
        logging.getLogger("shop").warning("nobody's")
    assert capsys.readouterr().out == "nobody's\n"
    assert [vars(record).get("run_id") for record in log.records] == [None]


def test_log_limit_drops_lines_with_one_warning() -> None:
    much = attempt("much", 20_000)
    with logged() as log:
        run(much)
    told = log.about(RUN)
    assert sum("drops the rest from this log" in line for line in told) == 1
    assert sum(map(len, told)) < 128 * 1024
    assert much.output is not None
    assert much.output.written == 2_000_000
    assert len(much.output.tail() or b"") == OUTPUT_BYTES
    assert lines_of(much)[-1].strip() == "19999"


def test_unformattable_log_record_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    wrong = attempt("log-wrong", "x")
    with logged():
        run(wrong)
    assert lines_of(wrong) == ["still here"]


def test_attempt_without_output_stores_none() -> None:
    silent = attempt("silent", 1)
    with logged():
        run(silent)
    assert silent.output is None


@pytest.mark.parametrize("sizes", [[3 * 1024 * 1024], [700_000] * 5, [1] * 10])
def test_full_stream_drops_its_beginning_only(sizes: list[int]) -> None:
    output, whole = Output(streamed=True), bytearray()
    for number, size in enumerate(sizes):
        data = bytes([number % 256]) * size
        whole += data
        output.write(data)
    pieces = output.take_stream()
    assert output.take_stream() == []
    first = pieces[0].offset
    assert b"".join(piece.data for piece in pieces) == bytes(whole[first:])
    assert [piece.offset for piece in pieces] == [
        first + sum(len(piece.data) for piece in pieces[:number]) for number in range(len(pieces))
    ]
    assert output.dropped == first


@pytest.mark.kafka
def test_output_is_visible_during_the_attempt_and_complete_at_its_end(executing: Executing, gate: str) -> None:
    with captured(), executing.running(known=HANDLERS):
        run_id = executing.trigger("noisy.wait", gate)
        until(lambda: stored(executing, run_id) == [(1, b"before\n", 7)], "the output is flushed")
        GATES[gate].opened.set()
        assert executing.ended(run_id).state == "succeeded"
    assert stored(executing, run_id) == [(1, b"before\nafter\n", 13)]


@pytest.mark.kafka
def test_output_of_released_attempts_is_kept(executing: Executing, gate: str) -> None:
    with captured(), executing.running(known=HANDLERS, drain_timeout=0):
        run_id = executing.trigger("noisy.wait", gate)
        until(lambda: GATES[gate].entered, "it runs")
    assert stored(executing, run_id) == [(1, b"before\n", 7)]


@pytest.mark.kafka
def test_output_that_is_refused_alone_stops_no_other_and_is_flushed_later(
    fresh_database: Database, info: StackInfo, gate: str
) -> None:
    """Neither that of attempts beside it, nor that of attempts which begin while it is refused."""
    fresh_database.execute("ALTER TABLE attempt_outputs ADD CONSTRAINT poison CHECK (output <> 'poison\n'::bytea)")
    executing = Executing(fresh_database, info.kafka)
    executing.make_topics()
    with captured(), executing.running(known=HANDLERS):
        bad = executing.trigger("noisy.say-and-wait", ["poison", gate])
        for text in ("beside", "after a while", "at last"):
            good = executing.trigger("noisy.say-and-wait", [text, gate])
            output = f"{text}\n".encode()
            until(partial(holds, executing, good, output), f"{text!r} is flushed", seconds=12)
        assert stored(executing, bad) == []
        fresh_database.execute("ALTER TABLE attempt_outputs DROP CONSTRAINT poison")
        until(partial(holds, executing, bad, b"poison\n"), "the refused output is flushed")
        GATES[gate].opened.set()
        assert executing.ended(bad).state == "succeeded"
    assert stored(executing, bad) == [(1, b"poison\nafter\n", 13)]


def holds(executing: Executing, run_id: UUID, output: bytes) -> bool:
    """Return True if this is the stored output of the run's first attempt."""
    return stored(executing, run_id) == [(1, output, len(output))]


def stored(executing: Executing, run_id: UUID) -> list[tuple[int, bytes, int]]:
    return cast(
        "list[tuple[int, bytes, int]]",
        executing.database.rows(
            "SELECT attempt, output, output_bytes FROM attempt_outputs WHERE run_id = %s ORDER BY attempt", [run_id]
        ),
    )


@pytest.mark.kafka
def test_all_output_is_published_to_a_topic_if_configured(executing: Executing) -> None:
    topic = executing.topics.outputs
    make_topics(executing.kafka, [topic])
    with captured(), executing.running(known=HANDLERS, outputs_topic=True):
        run_id = executing.trigger("noisy.much", 5000)
        assert executing.ended(run_id).state == "succeeded"
    received = bytearray()
    consumer = Consumer({**executing.kafka, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = monotonic_seconds() + PATIENCE_SECONDS
    while len(received) < 500_000 and monotonic_seconds() < deadline:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        headers = dict(cast("list[tuple[str, bytes]]", message.headers()))
        assert (headers["run_id"], headers["attempt"]) == (str(run_id).encode(), b"1")
        assert int(headers["offset"]) == len(received)
        assert message.key() == str(run_id).encode()
        received += cast("bytes", message.value())
    consumer.close()
    assert received == b"".join(f"{number:99}\n".encode() for number in range(5000))


def test_output_is_dropped_and_counted_without_kafka(missed: Callable[[], float]) -> None:
    stream = OutputTopic({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, "none")
    made = attempt("silent", 1, services=HandlerServices(stream_output=True))
    made.write(b"x" * 1000)
    before = missed()
    stream.send([made])
    stream.ended(made)
    stream.close()
    assert missed() - before == 1000


@pytest.fixture
def missed() -> Callable[[], float]:
    return lambda: REGISTRY.get_sample_value("tidewheel_output_bytes_dropped_total") or 0.0
