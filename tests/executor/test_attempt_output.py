"""Reports of an attempt: its output, its outcome, its events and its line of the log."""

import asyncio
import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast
from uuid import UUID

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tests.executor import noisy_handlers
from tests.executor.attempting import RUN, attempt_of
from tests.executor.handlers import GATES, handlers
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import PATIENCE_SECONDS, until
from tests.relay.topics import make_topics
from tidewheel.clock import monotonic_seconds
from tidewheel.errors import RetryAfter
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.attempt_log import EndLog
from tidewheel.executor.handler_services import HandlerServices
from tidewheel.executor.outcome import (
    OUTPUT_BYTES,
    RELEASED,
    Outcome,
    Output,
    failed,
    from_exception,
    succeeded,
    timed_out,
    trace_text,
)
from tidewheel.executor.output_capture import OutputTopic, captured
from tidewheel.executor.record_outcomes import Recorded
from tidewheel.executor.runners.python import PythonRunner
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome

HANDLERS = handlers(noisy_handlers)


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
    wrong, silent = attempt("log-wrong", "x"), attempt("silent", 1)
    with logged():
        run(wrong, silent)
    assert lines_of(wrong) == ["still here"]
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
def test_output_of_released_attempts_is_kept(executing: Executing, gate: str) -> None:
    with captured(), executing.running(known=HANDLERS, drain_timeout=0):
        run_id = executing.trigger("noisy.wait", gate)
        until(lambda: GATES[gate].entered, "it runs")
    assert stored(executing, run_id) == [(1, b"before\n", 7)]


@pytest.mark.landing
@pytest.mark.kafka
def test_output_that_is_refused_alone_stops_no_other_and_is_flushed_later(
    fresh_database: Database, info: StackInfo, gate: str
) -> None:
    """Neither that of attempts beside it, nor that of attempts which begin while it is refused."""
    fresh_database.execute("ALTER TABLE attempt_outputs ADD CONSTRAINT poison CHECK (output <> 'poison\n'::bytea)")
    executing = Executing(fresh_database, info.kafka).with_topics()
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
    query = "SELECT attempt, output, output_bytes FROM attempt_outputs WHERE run_id = %s ORDER BY attempt"
    return executing.database.rows(query, [run_id])


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


def missed() -> float:
    return REGISTRY.get_sample_value("tidewheel_output_bytes_dropped_total") or 0.0


