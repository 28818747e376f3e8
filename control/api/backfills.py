"""Backfills: `/api/v1/backfills`. Reads by control/reads, changes by the requests of intake."""

from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, answer, idempotency_key
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Caller, Operator, Reader
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import LimitQuery, TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.backfills import Backfills
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.results import BackfillResult, backfill_of
from tidewheel.control.reads.backfills import BackfillProgress, BackfillSummary, backfills
from tidewheel.jobs.requests import BackfillCancel, BackfillPause, BackfillResume
from tidewheel.jobs.values import Key

BACKFILLS = "/api/v1/backfills"
_ONE = f"{BACKFILLS}/{{backfill_id:uuid}}"


class BackfillsQuery(LimitQuery):
    """Filter of a list of backfills.

    Attributes:
        job: Only those of the job with this key.
    """

    job: Key | None = None


@dataclass(frozen=True, slots=True)
class BackfillList:
    """Backfills, the newest first."""

    backfills: tuple[BackfillSummary, ...]


@dataclass(frozen=True, slots=True)
class BackfillsApi:
    """Calls about existing backfills."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(BACKFILLS, self.list_backfills, query=BackfillsQuery, answer=BackfillList, example=examples.BACKFILLS)
        read(_ONE, self.get_backfill, query=TenantQuery, answer=BackfillProgress, example=examples.BACKFILL_PROGRESS)
        change = partial(
            add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery, headers=IDEMPOTENCY_KEY,
            answer=BackfillResult, sent={"reason": "maintenance"}, example=examples.BACKFILL_CHANGE,
        )  # fmt: skip
        without = (*IN_ADDRESS, "backfill_id")
        change(f"{_ONE}:pause", self.pause_backfill, body=body_of(BackfillPause, without=without))
        change(f"{_ONE}:resume", self.resume_backfill, body=body_of(BackfillResume, without=without))
        change(f"{_ONE}:cancel", self.cancel_backfill, body=body_of(BackfillCancel, without=without))

    async def list_backfills(self, request: Request, caller: Reader) -> Response:
        """List backfills, the newest first."""
        query = read_query(request, BackfillsQuery)

        def read(connection: Connection) -> BackfillList:
            with connection.snapshot() as reading:
                return BackfillList(tuple(backfills(reading, caller.tenant, query.job, limit=query.limit)))

        return await answer(self.reads, caller, read)

    async def get_backfill(self, request: Request, caller: Reader) -> Response:
        """Return one backfill, with the states of its runs."""
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda each: Backfills(each).get(_backfill_id(request)))

    async def pause_backfill(self, request: Request, caller: Operator) -> Response:
        """Create no further run of a backfill until it is resumed."""
        return await self._change(request, caller, "backfill.pause")

    async def resume_backfill(self, request: Request, caller: Operator) -> Response:
        """Resume a backfill."""
        return await self._change(request, caller, "backfill.resume")

    async def cancel_backfill(self, request: Request, caller: Operator) -> Response:
        """Stop a backfill, and cancel its runs that have not started."""
        return await self._change(request, caller, "backfill.cancel")

    async def _change(self, request: Request, caller: Caller, kind: str) -> Response:
        sent = await read_verb(request, kind, backfill_id=str(_backfill_id(request)))
        request_id = idempotency_key(request)
        return await answer(self.writes, caller, lambda each: backfill_of(each.request(sent, request_id)))


def _backfill_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["backfill_id"])
