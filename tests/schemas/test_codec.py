"""Messages are decoded to the encoded record; any other bytes are refused with a readable error."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.work import counted
from tests.schemas.strategies import KINDS, any_message, fastavro_body, read, write
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.schemas import avro, codec
from tidewheel.schemas.avro import fingerprint, single_object_header
from tidewheel.schemas.codec import (
    FORMS,
    MAX_MESSAGE_BYTES,
    all_schemas,
    decode,
    decode_fields,
    encode,
    encode_fields,
    encode_json,
    install_lookup,
    is_avro,
)
from tidewheel.schemas.generated import records, wire

each_kind = pytest.mark.parametrize("kind", KINDS)
example_count = examples(40)
MAX_CALLS = 2000  # for any number in the message
REPLY = records.Reply(
    type=records.RequestType.JOB_SUBMIT,
    tenant="default",
    status=records.ReplyStatus.ACCEPTED,
    unchanged=False,
    errors=(),
)


def is_read_or_refused(message: bytes, kind: str) -> bool:
    """Return True if a message is decoded or refused; raise every other error."""
    try:
        return read(message, kind) is not None
    except UndecodableMessage as error:
        return bool(str(error))


@pytest.fixture(autouse=True)
def _no_lookup() -> Iterator[None]:
    yield
    install_lookup(None)


@each_kind
@example_count
@given(data=st.data())
def test_every_message_round_trips_and_equals_fastavro_byte_for_byte(kind: str, data: st.DataObject) -> None:
    message, schema = data.draw(any_message(kind)), FORMS[kind].schema
    assert read(write(message, kind), kind) == message
    assert write(message, kind) == single_object_header(schema) + fastavro_body(message, schema)
    if kind != "Request":
        assert decode(encode_json(message), getattr(records, kind)) == message


def test_field_that_may_be_null_can_be_left_out_of_a_request_and_another_name_is_refused() -> None:
    fields = decode_fields(encode_fields("Request", {"type": "job_pause", "key": "k"}), "Request")
    assert {name: value for name, value in fields.items() if value is not None} == {"type": "job_pause", "key": "k"}
    with pytest.raises(ValueError, match="kye"):
        encode_fields("Request", {"type": "job_pause", "kye": "k"})


@pytest.mark.parametrize("record_type", [records.RunRequest, records.RunCompleted])
@example_count
@given(data=st.data())
def test_encoding_from_fields_equals_encoding_the_record(record_type: type, data: st.DataObject) -> None:
    """An enum may be any string of its value: a column's, or a member of another enum."""
    record = data.draw(any_message(record_type.__name__))
    values = [getattr(record, field.name) for field in fields(record_type)]
    plain = [str(value.value) if isinstance(value, StrEnum) else value for value in values]
    from_fields = {records.RunRequest: wire.run_request, records.RunCompleted: wire.run_completed}[record_type]
    assert from_fields(*plain) == encode(record)  # type: ignore[operator]  # either takes its own fields


@each_kind
@example_count
@given(data=st.data())
def test_damaged_message_is_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    message = write(data.draw(any_message(kind)), kind)
    at = data.draw(st.integers(0, len(message) - 1))
    for damaged in (message[:at], message + b"\0", message + message):
        with pytest.raises(UndecodableMessage):
            read(damaged, kind)
    changed = bytearray(message)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert is_read_or_refused(bytes(changed), kind)


@each_kind
@examples(150)
@given(body=st.binary(max_size=400))
def test_random_body_after_a_valid_header_is_decoded_or_refused(kind: str, body: bytes) -> None:
    assert is_read_or_refused(FORMS[kind].header + body, kind)


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
@pytest.mark.parametrize("kind", ["RunRequest", "Request", "DeadLetter"])
def test_false_length_prefix_is_refused_without_much_work(kind: str, length: int) -> None:
    with counted() as work, pytest.raises(UndecodableMessage):
        read(FORMS[kind].header + _varint(length) + b"x" * 100, kind)
    assert work.calls < MAX_CALLS


