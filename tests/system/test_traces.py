"""A run's way is one trace: request, messages, attempts, the handler's own spans, the completion.

The services export over real HTTP to a receiver of the test.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from uuid import UUID

import httpx
import pytest
from confluent_kafka import Consumer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.executor.http_target import Quiet, listening
from tests.fixtures.services import Fleet

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CLIENT}-01"
TRACED = (
    "traced",
    "traced-sync",
    "traced-process",
    "traced-chunk",
    "traced-pair",
)  # handlers, and the keys of their jobs
ERROR = 2  # Source: OTLP, trace.proto, Status.StatusCode


class Receiver:
    """The spans that the services have exported."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.port = 0

    def named(self, name: str, trace: str = TRACE) -> list[Span]:
        return [span for span in self.spans if span.name == name and span.trace_id.hex() == trace]


@contextmanager
def receiving() -> Generator[Receiver]:
    """Receive OTLP over HTTP."""
    receiver = Receiver()

    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                receiver.spans += [span for scope in part.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

    with listening(Handler) as receiver.port:
        yield receiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Generator[Receiver]:
    """A collector that the services know."""
    with receiving() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{made.port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield made


@pytest.fixture
def traced(fleet: Fleet, receiver: Receiver) -> Fleet:
    """A fleet that exports traces; its jobs are there."""
    fleet.start_all(TRACES="true", HANDLERS="tests.system.traced_handlers")
    retry = {"max_attempts": 2, "backoff": "fixed", "initial": "50ms", "jitter": "0%"}
    for handler in TRACED:
        job = {"key": handler, "schedule": "manual", "target": handler, "retry": retry}
        fleet.ask({"type": "job.submit", "job": job})
    fleet.flush()
    return fleet


def attributes(span: Span) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def completion(fleet: Fleet) -> dict[str, bytes]:
    consumer = Consumer({**fleet.kafka, "group.id": "look", "auto.offset.reset": "earliest"})
    consumer.subscribe([fleet.topics.completions])
    message = None
    while message is None or message.error():
        message = consumer.poll(10)
    consumer.close()
    return {name: bytes(value or b"") for name, value in message.headers() or []}  # type: ignore[misc, arg-type]


def test_request_with_a_traceparent_is_one_trace_up_to_its_completion(traced: Fleet, receiver: Receiver) -> None:
    trigger = json.dumps({"type": "job.trigger", "key": "traced"}).encode()
    traced.produce(traced.topics.requests, b"traced", trigger, [("traceparent", TRACEPARENT)])
    traced.flush()
    runs, completions = f"{traced.topics.prefix}.runs.standard", traced.topics.completions

    def one(name: str) -> Span:
        traced.until(lambda: receiver.named(name), f"a span {name!r}")
        [span] = receiver.named(name)
        return span

    run, request, completed = one("run"), one(f"process {traced.topics.requests}"), one(f"send {completions}")
    assert {run.parent_span_id.hex(), request.parent_span_id.hex()} == {CLIENT}
    assert completed.parent_span_id == run.span_id
    assert attributes(run)["tidewheel.state"] == "succeeded"
    assert run.span_id == UUID(str(attributes(run)["tidewheel.run_id"])).bytes[8:]
    assert attributes(request)["tidewheel.run_id"] == attributes(run)["tidewheel.run_id"]
    traced.until(lambda: len(receiver.named(f"send {runs}")) == 2, "both messages are sent")
    assert {span.parent_span_id for span in receiver.named(f"send {runs}")} == {run.span_id}
    assert attributes(receiver.named(f"send {runs}")[0])["messaging.system"] == "kafka"

    traced.until(lambda: len(receiver.named("process traced")) == 2, "both attempts are exported")
    first, second = sorted(receiver.named("process traced"), key=lambda span: span.start_time_unix_nano)
    assert {first.parent_span_id, second.parent_span_id} == {run.span_id}
    assert run.start_time_unix_nano <= first.start_time_unix_nano < second.end_time_unix_nano <= run.end_time_unix_nano
    assert [link.span_id for link in second.links] == [first.span_id]
    assert (first.status.code, attributes(first)["error.type"], second.status.code) == (ERROR, "ValueError", 0)
    traced.until(lambda: len(receiver.named("work in a coroutine")) == 2, "the handler's spans are exported")
    works = receiver.named("work in a coroutine")
    assert {work.parent_span_id for work in works} == {first.span_id, second.span_id}
    assert completion(traced)["traceparent"].decode() == TRACEPARENT


@pytest.mark.parametrize(
    ("handler", "where"),
    [("traced-sync", "a thread"), ("traced-process", "a process"), ("traced-chunk", "a chunk")],
)
def test_span_of_a_handler_is_a_child_of_its_attempt(
    traced: Fleet, receiver: Receiver, handler: str, where: str
) -> None:
    traced.ask({"type": "job.trigger", "key": handler, "traceparent": TRACEPARENT})
    traced.flush()
    traced.until(lambda: receiver.named(f"work in {where}"), "the handler's span")
    traced.until(lambda: receiver.named(f"process {handler}"), "the attempt's span")
    [work], [attempt] = receiver.named(f"work in {where}"), receiver.named(f"process {handler}")
    assert work.parent_span_id == attempt.span_id
    logged: Callable[[], list[dict[str, str]]] = lambda: [  # noqa: E731
        line for line in lines(traced) if line.get("message", "").endswith(f"worked in {where}")
    ]
    traced.until(logged, "the handler's line")  # of a worker process, which passes it on
    [line] = logged()
    assert (line["trace_id"], line["run_id"]) == (TRACE, attributes(attempt)["tidewheel.run_id"])


def test_span_of_a_call_with_several_runs_is_no_child_of_one_of_them(traced: Fleet, receiver: Receiver) -> None:
    for _ in range(2):
        traced.ask({"type": "job.trigger", "key": "traced-pair", "traceparent": TRACEPARENT})
    traced.flush()
    traced.until(lambda: len(receiver.named("process traced-pair")) == 2, "the attempts' spans")
    traced.until(lambda: len(receiver.named("run")) == 2, "the runs' spans")
    attempts, runs = receiver.named("process traced-pair"), receiver.named("run")
    assert {one.parent_span_id for one in attempts} == {run.span_id for run in runs}
    assert {attributes(one)["tidewheel.outcome"] for one in attempts} == {"succeeded"}
    [work] = [span for span in receiver.spans if span.name == "work in a pair"]
    assert work.parent_span_id == b""


def lines(fleet: Fleet) -> list[dict[str, str]]:
    return [line for service in fleet.services for line in service.log_lines()]


def test_runs_that_a_call_over_http_creates_are_children_of_its_span(traced: Fleet, receiver: Receiver) -> None:
    api = traced.start("api", TRACES="true", API_PORT="0")
    url = traced.api_url(api)
    hourly = {"key": "hourly", "schedule": "0 * * * *", "target": "traced-sync"}
    traced.ask({"type": "job.submit", "job": hourly})
    traced.flush()
    traced.until(lambda: traced.database.value("SELECT count(*) FROM jobs") == len(TRACED) + 1, "the jobs are there")
    hour = traced.database.now().replace(minute=0, second=0, microsecond=0)
    range_ = {"from": hour.isoformat(), "to": hour.isoformat(), "versions": "current"}
    traces = [digit * 32 for digit in "abc"]

    with httpx.Client(base_url=f"{url}/api/v1", timeout=60, trust_env=False) as client:

        def call(path: str, trace: str, body: dict[str, str] | None = None) -> str:
            answer = client.post(path, json=body or {}, headers={"traceparent": f"00-{trace}-{CLIENT}-01"})
            assert answer.is_success, answer.text
            traced.until(lambda: receiver.named("run", trace), "the run has ended")
            [run] = receiver.named("run", trace)
            assert run.parent_span_id.hex() == CLIENT
            return str(attributes(run)["tidewheel.run_id"])

        run_id = call("/jobs/traced:trigger", traces[0])
        result_of: Callable[[], str | None] = lambda: client.get(f"/runs/{run_id}").json().get("result")  # noqa: E731
        traced.until(result_of, "the transaction that made its span has committed")
        result = result_of() or ""
        assert result[3:35] == traces[0], "the handler's context has it"
        call(f"/runs/{run_id}:retry", traces[1])
        call("/jobs/hourly:backfill", traces[2], range_)
    handlers = ("traced", "traced", "traced-sync")
    for trace, handler in zip(traces, handlers, strict=True):
        traced.until(lambda: receiver.named(f"process {handler}", trace), f"an attempt in {trace}")  # noqa: B023
        [run], attempts = receiver.named("run", trace), receiver.named(f"process {handler}", trace)
        assert {span.parent_span_id for span in attempts} == {run.span_id}


def test_run_by_timer_is_a_trace_with_its_own_id_and_linked_to_its_firing(traced: Fleet, receiver: Receiver) -> None:
    traced.ask({"type": "job.submit", "job": {"key": "tick", "schedule": {"interval": "1s"}, "target": "traced-sync"}})
    traced.flush()
    ended: Callable[[], list[Span]] = lambda: [each for each in receiver.spans if each.name == "run"]  # noqa: E731
    traced.until(ended, "a run has ended")
    run = ended()[0]
    run_id = UUID(str(attributes(run)["tidewheel.run_id"]))
    assert (run.trace_id, run.parent_span_id) == (run_id.bytes, b"")
    traced.until(lambda: receiver.named("process traced-sync", run_id.hex), "its attempt's span")
    [attempt] = receiver.named("process traced-sync", run_id.hex)
    assert attempt.parent_span_id == run.span_id
    linked: Callable[[], list[bytes]] = lambda: [  # noqa: E731
        link.trace_id for span in receiver.spans if span.name == "fire" for link in span.links
    ]
    traced.until(lambda: run_id.bytes in linked(), "the scheduler has exported its firing")
    assert completion(traced)["traceparent"].startswith(b"00-")


def test_children_of_a_workflow_are_in_the_trace_of_their_root(traced: Fleet, receiver: Receiver) -> None:
    for key, parent in (("middle", "traced-sync"), ("last", "middle")):
        traced.ask(
            {"type": "job.submit", "job": {"key": key, "schedule": {"after": [parent]}, "target": "traced-sync"}}
        )
        traced.flush()
        traced.until(
            lambda: traced.database.value("SELECT count(*) FROM jobs WHERE key = %s", [key]),  # noqa: B023
            f"{key} is there",
        )
    traced.ask({"type": "job.trigger", "key": "traced-sync"})
    traced.flush()
    runs: Callable[[], list[Span]] = lambda: [each for each in receiver.spans if each.name == "run"]  # noqa: E731
    traced.until(lambda: len(runs()) == 3, "three runs have ended")
    found = {str(attributes(each)["tidewheel.job.key"]): each for each in runs()}
    root = found["traced-sync"]
    assert {each.trace_id for each in found.values()} == {UUID(str(attributes(root)["tidewheel.run_id"])).bytes}
    assert [found[key].parent_span_id for key in ("traced-sync", "middle", "last")] == [
        b"", root.span_id, found["middle"].span_id,
    ]  # fmt: skip


def test_request_that_is_not_sampled_makes_no_span(traced: Fleet, receiver: Receiver) -> None:
    traced.ask({"type": "job.trigger", "key": "traced-sync", "traceparent": f"00-{TRACE}-{CLIENT}-00"})
    traced.ask({"type": "job.trigger", "key": "traced-sync"})
    traced.flush()
    traced.until(lambda: any(span.name == "run" for span in receiver.spans), "the sampled run has ended")
    traced.until(traced.settled, "both runs have ended")
    assert [span.name for span in receiver.spans if span.trace_id.hex() == TRACE] == []
