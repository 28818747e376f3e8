"""Spans of work that a transaction has committed."""

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.postgres.session import Session
from tidewheel.process import tracing
from tidewheel.process.spans import SpanIds, Spans
from tidewheel.runs import RunState
from tidewheel.transitions.finish import finish_runs


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process."""
    ids, exporter = SpanIds(), InMemorySpanExporter()
    provider = TracerProvider(id_generator=ids)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "spans", Spans(provider, ids))
    yield exporter
    provider.shutdown()


def test_end_that_is_rolled_back_has_no_span(
    with_job: Database, session: Session, exported: InMemorySpanExporter
) -> None:
    end = ending(with_job.begun(), RunState.SUCCEEDED)

    def end_within(act: Callable[[], None]) -> None:
        with session.transaction() as connection:
            finish_runs(connection, with_job.installation, [end])
            act()

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        end_within(fail)
    assert exported.get_finished_spans() == ()
    end_within(lambda: None)
    [span] = exported.get_finished_spans()
    assert span.attributes is not None
    assert (span.name, span.attributes["tidewheel.run_id"]) == ("run", str(end.run_id))
