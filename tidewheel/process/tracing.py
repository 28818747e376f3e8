"""Traces by OpenTelemetry, of which nothing is imported unless `start` is called.

Callers look at `spans`, which is None while traces are off. `tidewheel.process.spans` makes the spans.
"""

import atexit
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

from tidewheel.distribution import require

if TYPE_CHECKING:
    from tidewheel.process.spans import Spans

_LOG = logging.getLogger("tidewheel.process.service")

spans: "Spans | None" = None


def start(role: str) -> None:
    """Export the spans of this process by OTLP over HTTP, as the variables `OTEL_…` say."""
    global spans
    require("telemetry", "TIDEWHEEL_TRACES")
    from tidewheel.process.spans import Spans

    spans = Spans.exporting(role)
    atexit.register(stop)
    _LOG.info("%s exports traces", role)


def stop() -> None:
    """Export what is left, within two seconds."""
    if spans is not None:
        spans.close()


def entered(traceparent: str | None) -> AbstractContextManager[None]:
    """Make a span of another process the parent of the spans in the block, while traces are on."""
    return nullcontext() if spans is None or traceparent is None else spans.entered(traceparent)


def traceparent_of(run_id: UUID, given: str | None) -> str | None:
    """Return the context that a run's events carry: its request's, else its own while traces are on."""
    return given if spans is None else spans.traceparent(run_id, given)


def child_traceparent_of(run_id: UUID, given: str | None) -> str | None:
    """Return the context of a run's children in a workflow: its span's with traces, else its request's."""
    return given if spans is None else spans.child_traceparent(run_id, given)


def trace_id_of(run_id: UUID, traceparent: str | None) -> str:
    """Return the trace of a run: its request's, else one that is named as the run.

    >>> trace_id_of(UUID(int=255), None)
    '000000000000000000000000000000ff'
    >>> trace_id_of(UUID(int=255), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    return run_id.hex if traceparent is None else traceparent[3:35]
