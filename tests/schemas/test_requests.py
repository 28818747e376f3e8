"""Requests in JSON and Avro are equal, and hostile bytes are refused quickly."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.work import counted
from tests.schemas.strategies import any_message
from tidewheel.errors import InvalidInput, UndecodableMessage
from tidewheel.intake.request import read_document, read_request
from tidewheel.jobs.invalid import UnreadableValue
from tidewheel.jobs.parsing import RequestRefused
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import canonical_spec
from tidewheel.schemas.codec import encode_fields

MEBIBYTE = 1 << 20
DOCUMENT: dict[str, Any] = {
    "type": "job.submit",
    "request_id": "r-1",
    "job": {
        "key": "daily-report",
        "schedule": {"cron": ["0 8 * * MON-FRI"], "timezone": "Europe/Berlin"},
        "end_at": "2027-01-01T00:00:00.000000Z",
        "target": {"type": "http", "url": "https://example.org/report"},
        "payload": {"format": "pdf"},
        "retry": {"max_attempts": 5, "intervals": ["1s"]},
        "labels": {"team": "billing"},
        "paused": False,
    },
}
FIELDS: dict[str, Any] = {
    **DOCUMENT,
    "type": "job_submit",
    "job": {**DOCUMENT["job"], "end_at": datetime(2027, 1, 1, tzinfo=UTC), "payload": b'{"format": "pdf"}'},
}


def in_avro(fields: Mapping[str, object]) -> bytes:
    return encode_fields("Request", fields)


def document_of(fields: Mapping[str, object]) -> dict[str, object]:
    document, encoding = read_document(in_avro(fields))
    assert encoding == "avro"
    return document


def trigger(**fields: object) -> dict[str, object]:
    return {"type": "job_trigger", "key": "k", **fields}


def test_avro_and_json_give_the_same_request() -> None:
    assert document_of(FIELDS) == DOCUMENT
    from_json, encoding = read_request(json.dumps(DOCUMENT).encode())
    from_avro, other = read_request(in_avro(FIELDS))
    assert (encoding, other) == ("json", "avro")
    assert from_json == from_avro
    assert isinstance(from_json, JobSubmit)
    assert isinstance(from_avro, JobSubmit)
    assert canonical_spec(from_json.job) == canonical_spec(from_avro.job)


@pytest.mark.parametrize(
    ("fields", "document"),
    [
        ({"payload": b"null"}, {"payload": None}),
        ({"payload": b"[1]", "payload_content_type": "application/json"}, {"payload": [1]}),
        ({"payload": b"\0", "payload_content_type": "application/octet-stream"}, {"payload_base64": "AA=="}),
        ({"payload_content_type": "application/json"}, {}),
        ({"run_at": datetime(2027, 1, 1, tzinfo=UTC)}, {"run_at": "2027-01-01T00:00:00.000000Z"}),
        ({"job": {"schedule": {"text": "manual"}}}, {"job": {"schedule": "manual"}}),
    ],
)
def test_avro_field_is_converted_to_its_json_form(fields: dict[str, object], document: dict[str, object]) -> None:
    assert document_of(trigger(**fields)) == {"type": "job.trigger", "key": "k", **document}


def _calling(**fields: object) -> dict[str, object]:
    target = {"type": "http", "url": "https://example.org/report", **fields}
    job = {"key": "k", "schedule": {"text": "manual"}, "target": target}
    return {"type": "job_submit", "request_id": "r-1", "job": job}


def test_secret_header_is_the_same_reference_in_avro_and_json() -> None:
    fields = _calling(headers={"X-A": "1"}, secret_headers={"Authorization": "BILLING"})
    headers = {"X-A": "1", "Authorization": {"secret": "BILLING"}}
    target = {"type": "http", "url": "https://example.org/report"}
    job = {"key": "k", "schedule": "manual", "target": {**target, "headers": headers}}
    from_json, _ = read_request(json.dumps({"type": "job.submit", "request_id": "r-1", "job": job}).encode())
    assert read_request(in_avro(fields))[0] == from_json
    del headers["X-A"]
    assert document_of(_calling(secret_headers={"Authorization": "BILLING"}))["job"] == job


TWICE = {"headers": {"Authorization": "x"}, "secret_headers": {"Authorization": "BILLING"}}


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        (trigger(payload=b"{"), "payload", "not valid JSON"),
        (trigger(payload=b"\xff"), "payload", "not valid UTF-8"),
        (trigger(payload=b"x", payload_content_type="text/plain"), "payload", "content type 'text/plain' is unknown"),
        (_calling(**TWICE), "job.target.headers.Authorization", "is in both headers and secret_headers"),
    ],
)
def test_invalid_avro_field_is_refused_by_its_path(fields: dict[str, object], path: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        read_request(in_avro(fields))
    assert caught.value.errors[0].path == path


@examples(100)
@given(fields=any_message("Request"))
def test_random_avro_request_is_read_or_refused_with_its_identity(fields: dict[str, Any]) -> None:
    try:
        read_request(in_avro(fields))
    except RequestRefused as error:
        assert error.identity.type in (None, fields["type"].replace("_", "."))  # noqa: PT017 - either is right


@examples(200)
@given(value=st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_random_bytes_are_refused(value: bytes) -> None:
    with pytest.raises((UndecodableMessage, InvalidInput)):
        read_request(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "empty"),
        (b"hello", "neither JSON nor Avro"),
        (b'{"type": job.submit}', "not valid JSON: Expecting value at line 1, column 10"),
        (b"[1]", r"not an object \(list\)"),
        (b"{" + b" " * MEBIBYTE + b"}", "at most 1048576"),
        (b'{"type": "\xff"}', "not valid UTF-8: byte 0xff at position 10"),
        (b"\xc3\x01123456789", "schema id 3132333435363738 is unknown"),
        (b'{"a":' * 5000, "32 levels deep"),
        (encode_fields("Request", {"type": "calendar_put", "days": [""] * 70_000}), "70000 items; at most 65536"),
    ],
)
def test_bytes_that_are_not_a_request_are_undecodable(value: bytes, words: str) -> None:
    with pytest.raises(UndecodableMessage, match=words):
        read_request(value)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (b'{"type":"job.trigger","key":"a","key":"b"}', "key", "'key' is given twice"),
        (b'{"type":"job.trigger","key":"a","payload":{"x":1,"x":2}}', "payload", "'x' is given twice"),
        (b'{"type":"job.trigger","type":"job.pause","key":"a"}', "type", "given twice"),
        (b'{"type":"job.trigger","key":"a","delay":' + b"9" * 5000 + b"}", "delay", "5000 digits"),
        (b'{"type":"job.trigger","key":"a","payload":1e999}', "payload", "Infinity"),
        (b'{"type":"job.trigger","key":"a","payload":Infinity}', "payload", "Infinity"),
        (b'{"type":"job.trigger","key":"\\ud800"}', "key", "which is not text"),
        (b'{"type":"job.trigger","key":"\\u0000"}', "key", "which is not text"),
        (b'{"type":"job.submit","job":{"schedule":"manual","schedule":"a","target":"h"}}', "job.schedule", "twice"),
        (b'{"type":"job.submit","job":{"schedule":"manual","target":"h","target":"h"}}', "job.target", "twice"),
        (b'{"type":"job.submit","job":{"schedule":{"cron":"a","cron":"b"}}}', "job.schedule.cron", "twice"),
    ],
)
def test_json_traps_are_refused_with_their_path(text: bytes, path: str, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        read_request(text)
    assert path in [error.path for error in caught.value.errors]


def submit(extra: bytes) -> bytes:
    return b'{"type":"job.submit","job":{"key":"k","schedule":"manual","target":"h",' + extra + b"}}"


ROOM = MEBIBYTE - 200
ORDINARY = b"[" + b"1," * (ROOM // 2) + b"1]"
HOSTILE = {
    "arrays without end": b"[" * MEBIBYTE,
    "objects without end": b'{"a":' * (MEBIBYTE // 5),
    "a payload nested in itself": submit(b'"payload":' + b"[" * (ROOM // 2) + b"]" * (ROOM // 2)),
    "empty objects": submit(b'"payload":[' + b"{}," * (ROOM // 3 - 10) + b"{}]"),
    "objects up to the limit": submit(b'"payload":[' + b'{"ab":12},' * 32_000 + b"{}]"),
    "small numbers": submit(b'"payload":[' + b"1," * (ROOM // 2 - 10) + b"1]"),
    "huge numbers": submit(b'"payload":[' + b",".join([b"9" * 4300] * 230) + b"]"),
    "backslashes": submit(b'"payload":"' + b"\\\\" * (ROOM // 2 - 10) + b'"'),
    "quotes without end": b'{"type":"' + b'\\"' * (ROOM // 2),
    "brackets in a string without end": b'{"type":"' + b'\\"[' * (ROOM // 3),
    "surrogates": submit(b'"payload":"' + b"\\ud800" * (ROOM // 6 - 10) + b'"'),
    "unknown fields": submit(b",".join(b'"f%d":1' % n for n in range(80_000))),
    "one name many times": submit(b'"payload":{' + b",".join([b'"a":1'] * 150_000) + b"}"),
    "labels": submit(b'"labels":{' + b",".join(b'"f%d":1' % n for n in range(70_000)) + b"}"),
    "a long name": submit(b'"' + b"a" * (ROOM - 20) + b'":1'),
    "a long type": b'{"type":"' + b"x" * ROOM + b'"}',
    "a long duration": submit(b'"start_to_close":"' + b"1" * (ROOM - 40) + b'"'),
    "intervals": submit(b'"retry":{"intervals":[' + b",".join([b'"1s"'] * 150_000) + b"]}"),
    "avro of zeros": in_avro(FIELDS)[:10] + b"\0" * (MEBIBYTE - 10),
    "avro of ones": in_avro(FIELDS)[:10] + b"\2" * (MEBIBYTE - 10),
    "avro with empty days": in_avro({"type": "calendar_put", "name": "c", "days": [""] * ROOM}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_refused_at_the_cost_of_ordinary_input(name: str) -> None:
    def refused() -> None:
        with pytest.raises((UndecodableMessage, InvalidInput)) as caught:
            read_request(HOSTILE[name])
        assert len(str(caught.value)) < 20_000

    with counted() as work:
        refused()
    assert work.calls < MEBIBYTE, "calls are fewer than bytes"
    # C code makes no counted calls, so its time is compared with the parser's for as many bytes.
    assert best_of_three(refused) < 20 * best_of_three(lambda: json.loads(ORDINARY))


def best_of_three(action: Callable[[], object]) -> float:
    """Return the least CPU time of this thread; other processes may use the machine."""
    measured: list[float] = []
    for _ in range(3):
        started = time.thread_time()
        action()
        measured.append(time.thread_time() - started)
    return min(measured)


def test_document_is_read_without_validation() -> None:
    document, encoding = read_document(b'{"type":"nonsense","x":1,"x":2}')
    assert encoding == "json"
    assert document["type"] == "nonsense"
    assert isinstance(document["x"], UnreadableValue)
