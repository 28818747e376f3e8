"""Batches: `/api/v1/batches`. Reads by control/reads, changes by the requests of intake."""

from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, cast
from uuid import UUID

from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import (
    IDEMPOTENCY_KEY,
    LOCATION,
    TRACEPARENT,
    answer,
    call,
    encoded,
    idempotency_key,
    location,
)
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Operator, Reader, Writer
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_query, whole
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.batches import Batches
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.batches import MAX_RUNS, Batch, BatchSummary, batches
from tidewheel.jobs.requests import BatchAdd, BatchClose, BatchSubmit, WorkflowCancel, WorkflowResume

BATCHES = "/api/v1/batches"
_ONE = f"{BATCHES}/{{batch_id:uuid}}"


class BatchQuery(TenantQuery):
    """Query of one batch.

    Attributes:
        limit: How many of its runs at most.
    """

    limit: Annotated[int, Field(ge=1, le=MAX_RUNS), BeforeValidator(whole)] = 1000


@dataclass(frozen=True, slots=True)
class BatchesPage:
    """Batches, the newest first."""

    batches: tuple[BatchSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class CreatedBatch:
    """A batch that a request has created."""

    batch_id: UUID


@dataclass(frozen=True, slots=True)
class ChangedBatch:
    """A batch after a request."""

    batch_id: UUID
    unchanged: bool


@dataclass(frozen=True, slots=True)
class BatchesApi:
    """Calls about batches."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(BATCHES, self.list_batches, query=PageQuery, answer=BatchesPage, example=examples.BATCHES)
        read(_ONE, self.get_batch, query=BatchQuery, answer=Batch, example=examples.BATCH)
        add_route(
            router, "POST", BATCHES, self.submit_batch, scope=Scope.WRITE, query=TenantQuery,
            headers=IDEMPOTENCY_KEY | TRACEPARENT, status=HTTPStatus.CREATED, sets=LOCATION, answer=CreatedBatch,
            body=body_of(BatchSubmit, without=IN_ADDRESS), sent=examples.SUBMITTED_BATCH,
            example={"batch_id": examples.RUN_ID},
        )  # fmt: skip
        change = partial(
            add_route, router, "POST", query=TenantQuery, headers=IDEMPOTENCY_KEY, answer=ChangedBatch,
            example=examples.BATCH_CHANGE,
        )  # fmt: skip
        without = (*IN_ADDRESS, "batch_id")
        change(f"{_ONE}:add", self.add_to_batch, scope=Scope.WRITE, body=body_of(BatchAdd, without=without),
               sent={"runs": [{"ref": "more", "key": "nightly"}]})  # fmt: skip
        close = body_of(BatchClose, without=without)
        change(f"{_ONE}:close", self.close_batch, scope=Scope.WRITE, body=close, sent={})
        resume = body_of(WorkflowResume, without=IN_ADDRESS)
        change(f"{_ONE}:resume", self.resume_batch, scope=Scope.OPERATE, body=resume, sent={})
        cancel = body_of(WorkflowCancel, without=IN_ADDRESS)
        change(f"{_ONE}:cancel", self.cancel_batch, scope=Scope.OPERATE, body=cancel, sent={"reason": "maintenance"})

    async def list_batches(self, request: Request, caller: Reader) -> Response:
        """List batches, the newest first."""
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        [after] = cursors.read(UUID) or [None]

        def read(connection: Connection) -> BatchesPage:
            with connection.snapshot() as reading:
                found = batches(reading, caller.tenant, after=after, limit=query.limit + 1)
            page = found[: query.limit]
            return BatchesPage(tuple(page), cursors.write(page[-1].batch_id) if len(found) > len(page) else None)

        return await answer(self.reads, caller, read)

    async def get_batch(self, request: Request, caller: Reader) -> Response:
        """Return one batch, with its runs in the order of their refs."""
        query, batch_id = read_query(request, BatchQuery), _batch_id(request)
        return await answer(self.reads, caller, lambda each: Batches(each).get(batch_id, limit=query.limit))

    async def submit_batch(self, request: Request, caller: Writer) -> Response:
        """Run jobs once each, some after others, and trigger jobs when they end."""
        sent, request_id = await read_verb(request, "batch.submit"), idempotency_key(request)
        reply = await call(self.writes, caller, lambda each: each.request(sent, request_id))
        where = location(caller, f"{BATCHES}/{reply.batch_id}")
        content = encoded({"batch_id": reply.batch_id})
        return Response(content, HTTPStatus.CREATED, where, media_type="application/json")

    async def add_to_batch(self, request: Request, caller: Writer) -> Response:
        """Add runs to a batch that is open, or from one of its runs."""
        return await self._change(request, caller, "batch.add")

    async def close_batch(self, request: Request, caller: Writer) -> Response:
        """Let an open batch end with its last run."""
        return await self._change(request, caller, "batch.close")

    async def resume_batch(self, request: Request, caller: Operator) -> Response:
        """Go on after a pause, or run the failed part of an ended batch again."""
        return await self._change_occurrence(request, caller, "workflow.resume")

    async def cancel_batch(self, request: Request, caller: Operator) -> Response:
        """Cancel the runs of a batch, and close it."""
        return await self._change_occurrence(request, caller, "workflow.cancel")

    async def _change_occurrence(self, request: Request, caller: Operator, kind: str) -> Response:
        batch_id = _batch_id(request)
        sent, request_id = await read_verb(request, kind, run_id=str(batch_id)), idempotency_key(request)

        def change(connection: Connection) -> ChangedBatch:
            Batches(connection).get(batch_id, limit=1)  # not another kind of occurrence
            return ChangedBatch(batch_id, connection.request(sent, request_id).unchanged)

        return await answer(self.writes, caller, change)

    async def _change(self, request: Request, caller: Writer, kind: str) -> Response:
        batch_id = _batch_id(request)
        sent, request_id = await read_verb(request, kind, batch_id=str(batch_id)), idempotency_key(request)

        def change(connection: Connection) -> ChangedBatch:
            return ChangedBatch(batch_id, connection.request(sent, request_id).unchanged)

        return await answer(self.writes, caller, change)


def _batch_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["batch_id"])
