"""Ordering keys that a failed run blocks: `/api/v1/ordering-keys`. By the code of the client."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Operator, Reader
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, Text, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.ordering_keys import OrderingKeys, UnblockedKey
from tidewheel.control.reads.limits import BlockedKey
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import one_line

_KEYS = "/api/v1/ordering-keys"


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
