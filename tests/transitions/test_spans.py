"""Spans and series of work that a transaction has committed; series are bounded."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.postgres.session import Session
from tidewheel.process import metrics, tracing
from tidewheel.process.metrics import BoundedLabels
from tidewheel.process.spans import SpanIds, Spans
from tidewheel.runs import RunState
from tidewheel.transitions.finish import finish_runs


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
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


def counted(name: str) -> Counter[tuple[str, ...]]:
    return Counter(
        {
            tuple(sample.labels.values()): int(sample.value)
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == f"tidewheel_{name}_total"
        }
    )


def end(database: Database, key: str, state: RunState, error: str | None = None) -> None:
    started = database.begun(key)
    database.session().within(finish_runs, database.installation, [ending(started, state, error_type=error)])


def test_jobs_beyond_the_limit_share_a_series(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counted("job_runs_ended")
    for key in ("first", "second", "third"):
        database.submit(key)
    end(database, "first", RunState.SUCCEEDED)
    assert counted("job_runs_ended") == before, "no job has a series unless an operator asks for it"
    monkeypatch.setattr(metrics, "job_labels", BoundedLabels(1))
    end(database, "first", RunState.SUCCEEDED)
    end(database, "second", RunState.SUCCEEDED)
    end(database, "third", RunState.FAILED, "ValueError")
    end(database, "first", RunState.FAILED, "ValueError")
    assert counted("job_runs_ended") - before == {
        ("default", "first", "succeeded"): 1,
        ("default", "first", "failed"): 1,
        ("other", "other", "succeeded"): 1,
        ("other", "other", "failed"): 1,
    }


def test_errors_are_counted_by_type(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_error_labels", BoundedLabels(1))
    database.submit("job")
    before = counted("attempt_errors")
    end(database, "job", RunState.FAILED, "ValueError")
    end(database, "job", RunState.FAILED, "KeyError")
    end(database, "job", RunState.SUCCEEDED)
    assert counted("attempt_errors") - before == {("ValueError",): 1, ("other",): 1}
