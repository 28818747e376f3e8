"""Read a request's body, bounded in size, time and memory: strict JSON, validated by a model.

Each kind of caller has memory for bodies, shared by those who send them. A sharer, which is a tenant, an address or an
executor, may take as much as all of its kind leave free: half of the memory if it is alone. So there is always room for
a body of another one. A key may take nine tenths of that.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from tidewheel.control.api.problems import Overloaded, UnreadableBody
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, read_object
from tidewheel.jobs.validation import StrictModel, shown, validate

M = TypeVar("M", bound=StrictModel)
MAX_REPORT_BYTES = 512 * 1024  # a result of 64 KiB, with every character escaped
_SECONDS = 10.0  # for a body of at most 1 MiB: a slower client is stuck or malicious
_JSON = ("application/json",)

ELSEWHERE: Mapping[str, str] = {
    "type": "leave it out: the address names it",
    "tenant": "write it in the query, as ?tenant=",
    "request_id": "send it as the header Idempotency-Key",
    "if_version": "send it as the header If-Match",
}

# Bytes at once. A parsed document takes up to twenty times as much as its text.
ALLOWANCES = {"executors": 8 << 20, "keys": 8 << 20, "reports": 4 << 20, "strangers": 4 << 20}
_OF_KEY = 0.45  # 3.6 MiB: a form that is too long is read up to 3 MiB before it is refused, as browsers need it


async def read_document(
    request: Request, limit: int = MAX_DOCUMENT_BYTES, *, kinds: Sequence[str] = _JSON
) -> dict[str, object]:
    """Return the JSON object of the body; an empty body is an empty object."""
    body = await _read(request, limit)
    if not body:
        return {}
    # A browser page may send other types cross-site without a preflight request, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in kinds:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as content-type: {' or '.join(kinds)}")
    try:
        return read_object(body)
    except UndecodableMessage as error:
        raise UnreadableBody(str(error)) from error


async def read_body(request: Request, model: type[M]) -> M:
    """Return the body as a model; raise InvalidInput with every problem if it does not fit."""
    document = await read_document(request)
    try:
        return validate(model, document)
    except InvalidValue as error:
        raise InvalidInput(error.errors) from error


async def read_verb(request: Request, kind: str, **fields: object) -> dict[str, object]:
    """Return the request that a body and an address describe; refuse a field that both have."""
    read_query(request, TenantQuery)
    body = await read_document(request)
    wrong = [name for name in body if name in ELSEWHERE or name in fields]
    if wrong:
        remedies = ((name, ELSEWHERE.get(name, "leave it out: the address has it")) for name in wrong)
        raise InvalidInput([FieldError(name, f"{name!r} does not belong here", remedy) for name, remedy in remedies])
    return {**body, "type": kind, **fields}


@asynccontextmanager
async def in_time() -> AsyncGenerator[None]:
    """Refuse a body that does not come within ten seconds."""
    try:
        async with asyncio.timeout(_SECONDS):
            yield
    except (TimeoutError, ClientDisconnect) as error:
        detail = f"the body did not come within {_SECONDS:g} s"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, {"Connection": "close"}) from error


class BodyMemory:
    """The bodies that are in memory."""

    def __init__(self) -> None:
        self._held = Counter[str]()  # bytes by kind of caller
        self._held_by = Counter[Sharer]()

    def body(self, sharer: "Sharer", receive: Receive) -> "Body":
        """Return the body of a request, of which nothing has been read."""
        return Body(self, sharer, receive)

    def add(self, sharer: "Sharer", size: int) -> None:
        """Count bytes, or take back a negative `size`; raise Overloaded beyond the sharer's part."""
        kind, whole = sharer.kind, sharer._replace(key=None)
        self._held[kind] += size
        for each in {whole, sharer}:
            self._held_by[each] += size
            if not self._held_by[each]:
                del self._held_by[each]
        of_key = self._held_by[sharer] if sharer.key else 0
        left = ALLOWANCES[kind] - self._held[kind]
        if size > 0 and (self._held_by[whole] > left or of_key > ALLOWANCES[kind] * _OF_KEY):
            text = "the bodies of other requests take all the memory for them; repeat the request in a moment"
            raise Overloaded(text)


class Sharer(NamedTuple):
    """A sender of bodies: its kind of caller, its name in it, and its key if it has one."""

    kind: str
    name: str
    key: str | None = None


class Body:
    """The body of one request."""

    def __init__(self, memory: BodyMemory, sharer: Sharer, receive: Receive) -> None:
        self._memory, self._sharer, self._receive = memory, sharer, receive
        self._size = 0

    async def receive(self) -> Message:
        """Return the next message of the request."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self._size += size
        self._memory.add(self._sharer, size)
        return message

    def free(self) -> None:
        """Give its memory back."""
        self._memory.add(self._sharer, -self._size)


async def _read(request: Request, limit: int) -> bytes:
    detail = f"the body has more than {limit} bytes; send it in parts"
    too_long = HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, {"Connection": "close"})
    if int(request.headers.get("content-length", "0")) > limit:  # the server refuses any but digits
        raise too_long
    if (coding := request.headers.get("content-encoding", "identity")).lower() != "identity":
        detail = f"send the body without content-encoding {shown(coding)}"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail, {"Accept-Encoding": "identity"})
    body = bytearray()
    async with in_time():
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_long
    return bytes(body)
