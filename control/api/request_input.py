"""Read queries and bodies by models, bounded in size, time and memory; opaque cursors.

Each kind of caller has memory for bodies, shared by those who send them. A sharer, which is a tenant, an address or an
executor, may take as much as all of its kind leave free: half of the memory if it is alone. So there is always room for
a body of another one. A key may take nine tenths of that.
"""

import asyncio
import binascii
import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, cast, get_origin
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from tidewheel.control.api.problems import Overloaded, UnreadableBody
from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, as_list, canonical, read_object
from tidewheel.jobs.validation import StrictModel, place_of, shown, validate
from tidewheel.jobs.values import Key, LabelName, Tenant, one_line

M = TypeVar("M", bound=StrictModel)

MAX_LIMIT = 1000
_LARGEST = 2**63 - 1  # of a bigint
_MAX_PARAMETERS = 100
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_MAX_CURSOR = 2048  # one of the longest key has 1,400
MAX_REPORT_BYTES = 512 * 1024  # a result of 64 KiB, with every character escaped
_SECONDS = 10.0  # for a body of at most 1 MiB: a slower client is stuck or malicious
_JSON = ("application/json",)

ELSEWHERE: Mapping[str, str] = {
    "type": "leave it out; the URL already names it",
    "tenant": "send it in the query, as ?tenant=",
    "request_id": "send it as the header Idempotency-Key",
    "if_version": "send it as the header If-Match",
}

_RELIED_ON: Mapping[str, str] = {
    "If-Match": "this call does not change a version",
    "If-None-Match": "this call does not create anything that may already exist",
    "Idempotency-Key": "this call does not store its response",
}

# Bytes at once. A parsed document takes up to twenty times as much as its text.
ALLOWANCES = {"executors": 8 << 20, "keys": 8 << 20, "reports": 4 << 20, "strangers": 4 << 20}
_OF_KEY = 0.45  # 3.6 MiB: a form that is too long is read up to 3 MiB before it is refused, as browsers need it


