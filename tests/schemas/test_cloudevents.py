"""CloudEvents in binary mode: exactly the promised headers, in order."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pytest

from tidewheel.schemas.generated.records import LifecycleEvent, RunCompleted
from tidewheel.schemas.interop import Headers, completion_headers, lifecycle_headers

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def headers_of(event: RunCompleted, source: str, **named: object) -> Headers:
    fields: dict[str, Any] = {"status": event.status, "finished_at": event.finished_at, **named}
    return completion_headers(source, event_id=event.event_id.encode(), run_id=event.run_id.encode(), **fields)


def test_completion_has_exactly_these_headers(a_completion: RunCompleted) -> None:
    assert headers_of(a_completion, "/tidewheel/test", traceparent=TRACE) == [
        ("ce_id", b"01234567-89ab-5cde-8f01-23456789abcd"),
        ("ce_type", b"io.tidewheel.run.succeeded.v1"),
        ("ce_source", b"/tidewheel/test"),
        ("ce_time", b"2026-03-29T06:00:00.250000Z"),
        ("ce_subject", b"019d3a1c-7f00-8123-8456-789abcdef012"),
        ("ce_specversion", b"1.0"),
        ("content-type", b"application/avro"),
        ("traceparent", TRACE.encode()),
    ]


def test_traceparent_header_is_omitted_without_a_trace(a_completion: RunCompleted) -> None:
    names = [name for name, _ in headers_of(a_completion, "/t", content_type="application/json")]
    assert "traceparent" not in names


@pytest.mark.parametrize(("run_id", "subject"), [("r", b"r"), (None, b"j")])
def test_subject_of_a_lifecycle_event_is_its_run_or_job(run_id: str | None, subject: bytes) -> None:
    event = LifecycleEvent(
        event_id="e",
        type="io.tidewheel.job.created.v1",
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        tenant="default",
        job_id="j",
        job_key="k",
        run_id=run_id,
        detail={},
    )
    headers = dict(lifecycle_headers(event, "/t", content_type="application/json", traceparent=TRACE))
    assert headers["ce_type"] == b"io.tidewheel.job.created.v1"
    assert headers["ce_subject"] == subject
    assert headers["content-type"] == b"application/json"
    assert headers["ce_dataschema"].startswith(b"urn:tidewheel:schema:lifecycle_event:")
    assert headers["traceparent"] == TRACE.encode()


def test_json_event_names_the_schema_of_its_value_and_an_avro_event_does_not(a_completion: RunCompleted) -> None:
    assert dict(headers_of(a_completion, "/t", content_type="application/json"))["ce_dataschema"] == (
        f"urn:tidewheel:schema:run_completed:{version('tidewheel')}".encode()
    )
    assert "ce_dataschema" not in dict(headers_of(a_completion, "/t"))
