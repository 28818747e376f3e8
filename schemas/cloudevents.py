"""The headers that make a completion or a lifecycle event a CloudEvent in binary mode.

Source: CloudEvents 1.0.2, "Kafka Protocol Binding", section 3.2 "Binary Content Mode".
"""

from datetime import datetime
from typing import Literal, TypeAlias

from tidewheel.jobs.values import format_timestamp
from tidewheel.schemas.files import json_schema_uri
from tidewheel.schemas.generated.records import LifecycleEvent, RunStatus

Headers: TypeAlias = list[tuple[str, bytes]]
ContentType: TypeAlias = Literal["application/avro", "application/json"]

_SPECVERSION = ("ce_specversion", b"1.0")
_CONTENT_TYPES = {
    "application/avro": ("content-type", b"application/avro"),
    "application/json": ("content-type", b"application/json"),
}
_COMPLETION_SCHEMA = ("ce_dataschema", json_schema_uri("run_completed").encode())
_LIFECYCLE_SCHEMA = ("ce_dataschema", json_schema_uri("lifecycle_event").encode())
_COMPLETION_TYPES = {status.value: ("ce_type", f"io.tidewheel.run.{status.value}.v1".encode()) for status in RunStatus}


def completion_headers(
    source: str,
    *,
    event_id: bytes,
    run_id: bytes,
    status: str,
    finished_at: datetime,
    traceparent: str | None = None,
    content_type: ContentType = "application/avro",
) -> Headers:
    """Return the headers of a completion event.

    Args:
        source: URI reference of this installation, such as `/tidewheel/default`.
        event_id: As in the message's value, and so the following.
        traceparent: W3C trace context carried since the request; no header when there is none.
    """
    headers = [
        ("ce_id", event_id),
        _COMPLETION_TYPES[status],
        ("ce_source", source.encode()),
        ("ce_time", format_timestamp(finished_at).encode()),
        ("ce_subject", run_id),
        _SPECVERSION,
        _CONTENT_TYPES[content_type],
    ]
    return _completed(headers, _COMPLETION_SCHEMA, content_type, traceparent)


def lifecycle_headers(
    event: LifecycleEvent,
    source: str,
    *,
    traceparent: str | None = None,
    content_type: ContentType = "application/avro",
) -> Headers:
    """Return the headers of a lifecycle event; its subject is the run, or the job if there is no run."""
    headers = [
        ("ce_id", event.event_id.encode()),
        ("ce_type", event.type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", format_timestamp(event.occurred_at).encode()),
        ("ce_subject", (event.run_id or event.job_id).encode()),
        _SPECVERSION,
        _CONTENT_TYPES[content_type],
    ]
    return _completed(headers, _LIFECYCLE_SCHEMA, content_type, traceparent)


def _completed(
    headers: Headers, schema: tuple[str, bytes], content_type: ContentType, traceparent: str | None
) -> Headers:
    """Append the attributes that not all events have: Avro messages name their schema themselves."""
    if content_type == "application/json":
        headers.append(schema)
    if traceparent is not None:
        headers.append(("traceparent", traceparent.encode()))
    return headers
