"""Spans of requests, firing, messages, attempts and runs; only imported while traces are on.

The ids of a run's span and of its attempts' spans follow from the run id. So a process finds the parent of a span
without a look-up, and the parent's own process may write it later.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from hashlib import blake2b
from importlib.metadata import version
from typing import ParamSpec
from uuid import UUID

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tidewheel.process.logs import OnceAMinute

_HALF = (1 << 64) - 1
_LINKS = 128  # what the SDK keeps of one span by default
_CLOSE_SECONDS = 2.0

Attributes = Mapping[str, str | int | bool]
P = ParamSpec("P")

_LOG = logging.getLogger("tidewheel.process.service")


def harmless(record: Callable[P, None]) -> Callable[P, None]:
    """Log an error of recording a span: no run depends on its trace."""

    @wraps(record)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, it concerns no run
            _LOG.exception("a span could not be recorded; the work continues")

    return recorded


class _OncePerMinute(logging.Filter):
    """Lets one line a minute pass: the exporter logs several for each batch while the collector is away."""

    _lines = OnceAMinute()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for the first line of a minute."""
        return self._lines.is_due(None)


class SpanIds(RandomIdGenerator):
    """Random ids, or the ones that the next span of this thread must have."""

    def __init__(self) -> None:
        self.next = threading.local()

    def generate_span_id(self) -> int:
        """Return the id of a span."""
        taken, self.next.span = getattr(self.next, "span", 0), 0
        return taken or super().generate_span_id()

    def generate_trace_id(self) -> int:
        """Return the id of a trace."""
        taken, self.next.trace = getattr(self.next, "trace", 0), 0
        return taken or super().generate_trace_id()


class Attempt:
    """The span of a running attempt; the context of its handler."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _text(span.get_span_context())

    def end(self, outcome: str, error_type: str | None, error_message: str | None) -> None:
        """Record its outcome."""
        self._span.set_attribute("tidewheel.outcome", outcome)
        if error_type is not None:
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(Status(StatusCode.ERROR, error_message))


class Spans:
    """Makes the spans of this process and exports them."""

    def __init__(self, provider: TracerProvider, ids: SpanIds) -> None:
        self._provider, self._ids = provider, ids
        self._tracer = provider.get_tracer("tidewheel", version("tidewheel"))

    @classmethod
    def exporting(cls, role: str) -> "Spans":
        """Return the spans of a process with this role; handlers' own spans are exported too."""
        ids = SpanIds()
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": f"tidewheel-{role}"})
        provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(_OncePerMinute())
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # a handler's module has set none
            trace.set_tracer_provider(provider)
        return cls(provider, ids)

    def close(self) -> None:
        """Export what is left, within two seconds: a collector that is away delays no end of a service."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def traceparent(self, run_id: UUID, given: str | None) -> str:
        """Return the context that events of a run carry: its request's, else that of the run."""
        return given if given is not None else _text(self._of_run(run_id, None))

    def child_traceparent(self, run_id: UUID, given: str | None) -> str:
        """Return the context that a run's children in a workflow get: the run's span."""
        return _text(self._of_run(run_id, given))

    @harmless
    def request(self, given: str, topic: str, began: datetime, about: Attributes) -> None:
        """Record a request that intake has applied."""
        attributes = {**about, **_messaging("process", topic)}
        context = _within(_parsed(given))
        self._record(
            f"process {topic}", SpanKind.CONSUMER, context, began=_ns(began), ended=time.time_ns(), about=attributes
        )

    @harmless
    def fired(self, run_ids: Sequence[UUID], began: datetime) -> None:
        """Record a firing transaction, with a link to each run."""
        links = [Link(self._of_run(run_id, None)) for run_id in run_ids[:_LINKS]]
        about = {"tidewheel.runs": len(run_ids)}
        ended = time.time_ns()
        self._record("fire", SpanKind.INTERNAL, Context(), began=_ns(began), ended=ended, about=about, links=links)

    def sent(self, run_id: UUID, given: str | None, topic: str, began: int) -> None:
        """Record a message that the broker has acknowledged."""
        about = {**_messaging("send", topic), "tidewheel.run_id": str(run_id)}
        context = _within(self._of_run(run_id, given))
        self._record(f"send {topic}", SpanKind.PRODUCER, context, began=began, ended=time.time_ns(), about=about)

    @contextmanager
    def attempt(
        self, run_id: UUID, number: int, given: str | None, name: str, about: Attributes, *, alone: bool = True
    ) -> Generator[Attempt]:
        """Record an attempt. If it is alone in its call, its span is the parent of its handler's spans."""
        run = self._of_run(run_id, given)
        links = [Link(_sibling(run, _attempt_id(run_id, number - 1)))] if number > 1 else []
        self._ids.next.span = _attempt_id(run_id, number)
        start = self._tracer.start_as_current_span if alone else self._tracer.start_span
        with start(name, _within(run), SpanKind.CONSUMER, dict(about), links) as span:
            yield Attempt(span)

    @contextmanager
    def entered(self, traceparent: str) -> Generator[None]:
        """Make a span of another process the parent of the spans in the block."""
        with trace.use_span(NonRecordingSpan(_parsed(traceparent))):
            yield

    @harmless
    def ended(
        self, run_id: UUID, given: str | None, *, due: datetime, ended: datetime, error: str | None, about: Attributes,
        retried: UUID | None = None,
    ) -> None:  # fmt: skip
        """Record a run that has ended, from its instant on; a manual retry links to the run that it repeats."""
        self._ids.next.span = run_id.int & _HALF
        if given is None:
            self._ids.next.trace = run_id.int
        context = Context() if given is None else _within(_parsed(given))
        links = [Link(self._of_run(retried, None))] if retried is not None and given is None else []
        began, until = min(_ns(due), _ns(ended)), _ns(ended)
        self._record("run", SpanKind.INTERNAL, context, began=began, ended=until, about=about, links=links, error=error)
        self._ids.next.span = self._ids.next.trace = 0

    def _of_run(self, run_id: UUID, given: str | None) -> SpanContext:
        """Return the context of a run's span."""
        span_id = run_id.int & _HALF
        if given is not None:
            return _sibling(_parsed(given), span_id)
        decision = self._provider.sampler.should_sample(None, run_id.int, "run").decision
        flags = TraceFlags.SAMPLED if decision is Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT
        return SpanContext(run_id.int, span_id, is_remote=True, trace_flags=TraceFlags(flags))

    def _record(
        self,
        name: str,
        kind: SpanKind,
        context: Context,
        *,
        began: int,
        ended: int,
        about: Attributes,
        links: Iterable[Link] = (),
        error: str | None = None,
    ) -> None:
        span = self._tracer.start_span(name, context, kind, dict(about), list(links), began)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(ended, began))


def _messaging(operation: str, topic: str) -> dict[str, str | int | bool]:
    # Source: OpenTelemetry semantic conventions, "Messaging spans".
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _attempt_id(run_id: UUID, number: int) -> int:
    return int.from_bytes(blake2b(run_id.bytes + number.to_bytes(4), digest_size=8).digest()) or 1


def _parsed(traceparent: str) -> SpanContext:
    # Source: W3C Trace Context, "traceparent Header Field Values".
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16) & 1))


def _sibling(context: SpanContext, span_id: int) -> SpanContext:
    return SpanContext(context.trace_id, span_id, is_remote=True, trace_flags=context.trace_flags)


def _within(parent: SpanContext) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


def _text(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _ns(instant: datetime) -> int:
    return int(instant.timestamp() * 1_000_000) * 1000
