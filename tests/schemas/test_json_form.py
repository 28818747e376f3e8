"""Records as JSON: nothing is lost, and errors name the invalid field."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.schemas.conftest import A_COMPLETION
from tidewheel.errors import UndecodableMessage
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import Lane, Reply, ReplyStatus, RequestType, RunCompleted


def as_json(record: object) -> dict[str, object]:
    document: dict[str, object] = json.loads(encode_json(record))
    return document


def test_completion_as_json(a_completion: RunCompleted) -> None:
    document = as_json(a_completion)
    assert document["scheduled_at"] == "2026-03-29T06:00:00.250000Z"
    assert document["status"] == "succeeded"
    assert document["result"] == {"pages": 3}
    assert document["error"] is None
    assert document["labels"] == {"team": "billing"}


@examples(200)
@given(
    content=st.none()
    | st.binary(max_size=50)
    | st.recursive(st.integers() | st.text() | st.none(), st.lists).map(lambda value: json.dumps(value).encode())
)
def test_any_result_round_trips_byte_for_byte(content: bytes | None) -> None:
    record = replace(A_COMPLETION, result=content)
    document = as_json(record)
    assert ("result" in document) + ("result_base64" in document) == (content is not None)
    assert decode(encode_json(record), RunCompleted) == record


@pytest.mark.parametrize(
    "content",
    [
        b"null", b"1.10", b'{"a": 1}', b'{"a":1,"a":2}', b"NaN", b"[" * 40 + b"]" * 40, b"9" * 5000, b'"\\u0000"',
        b'"\\ud800"', b"",
    ],
)  # fmt: skip
def test_json_that_would_not_round_trip_is_sent_as_base64(content: bytes) -> None:
    record = replace(A_COMPLETION, result=content)
    assert ("result" in as_json(record)) == (content == b"null")
    assert decode(encode_json(record), RunCompleted) == record


def test_reply_type_is_dotted_and_read_in_both_forms() -> None:
    reply = Reply(type=RequestType.JOB_SUBMIT, tenant="t", status=ReplyStatus.ACCEPTED, unchanged=False, errors=())
    document = as_json(reply)
    assert (document["type"], document["status"]) == ("job.submit", "accepted")
    for written in ("job.submit", "job_submit"):
        assert decode(json.dumps(document | {"type": written}).encode(), Reply) == reply
    for other in ("job.novelty", "unknown", 7):
        assert decode(json.dumps(document | {"type": other}).encode(), Reply).type is RequestType.UNKNOWN


def test_names_and_symbols_of_newer_releases_are_tolerated(a_completion: RunCompleted) -> None:
    document = as_json(a_completion) | {"novelty": [1], "lane": "express"}
    assert decode(json.dumps(document).encode(), RunCompleted).lane is Lane.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("run_id", None, "run_id is missing"),
        ("run_id", 7, "run_id is 7, but string is expected"),
        ("job_version", True, "job_version is True"),
        ("job_version", 2**31, "int is expected"),
        ("sequence", 1.5, "long is expected"),
        ("finished_at", "2026-03-29T06:00:00", "no UTC offset"),
        ("finished_at", 5, "instant is expected"),
        ("labels", {"a": 1}, "an object of strings"),
        ("error", {"type": "X"}, "error.message is missing"),
        ("error", "X", "an object is expected"),
        ("result_base64", "***", "base64 is expected"),
    ],
)
def test_invalid_field_is_named(a_completion: RunCompleted, name: str, value: object, words: str) -> None:
    document = as_json(a_completion) | {name: value}
    with pytest.raises(UndecodableMessage, match=words):
        decode(json.dumps(document).encode(), RunCompleted)


def test_duplicate_name_is_refused(a_completion: RunCompleted) -> None:
    text = encode_json(a_completion).replace(b"{", b'{"run_id":"other",', 1)
    with pytest.raises(UndecodableMessage, match="run_id"):
        decode(text, RunCompleted)