def whole(value: object) -> object:
    """Return the number of a text of digits, also a negative one; another value unchanged."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    return value


def flag(value: object) -> object:
    """Return the truth value of `true` and `false`; another value unchanged."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def read_number(text: str) -> int | None:
    """Return the id of a row in an address; None if no row can have it."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST)) else 0
    return number if 1 <= number <= _LARGEST else None


def _labels(value: object) -> object:
    if not isinstance(value, tuple | list):
        return value
    found: dict[str, str] = {}
    for each in cast("Sequence[object]", value):
        name, equals, text = str(each).partition("=")
        if not equals or not name:
            raise InvalidValue(problem=f"{shown(each)} is not valid", remedy="write name=value")
        found[name] = text
    return found


Whole = Annotated[int, Field(ge=0, le=_LARGEST), BeforeValidator(whole)]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole)]
Flag = Annotated[bool, BeforeValidator(flag)]
Text = Annotated[str, AfterValidator(one_line(255))]
LabelFilter = Annotated[Mapping[LabelName, Text], Field(max_length=20), BeforeValidator(_labels)]


class TenantQuery(StrictModel):
    """The part of a query that every route has."""

    tenant: Annotated[Tenant, Field(description="The tenant; by default that of the caller's key, or `default`.")] = (
        "default"
    )
    noun: ClassVar[str] = "parameter"


class LimitQuery(TenantQuery):
    """Query of a list without pages."""

    noun: ClassVar[str] = "filter"
    limit: Annotated[Limit, Field(description="The maximum number of results.")] = 50


class PageQuery(LimitQuery):
    """The part of a query that every list with pages has."""

    cursor: Annotated[
        Annotated[str, AfterValidator(one_line(_MAX_CURSOR))] | None,
        Field(description="The `next_cursor` of the previous page."),
    ] = None


def read_query(request: Request, model: type[M], *, names: Collection[str] | None = None) -> M:
    """Return the query as a model, or only some of its parameters; a repeatable one is a tuple or labels."""
    items = request.query_params.multi_items()
    if len(items) > _MAX_PARAMETERS:
        refuse("", f"the query has {len(items)} parameters, which is too many", "send only documented ones")
    given: dict[str, object] = {}
    for name, value in items:
        if names is not None and name not in names:
            continue
        if _is_repeatable(model, name):
            given[name] = (*cast("Sequence[object]", given.get(name, ())), value)
        elif name in given:
            refuse(name, "is given twice", "send it once")
        else:
            given[name] = value
    try:
        return validate(model, given)
    except InvalidValue as error:
        raise InvalidInput(error.errors) from error


def ensure_known_conditions(request: Request, known: Collection[str]) -> None:
    """Refuse a header that a caller relies on and that this call would not read, or only in part."""
    for name, problem in _RELIED_ON.items():
        given = request.headers.getlist(name)
        if given and name not in known:
            refuse(name, problem, "leave it out")
        if len(given) > 1:
            refuse(name, "is given twice", "send it once")


def read_key(request: Request) -> str:
    """Return the key of a job in the path, which is percent-encoded."""
    try:
        key = unquote_to_bytes(str(request.path_params["key"])).decode()
    except UnicodeDecodeError:
        refuse("key", "is not UTF-8", "percent-encode the key in UTF-8")
    return as_key(key, "key")


def as_key(text: str, path: str) -> str:
    """Return a text that is a key, or a request_id."""
    try:
        return validate(_Key, {"key": text}).key
    except InvalidValue as error:
        raise InvalidInput([replace(each, path=path) for each in error.errors]) from error


class _Key(StrictModel):
    key: Key


@dataclass(frozen=True, slots=True)
class Cursors:
    """The cursors of one list: its address, its tenant and its filters, of which they have a digest."""

    given: str | None
    list: str

    @classmethod
    def of(cls, request: Request, query: PageQuery, tenant: str) -> "Cursors":
        """Return those of the list that a request reads."""
        return cls.of_list(request.scope["path"], query, tenant)

    @classmethod
    def of_list(cls, path: str, query: PageQuery, tenant: str) -> "Cursors":
        """Return those of the list of an address, a query and a tenant."""
        filters = query.model_dump(mode="json", exclude={"cursor", "limit", "tenant", "opened"})
        named = canonical([path, tenant, filters])
        return cls(query.cursor, sha256(named).hexdigest()[:16])

    def read(self, *kinds: Any) -> Sequence[Any] | None:  # noqa: ANN401 - as of TypeAdapter
        """Return the parts of the request's cursor; None if it has none."""
        if self.given is None:
            return None
        try:
            raw = b64decode(self.given + "=" * (-len(self.given) % 4), b"-_", validate=True)
            parts = as_list(json.loads(raw)) or ()
            found = [
                TypeAdapter[Any](kind).validate_python(part) for kind, part in zip((str, *kinds), parts, strict=True)
            ]
        except (ValueError, binascii.Error):
            refuse("cursor", f"{shown(self.given)} is not a cursor of this list", "copy next_cursor, or leave it out")
        if found[0] != self.list:
            problem = "belongs to another list or other filters"
            refuse("cursor", problem, "send the filters of the previous page, or leave it out")
        return found[1:]

    def write(self, *parts: object) -> str | None:
        """Return an opaque cursor; None if its parts are None."""
        if None in parts:
            return None
        texts = [part.isoformat() if isinstance(part, datetime) else str(part) for part in parts]
        text = json.dumps([self.list, *texts], ensure_ascii=False)
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _is_repeatable(model: type[StrictModel], name: str) -> bool:
    field = model.model_fields.get(name)
    return field is not None and get_origin(field.annotation) in {tuple, Mapping}


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
    places = {**dict.fromkeys(fields, "leave it out; the URL already names it"), **ELSEWHERE}
    if wrong := {name: place for name in body if (place := place_of(name, places))}:
        raise InvalidInput([FieldError(name, f"{name!r} does not belong here", place) for name, place in wrong.items()])
    return {**body, "type": kind, **fields}


@asynccontextmanager
async def in_time() -> AsyncGenerator[None]:
    """Refuse a body that does not come within ten seconds."""
    try:
        async with asyncio.timeout(_SECONDS):
            yield
    except (TimeoutError, ClientDisconnect) as error:
        detail = f"the body did not arrive within {_SECONDS:g} s"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail, {"Connection": "close"}) from error


class BodyMemory:
    """The bodies that are in memory."""

    def __init__(self) -> None:
        self._held = Counter[str]()  # bytes by kind of caller
        self._held_by = Counter[Sharer]()

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
            raise Overloaded("other requests use all the memory for bodies; retry in a moment")


class Sharer(NamedTuple):
    """A sender of bodies: its kind of caller, its name in it, and its key if it has one."""

    kind: str
    name: str
    key: str | None = None


class Body:
    """The body of one request, of which nothing has been read."""

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
