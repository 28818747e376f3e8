"""Messages are decoded to the encoded record; any other bytes are refused with a readable error."""

import json
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.work import counted
from tests.schemas.strategies import ROOTS, any_record, fastavro_body
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.schemas import codec, files
from tidewheel.schemas.codec import (
    FORMS,
    MAX_MESSAGE_BYTES,
    all_schemas,
    decode,
    encode,
    encode_json,
    install_lookup,
    is_avro,
)
from tidewheel.schemas.files import fingerprint, single_object_header
from tidewheel.schemas.generated import records, wire

each_record = pytest.mark.parametrize("record_type", ROOTS, ids=lambda record_type: record_type.__name__)
example_count = examples(40)
MAX_CALLS = 2000  # for any number in the message


def record_or_refusal(message: bytes, record_type: type) -> bool:
    """Return True if a message is decoded, False if it is refused; raise every other error."""
    try:
        return isinstance(decode(message, record_type), record_type)
    except UndecodableMessage as error:
        return bool(str(error))


@pytest.fixture(autouse=True)
def _no_lookup() -> Iterator[None]:
    yield
    install_lookup(None)


@each_record
@example_count
@given(data=st.data())
def test_every_record_round_trips_in_avro_and_json(record_type: type, data: st.DataObject) -> None:
    record = data.draw(any_record(record_type))
    assert decode(encode(record), record_type) == record
    assert decode(encode_json(record), record_type) == record


@each_record
@example_count
@given(data=st.data())
def test_encoding_equals_fastavro_byte_for_byte(record_type: type, data: st.DataObject) -> None:
    record = data.draw(any_record(record_type))
    schema = FORMS[record_type].schema
    assert encode(record) == single_object_header(schema) + fastavro_body(record, schema)


@pytest.mark.parametrize("record_type", [records.RunRequest, records.RunCompleted])
@example_count
@given(data=st.data())
def test_encoding_from_fields_equals_encoding_the_record(record_type: type, data: st.DataObject) -> None:
    """An enum may be any string of its value: a column's, or a member of another enum."""
    record = data.draw(any_record(record_type))
    values = [getattr(record, field.name) for field in fields(record_type)]
    plain = [str(value.value) if isinstance(value, StrEnum) else value for value in values]
    from_fields = {records.RunRequest: wire.run_request, records.RunCompleted: wire.run_completed}[record_type]
    assert from_fields(*plain) == encode(record)  # type: ignore[operator]  # either takes its own fields


@each_record
@example_count
@given(data=st.data())
def test_truncated_or_overlong_message_is_refused(record_type: type, data: st.DataObject) -> None:
    message = encode(data.draw(any_record(record_type)))
    cut = data.draw(st.integers(0, len(message) - 1))
    for damaged in (message[:cut], message + b"\0", message + message):
        with pytest.raises(UndecodableMessage):
            decode(damaged, record_type)


@each_record
@examples(150)
@given(body=st.binary(max_size=400))
def test_random_body_after_a_valid_header_is_decoded_or_refused(record_type: type, body: bytes) -> None:
    assert record_or_refusal(FORMS[record_type].header + body, record_type)


@each_record
@example_count
@given(data=st.data())
def test_message_with_one_byte_changed_is_decoded_or_refused(record_type: type, data: st.DataObject) -> None:
    message = bytearray(encode(data.draw(any_record(record_type))))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    assert record_or_refusal(bytes(message), record_type)


