"""A definition has all fields that executors need, with every default."""

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any, cast

import pytest
from fastavro import parse_schema
from fastavro import schemaless_reader as _reader  # pyright: ignore[reportUnknownVariableType]

from tests.schemas.strategies import fastavro_body
from tidewheel.jobs.spec import JobSpec
from tidewheel.schemas.avro import fingerprint, single_object_header
from tidewheel.schemas.codec import FORMS, decode, encode, install_lookup
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated.records import Backoff, JobDefinition, Lane, Overlap, TargetKind


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"key": "k", "schedule": "@every 10s", "target": "send-email"} | fields)


def definition(**fields: object) -> JobDefinition:
    return definition_record(spec(**fields), tenant="default", job_id="j", job_version=3)


def test_definition_contains_every_default() -> None:
    made = definition()
    assert (made.queue, made.lane, made.overlap) == ("default", Lane.STANDARD, Overlap.SKIP)
    assert (made.target.kind, made.target.handler) == (TargetKind.HANDLER, "send-email")
    assert (made.payload, made.payload_content_type) == (b"", "application/json")
    assert made.retry.backoff is Backoff.EXPONENTIAL
    assert (made.retry.max_attempts, made.retry.initial_ms, made.retry.factor, made.retry.max_ms) == (
        4, 2000, 2.0, 3_600_000,
    )  # fmt: skip
    assert made.start_to_close_ms == 300_000
    assert decode(encode(made), JobDefinition) == made


def test_definition_contains_the_submitted_fields() -> None:
    made = definition(
        target={"type": "http", "url": "http://a", "headers": {"X-A": "1"}},
        payload={"a": "ü"},
        retry={"intervals": ["1s", "1500ms"], "non_retryable": ["ValueError"]},
        start_to_close=0.0015,
        labels={"team": "billing"},
        lane="critical",
        overlap="allow_all",
    )
    assert made.target.http is not None
    assert (made.target.http.method, made.target.http.headers) == ("POST", {"X-A": "1"})
    assert made.payload == '{"a":"ü"}'.encode()
    assert made.retry.intervals_ms == (1000, 1500)
    assert made.retry.max_attempts == 3
    assert made.retry.non_retryable == ("ValueError",)
    assert made.start_to_close_ms == 2, "rounded up"
    assert (made.lane, made.overlap) == (Lane.CRITICAL, Overlap.ALLOW_ALL)
    assert decode(encode(made), JobDefinition) == made


def test_job_without_a_key_takes_the_key_of_intake() -> None:
    without = JobSpec.model_validate({"schedule": "manual", "target": "h"})
    made = definition_record(without, tenant="t", job_id="j", job_version=1, job_key="r-1")
    assert made.job_key == "r-1"
    with pytest.raises(ValueError, match="without a key"):
        definition_record(without, tenant="t", job_id="j", job_version=1)


SECRET = {"type": "http", "url": "http://a", "headers": {"X-A": "1", "Authorization": {"secret": "BILLING"}}}


def _without_secrets() -> str:
    """The schema as it was before HTTP targets had secrets."""
    return json.dumps(_dropped(json.loads(FORMS["JobDefinition"].schema)))


def _dropped(part: Any) -> Any:  # noqa: ANN401 - any part of a schema
    if isinstance(part, dict):
        return {name: _dropped(inner) for name, inner in cast("dict[str, Any]", part).items()}
    if isinstance(part, list):
        elements = cast("list[Any]", part)
        return [_dropped(inner) for inner in elements if not _is_secrets(inner)]
    return part


def _is_secrets(part: Any) -> bool:  # noqa: ANN401 - any part of a schema
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("name") == "secret_headers"


@pytest.fixture
def older() -> Iterator[str]:
    older = _without_secrets()
    install_lookup({fingerprint(older): older}.get)
    yield older
    install_lookup(None)


def test_definition_of_a_release_without_secrets_is_read_as_before(older: str) -> None:
    made = definition(target=SECRET | {"headers": {"X-A": "1"}})
    assert decode(single_object_header(older) + fastavro_body(made, older), JobDefinition) == made


def test_reader_without_secrets_reads_a_definition_that_has_them() -> None:
    writer, reader = (parse_schema(json.loads(text)) for text in (FORMS["JobDefinition"].schema, _without_secrets()))
    body = BytesIO(encode(definition(target=SECRET))[10:])
    read = cast("dict[str, Any]", _reader(body, writer, reader))
    assert read["target"]["http"]["headers"] == {"X-A": "1"}
    assert "secret_headers" not in read["target"]["http"]
