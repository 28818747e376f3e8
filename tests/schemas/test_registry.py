"""The client of a schema registry, against answers that a proxy or a dying registry gives."""

import json
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import cast

import pytest
from fastavro import parse_schema
from fastavro import schemaless_writer as _writer  # pyright: ignore[reportUnknownVariableType]

from tidewheel.errors import SettingsError, Unavailable, UndecodableMessage
from tidewheel.intake.request import read_document
from tidewheel.schemas import registry as module
from tidewheel.schemas.codec import decode_fields, install_registry
from tidewheel.schemas.registry import Registry, lookup_in_registry

_write = cast("Callable[[BytesIO, object, object], None]", _writer)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def answering(*parts: bytes, pause: float = 0.0) -> Generator[Registry]:
    """A registry that sends these bytes, a pause after each part, and closes the connection."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    for part in parts:
                        connection.sendall(part)
                        over.wait(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Registry(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        OK + b"Transfer-Encoding: chunked\r\n\r\n20\r\n{",
        b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n<html>",
        OK + b"Content-Length: 1000\r\n\r\n{",
        OK + b"Content-Length: 2\r\n\r\n[]",
    ],
)
def test_answer_that_is_cut_short_or_no_http_is_no_answer(answer: bytes) -> None:
    with answering(answer) as registry, pytest.raises(Unavailable, match="the schema registry http://127"):
        registry.schema(1)


def test_answer_that_never_ends_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    head = OK + b"Content-Length: 1000\r\n\r\n"
    with answering(head, *[b" "] * 100, pause=0.1) as registry, pytest.raises(Unavailable, match="too long"):
        registry.schema(1)


@pytest.mark.parametrize(
    "url", ["registry:8081", "http://registry:port", "http://[::1", "http://:8081", "http://r:99999"]
)
def test_address_that_is_none_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="write http://host:port"):
        Registry(url)


@pytest.mark.parametrize("schema", ["nothing", "[]", '"string"'])
def test_schema_of_the_registry_that_is_no_record_rejects_the_message(schema: str) -> None:
    install_registry(lambda _: schema)
    try:
        with pytest.raises(UndecodableMessage, match="Request"):
            decode_fields(b"\0\0\0\0\1", "Request")
    finally:
        install_registry(None)


WRITTEN = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "type_", "value", "read"),
    [
        ("run_at", "long", int(WRITTEN.timestamp() * 1_000_000), "2026-11-20T00:00:00.000000Z"),
        ("run_at", {"type": "long", "logicalType": "time-micros"}, time(1), None),
        ("result_json", {"type": "string", "logicalType": "uuid"}, "00000000-0000-4000-8000-000000000000", None),
        ("payload", {"type": "bytes", "logicalType": "decimal", "precision": 4}, Decimal(7), None),
    ],
)
def test_other_logical_types_of_a_producer_are_read_as_ours_or_reject_the_message(
    name: str, type_: object, value: object, read: str | None
) -> None:
    kinds = {"type": "enum", "name": "RequestType", "symbols": ["unknown", "job_trigger"], "default": "unknown"}
    fields = [{"name": "type", "type": kinds}, {"name": name, "type": type_}]
    schema = {"type": "record", "name": "Request", "namespace": "io.tidewheel", "fields": fields}
    body = BytesIO()
    _write(body, parse_schema(schema), {"type": "job_trigger", name: value})
    install_registry(lambda _: json.dumps(schema))
    try:
        document, _ = read_document(b"\0\0\0\0\1" + body.getvalue())
    except UndecodableMessage:
        assert read is None
    else:
        assert document[name] == read
    finally:
        install_registry(None)


def test_unknown_id_is_looked_up_once_in_a_while() -> None:
    body = b'{"error_code": 40403, "message": "Schema not found"}'
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body)
    with answering(head + body) as registry:
        lookup = lookup_in_registry(registry)
        assert lookup(7) is None
    assert lookup(7) is None, "the registry is away, and is not needed"