@examples(150)
@given(value=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_random_bytes_are_undecodable(value: bytes) -> None:
    with pytest.raises(UndecodableMessage):
        decode(value, records.RunRequest)


def _varint(number: int) -> bytes:
    zigzag, out = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


@pytest.mark.parametrize("length", [2**40, 2**31, 2**62, 2**63 - 1, 2**70, -1, -(2**40), 10_000])
@pytest.mark.parametrize("record_type", [records.RunRequest, records.Request, records.DeadLetter])
def test_false_length_prefix_is_refused_without_much_work(record_type: type, length: int) -> None:
    with counted() as work, pytest.raises(UndecodableMessage):
        decode(FORMS[record_type].header + _varint(length) + b"x" * 100, record_type)
    assert work.calls < MAX_CALLS


@pytest.mark.parametrize("count", [2**40, 2**62, -(2**40), -(2**63), 5000])
def test_false_array_count_is_refused_without_much_work(count: int) -> None:
    reply = records.Reply(
        type=records.RequestType.JOB_SUBMIT,
        tenant="default",
        status=records.ReplyStatus.ACCEPTED,
        unchanged=False,
        errors=(),
    )
    assert encode(reply).endswith(b"\0\0")  # an empty array, no origin
    message = encode(reply)[:-2] + _varint(count) + b"\2" * 200
    with counted() as work, pytest.raises(UndecodableMessage):
        decode(message, records.Reply)
    assert work.calls < MAX_CALLS


def test_array_in_several_blocks_with_byte_sizes_is_decoded() -> None:
    error = records.ReplyError(path="a", problem="b", remedy="c")
    reply = records.Reply(
        type=records.RequestType.JOB_SUBMIT,
        tenant="default",
        status=records.ReplyStatus.REJECTED,
        unchanged=False,
        errors=(error, error, error),
    )
    item = b"\2a\2b\2c"
    blocks = _varint(1) + item + _varint(-2) + _varint(2 * len(item)) + item * 2 + b"\0"
    whole = encode(reply)
    assert whole.endswith(_varint(3) + item * 3 + b"\0\0\0")
    assert decode(whole[: -len(_varint(3) + item * 3 + b"\0\0\0")] + blocks + b"\0\0", records.Reply) == reply


def _with_another_field(record_type: type) -> str:
    """Return the schema of a newer release: one more field, one more symbol in each enum."""
    schema: dict[str, Any] = json.loads(FORMS[record_type].schema)
    schema["fields"].insert(0, {"name": "novelty", "type": ["null", "string"], "default": None, "doc": "New."})
    for field in schema["fields"]:
        if isinstance(field["type"], dict) and field["type"].get("type") == "enum":
            field["type"]["symbols"].append("brand_new")
    return json.dumps(schema)


@each_record
@example_count
@given(data=st.data())
def test_message_of_a_newer_release_is_decoded_through_the_lookup(record_type: type, data: st.DataObject) -> None:
    record, schema = data.draw(any_record(record_type)), _with_another_field(record_type)
    install_lookup({fingerprint(schema): schema}.get)
    assert decode(single_object_header(schema) + fastavro_body(record, schema), record_type) == record


@examples(150)
@given(body=st.binary(max_size=200))
def test_random_body_after_a_foreign_header_is_decoded_or_refused(body: bytes) -> None:
    schema = _with_another_field(records.Request)
    install_lookup({fingerprint(schema): schema}.get)
    assert record_or_refusal(single_object_header(schema) + body, records.Request)


def test_unknown_enum_symbol_is_read_as_the_default(a_completion: records.RunCompleted) -> None:
    schema = _with_another_field(records.RunCompleted)
    install_lookup({fingerprint(schema): schema}.get)
    body = fastavro_body(a_completion, schema)
    assert body.count(b"\x0edefault\x02") == 1  # tenant, then lane: critical
    later = single_object_header(schema) + body.replace(b"\x0edefault\x02", b"\x0edefault\x08")
    assert decode(later, records.RunCompleted).lane is records.Lane.UNKNOWN


def test_unknown_schema_id_is_refused_with_a_remedy() -> None:
    with pytest.raises(UndecodableMessage, match=r"schema id 0102030405060708 is unknown; run `tidewheel migrate`"):
        decode(b"\xc3\x01" + bytes(range(1, 9)) + b"body", records.RunRequest)


def test_found_schema_is_cached_and_a_missing_one_is_looked_up_again(a_completion: records.RunCompleted) -> None:
    schema = _with_another_field(records.RunCompleted)
    message = single_object_header(schema) + fastavro_body(a_completion, schema)
    known: dict[bytes, str] = {}
    asked: list[bytes] = []

    def lookup(name: bytes) -> str | None:
        asked.append(name)
        return known.get(name)

    install_lookup(lookup)
    with pytest.raises(UndecodableMessage):
        decode(message, records.RunCompleted)
    known[fingerprint(schema)] = schema
    for _ in range(3):
        decode(message, records.RunCompleted)
    assert asked == [fingerprint(schema)] * 2


def test_error_of_the_lookup_is_raised_unchanged() -> None:
    def lookup(name: bytes) -> str | None:
        raise Unavailable(name.hex())

    install_lookup(lookup)
    with pytest.raises(Unavailable):
        decode(b"\xc3\x01" + b"12345678", records.RunRequest)


def test_invalid_stored_schema_makes_the_message_undecodable() -> None:
    install_lookup(lambda _: "[]")
    with pytest.raises(UndecodableMessage):
        decode(b"\xc3\x01" + b"12345678", records.RunRequest)


def test_message_of_another_record_type_is_refused(a_completion: records.RunCompleted) -> None:
    with pytest.raises(UndecodableMessage, match="the message is a RunCompleted, and a RunRequest is expected"):
        decode(encode(a_completion), records.RunRequest)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "empty"),
        (b"\0\0\0\0\x07abc", "schema registry"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"hello", "68 65 6c 6c 6f: neither JSON nor Avro single-object"),
        (b"\xc3", "neither JSON nor Avro"),
        (b"{", "not valid JSON"),
        (b"\xc3\x01\x05", "schema id 05 is unknown"),
        (b"x" * (MAX_MESSAGE_BYTES + 1), "at most 1048576"),
        (b" \n{}", "run_id is missing"),
        (b"{\xff}", "not valid UTF-8"),
    ],
)
def test_refusal_describes_the_bytes(value: bytes, words: str) -> None:
    with pytest.raises(UndecodableMessage, match=words):
        decode(value, records.RunRequest)


def test_all_schemas_contains_every_release_without_duplicates() -> None:
    stored = all_schemas()
    assert {schema.name for schema in stored} >= {record_type.__name__ for record_type in ROOTS}
    assert len({schema.fingerprint for schema in stored}) == len(stored)
    assert all(fingerprint(schema.text) == schema.fingerprint for schema in stored)
    released = {fingerprint(text) for texts in files.released().values() for text in texts.values()}
    assert released <= {schema.fingerprint for schema in stored}


def test_avro_is_recognised_by_its_first_two_bytes(a_completion: records.RunCompleted) -> None:
    assert is_avro(encode(a_completion))
    assert not is_avro(encode_json(a_completion))


def test_current_schema_needs_no_lookup(a_completion: records.RunCompleted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_schema_named", pytest.fail)
    assert decode(encode(a_completion), records.RunCompleted) == a_completion
