"""`/api/v1/limits`, limits of concurrency keys, and `/api/v1/ordering-keys`, those that are blocked."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Caller, Operator, Reader
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, Text, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.limits import ChangedLimit, Limits, OrderingKeys, UnblockedKey
from tidewheel.control.reads.limits import BlockedKey, KeyInUse, LimitSummary
from tidewheel.jobs.concurrency import MOST_AT_ONCE, MOST_BURST
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import one_line

_LIMITS = "/api/v1/limits"
_KEYS = "/api/v1/ordering-keys"


class KeysInUseQuery(PageQuery):
    """Filter of a list of keys in use.

    Attributes:
        prefix: Only keys that begin so.
    """

    prefix: Text | None = None


class LimitKey(StrictModel):
    """A key, or the beginning of keys and an asterisk.

    Attributes:
        key: The key, or the beginning of keys and an asterisk.
    """

    key: Annotated[str, AfterValidator(one_line(255))]


class NewLimit(LimitKey):
    """Body of a limit, of a key or of each key that begins so; it replaces those of jobs.

    Attributes:
        at_once: The number of its runs that are active at once; no bound if there is a rate only.
        rate: The number of its attempts that start in a time, such as `100/min`.
        burst: The number of starts at once after a rest.
    """

    at_once: Annotated[int, Field(ge=0, le=MOST_AT_ONCE)] | None = None
    rate: Text | None = None
    burst: Annotated[int, Field(ge=1, le=MOST_BURST)] | None = None


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """Limits: those of keys by key, then those of prefixes."""

    limits: tuple[LimitSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class KeysInUsePage:
    """Keys in use, by key."""

    keys: tuple[KeyInUse, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class LimitsApi:
    """Calls about limits of concurrency keys."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(_LIMITS, self.list_limits, query=PageQuery, answer=LimitsPage, example=examples.LIMITS)
        read(f"{_LIMITS}/keys", self.list_keys_in_use, query=KeysInUseQuery, answer=KeysInUsePage,
             example=examples.KEYS_IN_USE)  # fmt: skip
        change = partial(
            add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery, answer=ChangedLimit,
            example=examples.CHANGED_LIMIT,
        )  # fmt: skip
        change(_LIMITS, self.set_limit, body=body_of(NewLimit), sent={"key": "api/*", "at_once": 3, "rate": "100/min"})
        change(f"{_LIMITS}:remove", self.remove_limit, body=body_of(LimitKey), sent={"key": "api/*"})

    async def list_limits(self, request: Request, caller: Reader) -> Response:
        """List limits of concurrency keys, each with what runs and waits under it."""
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Text)

        def read(connection: Connection) -> LimitsPage:
            found = Limits(connection).list(after=None if place is None else place[0], limit=query.limit)
            return LimitsPage(tuple(found), cursors.write(found[-1].key if len(found) == query.limit else None))

        return await answer(self.reads, caller, read)

    async def list_keys_in_use(self, request: Request, caller: Reader) -> Response:
        """List keys in use, each with its limit in force, and what runs and waits."""
        query = read_query(request, KeysInUseQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Text)

        def read(connection: Connection) -> KeysInUsePage:
            after = "" if place is None else str(place[0])
            found = Limits(connection).keys(prefix=query.prefix or "", after=after, limit=query.limit)
            return KeysInUsePage(tuple(found), cursors.write(found[-1].key if len(found) == query.limit else None))

        return await answer(self.reads, caller, read)

    async def set_limit(self, request: Request, caller: Operator) -> Response:
        """Set the limit of a key or a prefix; a raised one starts waiting runs, a lower one ends none."""
        read_query(request, TenantQuery)
        body = await read_body(request, NewLimit)
        return await self._change(
            caller, lambda limits: limits.set(body.key, at_once=body.at_once, rate=body.rate, burst=body.burst)
        )

    async def remove_limit(self, request: Request, caller: Operator) -> Response:
        """Remove the limit of a key or a prefix; a shorter prefix or the jobs decide again."""
        read_query(request, TenantQuery)
        body = await read_body(request, LimitKey)
        return await self._change(caller, lambda limits: limits.remove(body.key))

    async def _change(self, caller: Caller, change: Callable[[Limits], ChangedLimit]) -> Response:
        return await answer(self.writes, caller, lambda connection: change(Limits(connection)))


class OrderingKeyBody(StrictModel):
    """Body of an unblocking.

    Attributes:
        key: The ordering key.
        skip: True to let the next run start without a retry of the failed one.
    """

    key: Annotated[str, AfterValidator(one_line(255))]
    skip: bool = False


@dataclass(frozen=True, slots=True)
class BlockedKeysPage:
    """Blocked keys, the longest first."""

    keys: tuple[BlockedKey, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class OrderingKeysApi:
    """Calls about ordering keys."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(_KEYS, self.list_blocked_keys, query=PageQuery, answer=BlockedKeysPage, example=examples.BLOCKED_KEYS)
        add_route(
            router, "POST", f"{_KEYS}:unblock", self.unblock_key, scope=Scope.OPERATE, query=TenantQuery,
            answer=UnblockedKey, example=examples.UNBLOCKED_KEY, body=body_of(OrderingKeyBody), sent={"key": "acme"},
        )  # fmt: skip

    async def list_blocked_keys(self, request: Request, caller: Reader) -> Response:
        """List ordering keys that a failed run blocks, the longest first."""
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(datetime, Text)

        def read(connection: Connection) -> BlockedKeysPage:
            after = None if place is None else (place[0], place[1])
            found = tuple(OrderingKeys(connection).blocked(after=after, limit=query.limit))
            last = found[-1] if len(found) == query.limit else None
            return BlockedKeysPage(found, None if last is None else cursors.write(last.blocked_at, last.key))

        return await answer(self.reads, caller, read)

    async def unblock_key(self, request: Request, caller: Operator) -> Response:
        """Retry the failed run of a blocked key, or let the next one start without it."""
        read_query(request, TenantQuery)
        body = await read_body(request, OrderingKeyBody)
        return await answer(
            self.writes, caller, lambda connection: OrderingKeys(connection).unblock(body.key, skip=body.skip)
        )
