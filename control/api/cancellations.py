"""Cancellations of runs by filter: `/api/v1/runs:cancel`, `/api/v1/cancellations`."""

from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, LOCATION, accepted, answer, call, idempotency_key
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Operator, Reader
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, Whole, read_number, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.runs import CancelResult, Runs
from tidewheel.control.reads.cancellations import Cancellation, cancellations
from tidewheel.errors import UnknownCancellation, refuse
from tidewheel.jobs.requests import RunsCancel

_CANCELLATIONS = "/api/v1/cancellations"

_BODY: dict[str, Any] = body_of(RunsCancel, without=[name for name in IN_ADDRESS if name != "key"])
_DRY_RUN = {"type": "boolean", "default": False, "description": "Only count the runs."}
_BODY["properties"] = {**_BODY["properties"], "dry_run": _DRY_RUN}


@dataclass(frozen=True, slots=True)
class CancellationsPage:
    """Cancellations by filter, the newest first."""

    cancellations: tuple[Cancellation, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class CancellationsApi:
    """Calls about cancellations by filter."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        add_route(
            router, "POST", "/api/v1/runs:cancel", self.cancel_runs, scope=Scope.OPERATE, query=TenantQuery,
            headers=IDEMPOTENCY_KEY, also=HTTPStatus.ACCEPTED, sets=LOCATION, answer=CancelResult, body=_BODY,
            sent={"key": "nightly", "reason": "wrong data"}, example=examples.CANCEL_RESULT,
        )  # fmt: skip
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(_CANCELLATIONS, self.list_cancellations, query=PageQuery, answer=CancellationsPage,
             example=examples.CANCELLATIONS)  # fmt: skip
        read(f"{_CANCELLATIONS}/{{number}}", self.get_cancellation, query=TenantQuery, answer=Cancellation,
             example=examples.CANCELLATION)  # fmt: skip

    async def cancel_runs(self, request: Request, caller: Operator) -> Response:
        """Cancel all open runs that match a filter: no executor starts one, and schedulers end them."""
        sent, request_id = await read_verb(request, "runs.cancel"), idempotency_key(request)
        dry_run = sent.pop("dry_run", False)
        if not isinstance(dry_run, bool):
            refuse("dry_run", "it is no boolean", "write true or false")

        def change(connection: Connection) -> CancelResult:
            return Runs(connection).cancel_matching(sent, request_id, dry_run=dry_run)

        return accepted(caller, await call(self.writes, caller, change), _CANCELLATIONS, "cancellation_id")

    async def list_cancellations(self, request: Request, caller: Reader) -> Response:
        """List cancellations by filter, the newest first."""
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        [after] = cursors.read(Whole) or [None]

        def read(connection: Connection) -> CancellationsPage:
            with connection.snapshot() as reading:
                found = cancellations(reading, caller.tenant, after=after, limit=query.limit + 1)
            page = found[: query.limit]
            cursor = cursors.write(page[-1].cancellation_id) if len(found) > len(page) else None
            return CancellationsPage(tuple(page), cursor)

        return await answer(self.reads, caller, read)

    async def get_cancellation(self, request: Request, caller: Reader) -> Response:
        """Return one cancellation with its progress."""
        read_query(request, TenantQuery)
        number = read_number(str(request.path_params["number"]))
        if number is None:
            raise UnknownCancellation(0)
        return await answer(self.reads, caller, lambda each: Runs(each).cancellation(number))