def test_output_is_dropped_and_counted_without_kafka() -> None:
    stream = OutputTopic({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, "none")
    made = attempt("silent", 1, services=HandlerServices(stream_output=True))
    made.write(b"x" * 1000)
    before = missed()
    stream.send([made])
    stream.ended(made)
    stream.close()
    assert missed() - before == 1000


JOB = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial": "2s", "jitter": "0%"}}
ERROR = from_exception(ValueError("the order of ann@example.com"))


def line(
    caplog: pytest.LogCaptureFixture, attempt: Attempt, outcome: Outcome, recorded: Recorded, **settings: bool
) -> str:
    """Return the one line about an end; empty if there is none."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "tidewheel.executor"):
        EndLog(**settings).ends([(attempt, outcome)], recorded)
    assert all(record.__dict__["job_key"] == "job" for record in caplog.records)
    return "".join(record.getMessage() for record in caplog.records)


def test_failure_is_logged_with_its_number_and_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    told = line(caplog, attempt_of(JOB, number=7, failed_attempts=1), ERROR, Recorded(requeued=1))
    assert told == "failure 2 of 3, retrying in 2 s: ValueError: the order of ann@example.com"
    assert "ValueError: the order" in caplog.records[0].__dict__["trace"]


def test_log_without_errors_has_no_text_of_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """A handler's exception may contain its payload: personal data, in a log that others read."""
    for recorded in (Recorded(requeued=1), Recorded(superseded={RUN}), Recorded(completed={RUN})):
        told = line(caplog, attempt_of(JOB), ERROR, recorded, errors=False)
        assert told.endswith(": ValueError")
        assert "ann@example.com" not in str(caplog.records[0].__dict__)


IGNORED = "ignored the report of a superseded attempt"
RETRIED = Recorded(requeued=1)


@pytest.mark.parametrize(
    ("outcome", "recorded", "said"),
    [
        (from_exception(RetryAfter(timedelta(minutes=10))), RETRIED, "failure 1 of 3, retrying in 600 s: .*"),
        (ERROR, Recorded(superseded={RUN}), f"{IGNORED}: ValueError: .*"),
        (RELEASED, Recorded(superseded={RUN}), IGNORED),
        (ERROR, Recorded(busy={RUN}), ""),  # it is tried again
        (succeeded(None), Recorded(), ""),
        (Outcome(AttemptOutcome.CANCELLED), Recorded(), ""),
        (RELEASED, RETRIED, "released"),
    ],
    ids=["retry after", "superseded", "superseded release", "busy", "success", "cancel", "release"],
)
def test_failures_and_releases_are_logged_as_they_were_recorded(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, recorded: Recorded, said: str
) -> None:
    assert re.fullmatch(said, line(caplog, attempt_of(JOB), outcome, recorded))


def test_end_that_is_never_recorded_is_logged_when_its_executor_ends(caplog: pytest.LogCaptureFixture) -> None:
    EndLog().unrecorded([(attempt_of(JOB), ERROR)])
    assert (
        "is not recorded; another executor takes the run after this lease expires: ValueError: the order" in caplog.text
    )


TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
RETRIES = {"retry": {"max_attempts": 4, "intervals": ["1ms"]}}


@pytest.mark.kafka
def test_starts_and_retries_are_events_in_the_order_of_the_run(executing: Executing) -> None:
    database = executing.database
    database.installation = replace(database.installation, run_events=True)
    database.submit("fails-twice", target="acts.fail-until", **RETRIES)
    run = database.trigger("fails-twice", payload=3, traceparent=TRACE)
    with executing.running():
        assert executing.ended(run).state == "succeeded"
    events = [event for event in database.lifecycle() if event.run_id is not None]
    assert {event.run_id for event in events} == {str(run)}
    [completion] = database.completions()
    assert [(event.type.split(".")[3], event.attempt, event.sequence, event.reason) for event in events] == [
        ("started", 1, 1, None),
        ("retrying", 1, 2, "failed"),
        ("started", 2, 3, None),
        ("retrying", 2, 4, "failed"),
        ("started", 3, 5, None),
    ]
    assert completion.sequence == 6
    assert {(event.job_id, event.job_key, event.job_version) for event in events} == {
        (completion.job_id, completion.job_key, 1)
    }
    started, retrying = events[0], events[1]
    assert started.detail == {"executor_id": completion.executor_id, "queue": "default", "lane": "standard"}
    assert retrying.detail.keys() == {"next_attempt_at", "error_type", "error_message"}
    assert len({event.event_id for event in events}) == 5
    headers = database.rows("SELECT headers FROM outbox WHERE headers @> ARRAY[%s]::bytea[]", [str(run).encode()])
    traces = [dict(zip(parts[::2], parts[1::2], strict=True))[b"traceparent"].decode() for (parts,) in headers]
    assert traces == [TRACE] * 6  # of the completion too


def test_long_messages_push_no_frame_out_of_the_trace() -> None:
    def breaks(size: int) -> None:
        try:
            _ = {"there": 1}["line of text\n" * size]
        except KeyError as error:
            message = "y" * size
            raise ValueError(message) from error

    with pytest.raises(ValueError, match="y") as caught:
        breaks(200_000)
    trace = from_exception(caught.value).trace or ""
    assert len(trace) <= 32 * 1024
    assert trace.count(__file__) == trace.count("in breaks") + 1 == 3
    assert "KeyError: 'line of text" in trace
    assert trace.endswith("y…\n")
    deep = trace_text(
        "Traceback (most recent call last):\n" + '  File "a.py", line 7, in f\n    f()\n' * 5000 + "E: " + "z" * 200_000
    )
    assert '  File "a.py", line 7, in f\n    f()\nE: zzz' in (deep or "")


@given(st.text(), st.text())
def test_texts_are_storable_and_bounded(kind: str, message: str) -> None:
    outcome = failed(kind, message + "\x00" + "\udcff", trace="t" * 100_000)
    for text in (outcome.error_type or "", outcome.error_message or "", outcome.trace or ""):
        assert "\x00" not in text
        text.encode()
    assert len(failed("x" * 1000, "y" * 10_000).error_type or "") == 255
    assert len(failed("x", "y" * 10_000).error_message or "") == 4096
    assert len(outcome.trace or "") == 32 * 1024


def test_handlers_own_error_is_no_timeout_of_its_attempt() -> None:
    assert timed_out("start_to_close", 1.5).timeout == "start_to_close"
    assert failed("timeout_of_its_own", "no").timeout is None
    assert succeeded(None).timeout is None
