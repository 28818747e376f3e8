"""Answers: the JSON of records, encoded on a worker's thread, and the headers of a job's version."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from http import HTTPStatus
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import as_key
from tidewheel.control.api.workers import Turn, Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.fleet import FleetStatus, read_status
from tidewheel.control.reads.json_form import as_json
from tidewheel.errors import refuse
from tidewheel.jobs.validation import shown
from tidewheel.nouns.operation import field_values

T = TypeVar("T")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `json.dumps` would make one each time
_ENTITY_TAG = re.compile(r'(?:W/)?"([1-9]\d{0,8})"', re.ASCII)  # weak too: some proxies make it so

IDEMPOTENCY_KEY = {"Idempotency-Key": "A repeated key returns the first answer, for 8 days"}
IF_MATCH = {"If-Match": "The ETag of the version to change; 412 if it is no longer the current one"}
ENTITY_TAG = {"ETag": "The version of the job"}
TRACEPARENT = {"traceparent": "The trace of the new runs, as W3C Trace Context describes it; an invalid one is ignored"}
LOCATION = {"Location": "The path of what was created or accepted"}
_READ_FROM = "Tidewheel-Read-From"
READ_FROM = {_READ_FROM: "`replica`, or `primary` with the reason; only where a read replica is set"}
IF_NONE_MATCH = {"If-None-Match": "`*` to create only; 412 if the job exists"}


async def answer(
    workers: Workers,
    caller: Caller,
    work: Callable[[Connection], object],
    *,
    status: HTTPStatus = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
    version: Callable[[Any], int] | None = None,
) -> Response:
    """Run work on a thread, and return its result as JSON; raise Unavailable if all threads are busy.

    Args:
        version: Returns the version of the result, which is its entity tag.
    """

    def run(connection: Connection) -> tuple[bytearray, Mapping[str, str]]:
        found = work(connection)
        return _encoded(found), read_from(connection) | ({} if version is None else entity_tag(version(found)))

    content, tag = await call(workers, caller, run)
    return Response(memoryview(content), status, {**(headers or {}), **tag}, media_type="application/json")


async def call(workers: Workers, caller: Caller, work: Callable[[Connection], T]) -> T:
    """Run work on a thread in the caller's turn, with its tenant, actor and trace; as `Workers.do`."""
    return await workers.do(
        lambda state: work(state.connection(caller.tenant, caller.actor, caller.traceparent)),
        Turn(caller.tenant, caller.actor.key_id or ""),
    )


def location(caller: Caller, path: str) -> dict[str, str]:
    """Return the header with the path at which this caller reads what it has created."""
    named = f"?tenant={caller.tenant}" if caller.all_tenants and caller.tenant != "default" else ""
    return {"Location": f"{path}{named}"}


def accepted(
    caller: Caller, result: object, where: str, name: str, status: HTTPStatus = HTTPStatus.ACCEPTED
) -> Response:
    """Answer 202, or 201, with the path of what schedulers work off, or 200 if nothing is left to do."""
    following = getattr(result, name)
    if following is None:
        return as_json_response(result)
    return as_json_response(result, status, location(caller, f"{where}/{following}"))


def as_json_response(
    value: object, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer with the JSON of a value that needs no thread."""
    return Response(encoded(value), status, headers, media_type="application/json")


def encoded(value: object) -> bytes:
    """Return the JSON text of a value."""
    return bytes(_encoded(value))


def entity_tag(version: int) -> dict[str, str]:
    """Return the header with a job's version."""
    return {"ETag": f'"{version}"'}


def read_from(connection: Connection) -> dict[str, str]:
    """Return the header with the server that was read, where a replica is set."""
    if (why := connection.replica_problem) is None:
        return {}
    return {_READ_FROM: f"primary; the replica {why}" if why else "replica"}


def idempotency_key(request: Request) -> str | None:
    """Return the request_id that the caller has given, or raise InvalidInput."""
    given = request.headers.get("idempotency-key")
    return None if given is None else as_key(given, "Idempotency-Key")


def expected_version(request: Request, *, creates: bool = False) -> int | None:
    """Return the version that a caller expects: 0 for none, if the call may create a job; None for any."""
    given, only_new = request.headers.get("if-match"), request.headers.get("if-none-match")
    if only_new is not None:
        if only_new.strip() != "*":
            refuse("If-None-Match", f"{shown(only_new)} is not valid", "write *, or use If-Match")
        if given is not None:
            refuse("If-None-Match", "cannot be combined with If-Match", "send one of the two")
        return 0
    if given is None:
        return None
    if given.strip() == "*":
        if creates:  # as a promise that the job exists, it would have to be checked
            refuse("If-Match", "* does not name a version", "write the ETag of a response, or send a PATCH")
        return None
    if (found := _ENTITY_TAG.fullmatch(given.strip())) is None:
        refuse("If-Match", f"{shown(given)} is not valid", 'write the ETag of a response, such as "3"')
    return int(found[1])


def fleet_of(connection: Connection, caller: Caller, shards: int) -> FleetStatus | None:
    """Return the state of the fleet; None if the caller may not see it."""
    if not caller.sees_fleet:
        return None
    with connection.snapshot(all_tenants=True) as reading:
        return read_status(reading, shards)


def _encoded(value: object) -> bytearray:
    """Encode a value element by element.

    A page of megabytes is then in memory as records and as text, not five times.
    """
    text = bytearray()
    for part in _parts(value):
        text += part.encode("utf-8", "replace")
    return text


def _parts(value: object) -> Iterator[str]:
    """Yield the JSON text of a value in parts: a list in a field of it has one for each element."""
    fields = field_values(value) if is_dataclass(value) else value
    if not isinstance(fields, Mapping):
        yield _encode(as_json(value))
        return
    before = "{"
    for name, part in cast("Mapping[object, object]", fields).items():
        yield f"{before}{_encode(str(name))}:"
        before = ","
        if isinstance(part, list | tuple):
            yield "["
            for number, each in enumerate(cast("Sequence[object]", part)):
                yield f"{',' if number else ''}{_encode(as_json(each))}"
            yield "]"
        else:
            yield _encode(as_json(part))
    yield "}" if before == "," else "{}"