@pytest.mark.parametrize("count", [2**40, 2**62, -(2**40), -(2**63), 5000])
def test_false_array_count_is_refused_without_much_work(count: int) -> None:
    assert encode(REPLY).endswith(b"\0\0")  # an empty array, no origin
    message = encode(REPLY)[:-2] + _varint(count) + b"\2" * 200
    with counted() as work, pytest.raises(UndecodableMessage):
        decode(message, records.Reply)
    assert work.calls < MAX_CALLS


def test_array_in_several_blocks_with_byte_sizes_is_decoded() -> None:
    error = records.ReplyError(path="a", problem="b", remedy="c")
    reply, item = replace(REPLY, errors=(error, error, error)), b"\2a\2b\2c"
    blocks = _varint(1) + item + _varint(-2) + _varint(2 * len(item)) + item * 2 + b"\0"
    whole, end = encode(reply), _varint(3) + item * 3 + b"\0\0\0"
    assert whole.endswith(end)
    assert decode(whole.removesuffix(end) + blocks + b"\0\0", records.Reply) == reply


def _with_another_field(kind: str) -> str:
    """Return the schema of a newer release: one more field, one more symbol in each enum."""
    schema: dict[str, Any] = json.loads(FORMS[kind].schema)
    schema["fields"].insert(0, {"name": "novelty", "type": ["null", "string"], "default": None, "doc": "New."})
    for field in schema["fields"]:
        if isinstance(field["type"], dict) and field["type"].get("type") == "enum":
            field["type"]["symbols"].append("brand_new")
    return json.dumps(schema)


@each_kind
@example_count
@given(data=st.data(), body=st.binary(max_size=200))
def test_message_of_a_newer_release_is_decoded_through_the_lookup(kind: str, data: st.DataObject, body: bytes) -> None:
    message, schema = data.draw(any_message(kind)), _with_another_field(kind)
    install_lookup({fingerprint(schema): schema}.get)
    assert read(single_object_header(schema) + fastavro_body(message, schema), kind) == message
    assert is_read_or_refused(single_object_header(schema) + body, kind)


def test_unknown_enum_symbol_is_read_as_the_default(a_completion: records.RunCompleted) -> None:
    schema = _with_another_field("RunCompleted")
    install_lookup({fingerprint(schema): schema}.get)
    body = fastavro_body(a_completion, schema)
    assert body.count(b"\x0edefault\x02") == 1  # tenant, then lane: critical
    later = single_object_header(schema) + body.replace(b"\x0edefault\x02", b"\x0edefault\x08")
    assert decode(later, records.RunCompleted).lane is records.Lane.UNKNOWN


def test_unknown_schema_id_is_refused_with_a_remedy() -> None:
    with pytest.raises(UndecodableMessage, match=r"schema id 0102030405060708 is unknown; run `tidewheel migrate`"):
        decode(b"\xc3\x01" + bytes(range(1, 9)) + b"body", records.RunRequest)


def test_found_schema_is_cached_and_a_missing_one_is_looked_up_again(a_completion: records.RunCompleted) -> None:
    schema = _with_another_field("RunCompleted")
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
    with pytest.raises(UndecodableMessage, match="the message is a RunCompleted, but a RunRequest is expected"):
        decode(encode(a_completion), records.RunRequest)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"\xc3", "neither JSON nor Avro"),
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
    assert {schema.name for schema in stored} >= {*KINDS}
    assert len({schema.fingerprint for schema in stored}) == len(stored)
    assert all(fingerprint(schema.text) == schema.fingerprint for schema in stored)
    released = {fingerprint(text) for texts in avro.released().values() for text in texts.values()}
    assert released <= {schema.fingerprint for schema in stored}


def test_avro_is_recognised_by_its_first_two_bytes(a_completion: records.RunCompleted) -> None:
    assert is_avro(encode(a_completion))
    assert not is_avro(encode_json(a_completion))


def test_current_schema_needs_no_lookup(a_completion: records.RunCompleted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_schema_named", pytest.fail)
    assert decode(encode(a_completion), records.RunCompleted) == a_completion
