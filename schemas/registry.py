"""A Confluent schema registry: register schemas, look them up by id, and frame messages with an id.

A message in the registry's wire format is a zero byte, the schema's id in four bytes, and the Avro body.
"""

import base64
import json
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, cast
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.schemas.avro import HEADER_BYTES, REGISTRY_MAGIC
from tidewheel.schemas.codec import FORMS, encode, sparing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SECONDS = 5.0  # for each part of an answer, and from its head to its end: intake's transaction waits meanwhile
_MAX_BYTES = 4 << 20  # of an answer
_UNKNOWN_SCHEMA = 40403  # error_code of an id that the registry does not have
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

Recorded = Mapping[str, Mapping[str, object]]


class Registry:
    """A client of one registry."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, or half a pair of brackets
            parts, is_address = urlsplit(""), False
        if not is_address:
            raise SettingsError("TIDEWHEEL_SCHEMA_REGISTRY_URL is not an http or https URL; write http://host:port")
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        self._open = build_opener(_NoRedirect).open

    def register(self, subject: str, schema: str) -> int:
        """Register a schema under a subject; return its id, the same for a schema that is registered already."""
        body = json.dumps({"schema": schema, "schemaType": "AVRO"}).encode()
        status, answer = self._send(f"/subjects/{quote(subject, safe='')}/versions", body)
        if status in (409, 422):
            raise SettingsError(f"the registry refuses the schema of subject {subject!r}: {answer.get('message')}")
        number = answer.get("id")
        if status != 200 or not isinstance(number, int):
            raise self._unexpected(status, answer)
        return number

    def registered(self, subject: str, schema: str) -> int | None:
        """Return the id of a schema under a subject; None if it would be new there."""
        body = json.dumps({"schema": schema, "schemaType": "AVRO"}).encode()
        path = f"/subjects/{quote(subject, safe='')}"
        status, answer = self._send(path, body)
        number = answer.get("id")
        if status == 200 and isinstance(number, int):
            return number
        if status != 404:
            raise self._unexpected(status, answer)
        status, answer = self._send(f"/compatibility{path}/versions/latest", body)
        if status == 200 and answer.get("is_compatible") is False:
            message = f"the registry would refuse the schema of subject {subject!r}: the latest is incompatible"
            raise SettingsError(message)
        if status not in (200, 404):  # 404: the subject is new
            raise self._unexpected(status, answer)
        return None

    def schema(self, number: int) -> str | None:
        """Return the Avro schema of an id; None if the registry has none."""
        status, answer = self._send(f"/schemas/ids/{number}")
        if status == 404 and answer.get("error_code") == _UNKNOWN_SCHEMA:
            return None
        text = answer.get("schema")
        if status != 200 or not isinstance(text, str):
            raise self._unexpected(status, answer)
        return text if answer.get("schemaType", "AVRO") == "AVRO" else None

    def _send(self, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, Any]]:
        headers = self._headers if body is None else {**self._headers, "Content-Type": _CONTENT_TYPE}
        request = Request(self._base + path, data=body, headers=headers)  # noqa: S310 - http or https, checked above
        try:
            try:
                answer = cast("HTTPResponse", self._open(request, timeout=_SECONDS))
            except HTTPError as error:
                with error:
                    return error.code, _object(_body(error))
            with answer:
                return answer.status, _object(_body(answer))
        except (OSError, HTTPException) as error:  # HTTPException: the answer is cut short, or is no HTTP
            message = f"the schema registry {self._base} does not answer: {error or type(error).__name__}"
            raise Unavailable(message) from error

    def _unexpected(self, status: int, answer: Mapping[str, Any]) -> Unavailable:
        said = str(answer.get("message", ""))[:200]
        return Unavailable(f"the schema registry {self._base} answers with status {status} {said}".rstrip())


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the credentials are for one host."""

    def redirect_request(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def lookup_in_registry(registry: Registry) -> Callable[[int], str | None]:
    """Return a look-up for the codec; an unknown id is looked up again after some seconds."""
    return sparing(registry.schema)


def register_schemas(registry: Registry, subjects: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Register the schema of each subject; return what the database records, by the record's name."""
    recorded: dict[str, dict[str, object]] = {}
    for subject, name in subjects.items():
        form = FORMS[name]
        number = registry.register(subject, form.schema)
        recorded[name] = {"header": form.header.hex(), "id": number, "subject": subject}
    return recorded


def registered_schemas(registry: Registry, subjects: Mapping[str, str]) -> dict[str, int | None]:
    """Return the id of each subject's schema in the registry; None if `register_schemas` would add it."""
    return {subject: registry.registered(subject, FORMS[name].schema) for subject, name in subjects.items()}


def frames_of(recorded: Recorded) -> dict[str, bytes]:
    """Return the first five bytes of the messages of each registered record, by its name.

    A schema that was registered by another release and differs is left out.
    """
    return {
        name: REGISTRY_MAGIC + cast("int", facts["id"]).to_bytes(4)
        for name, facts in recorded.items()
        if name in FORMS and FORMS[name].header.hex() == facts["header"]
    }


def framed(frames: Mapping[str, bytes], record: "DataclassInstance") -> bytes:
    """Return a record in the registry's wire format."""
    return frames[type(record).__name__] + encode(record)[HEADER_BYTES:]


def _body(answer: HTTPResponse | HTTPError) -> bytes:
    """Return the body of an answer, up to `_MAX_BYTES`."""
    until, body = monotonic_seconds() + _SECONDS, bytearray()
    while len(body) < _MAX_BYTES and (part := answer.read1(65_536)):
        body += part
        if monotonic_seconds() > until:
            raise TimeoutError("the answer takes too long")
    return bytes(body)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
