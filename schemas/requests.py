"""Read requests in JSON or Avro: both become one document, checked by one set of rules."""

import base64
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from tidewheel.jobs.headers import merged_headers
from tidewheel.jobs.invalid import UnreadableValue
from tidewheel.jobs.parsing import parse_request, parse_request_of
from tidewheel.jobs.payload import BYTES_CONTENT, JSON_CONTENT
from tidewheel.jobs.requests import Request as ParsedRequest
from tidewheel.jobs.strict_json import read_object, read_value
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import format_timestamp
from tidewheel.schemas.codec import bounded, decode_fields, is_avro, is_registry_format
from tidewheel.schemas.shape import Array, Primitive, Record, Strings, Type, shape

Encoding: TypeAlias = Literal["json", "avro", "registry"]

# Names that are not possible or not clear in Python.
_JSON_NAMES = {"from_at": "from", "to_at": "to", "occurrence_at": "at", "is_async": "async"}
_JSON_TEXTS = {"result_json": "result", "progress_json": "progress", "checkpoint_json": "checkpoint"}


def read_request(value: bytes, tenant: str | None = None) -> tuple[ParsedRequest, Encoding]:
    """Return the request of a message, and its encoding.

    Args:
        tenant: The tenant of the message's topic, to which the request then belongs; None for the shared topic.

    Raises:
        UndecodableMessage: The bytes are not a request. They become a dead letter.
        RequestRefused: The request is invalid, or of another tenant. The error has the fields that a reply needs.
    """
    document, encoding = read_document(value)
    return parse_request(document) if tenant is None else parse_request_of(tenant, document), encoding


def read_document(value: bytes) -> tuple[dict[str, object], Encoding]:
    """Return a request's document before validation, and its encoding."""
    if not is_avro(value) and value.lstrip()[:1] in (b"{", b"["):
        return read_object(value), "json"
    return request_document(decode_fields(value, "Request")), encoding_of(value)


def encoding_of(value: bytes) -> Encoding:
    """Return the encoding of a message, by its first bytes."""
    return "avro" if is_avro(value) else "registry" if is_registry_format(value) else "json"


def request_document(fields: Mapping[str, Any]) -> dict[str, object]:
    """Return the JSON document of an Avro request, without the fields that are null."""
    return {**_document(shape().records["Request"], fields), "type": fields["type"].replace("_", ".")}


def _document(record: Record, fields: Mapping[str, Any]) -> dict[str, object]:
    named = ((field, fields.get(field.name)) for field in record.fields)
    given = {field.name: _plain(field.value_type, value) for field, value in named if value is not None}
    if "secret_headers" in given:
        given["headers"] = merged_headers(given.get("headers") or {}, given.pop("secret_headers"))
    content, content_type = given.pop("payload", None), given.pop("payload_content_type", JSON_CONTENT)
    texts = {_JSON_TEXTS[name]: read_value(given.pop(name).encode()) for name in _JSON_TEXTS if name in given}
    made = {_JSON_NAMES.get(name, name): value for name, value in given.items()} | texts
    return made if content is None else made | _payload(content, content_type)


def _payload(content: bytes, content_type: str) -> dict[str, object]:
    if content_type == BYTES_CONTENT:
        return {"payload_base64": base64.b64encode(content).decode()}
    if content_type == JSON_CONTENT:
        return {"payload": read_value(content)}
    problem = f"content type {shown(content_type)} is unknown"
    return {"payload": UnreadableValue(problem, f"write {JSON_CONTENT} or {BYTES_CONTENT}")}


def _plain(type_: Type, value: Any) -> Any:  # noqa: ANN401 - `type_` has its type
    match type_:
        case Record():
            document = _document(type_, value)
            return document.get("text", document) if type_.name == "ScheduleSubmission" else document
        case Array(Record() as items):
            return [_document(items, item) for item in bounded(value)]
        case Array() | Strings():
            return bounded(value)
        case Primitive("instant"):
            return format_timestamp(value)
        case _:
            return value
