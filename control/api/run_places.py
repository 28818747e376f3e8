"""`/api/v1/runs/{run_id}/where`: the table that holds a run, and its messages on Kafka."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Reader
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Flag, TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.archive.show import show_run_anywhere
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.run_detail import RunDetail
from tidewheel.control.reads.run_stages import ClaimMessage, claim_message
from tidewheel.control.run_places import MessagePlace, PendingMessage, RunPlaces, find_places
from tidewheel.errors import UnknownRun
from tidewheel.settings.api import ApiSettings

_LOOK_SECONDS = 3.0  # for each message: a thread for reads is held meanwhile
_LOOKING = threading.Lock()  # one look at a time: the other threads for reads stay free
_BUSY = "another look on Kafka is in progress; repeat it in some seconds"


class WhereQuery(TenantQuery):
    """Query of the places of a run.

    Attributes:
        kafka: True to look up the first message and the completion on Kafka, for some seconds at most.
    """

    kafka: Flag = False


@dataclass(frozen=True, slots=True)
class RunWhere:
    """The places of a run.

    Args:
        table_name: The table that holds it; of an ended run the partition of its day; None if the archive has it.
        day: The day on which it ended; None while it is open.
        shard: Its job's shard.
        request_id: The id of the request that created it.
        requested_from: That request's message as topic/partition/offset.
        outbox: Its messages that are not published yet.
        run_message: Its first message; None if it was not found or not looked up.
        completion: Its completion; None likewise, and while it is open.
        kafka: The reason for which Kafka was not read; None if it was.
        claims: The messages by which its attempts were claimed.
    """

    table_name: str | None
    day: date | None
    shard: int | None
    request_id: str | None
    requested_from: str | None
    outbox: tuple[PendingMessage, ...]
    run_message: MessagePlace | None
    completion: MessagePlace | None
    kafka: str | None
    claims: tuple[ClaimMessage, ...]


def run_where(connection: Connection, settings: ApiSettings, tenant: str, run_id: UUID, *, kafka: bool) -> RunWhere:
    """Return the places of a run, or raise UnknownRun."""
    run = show_run_anywhere(connection.snapshot, settings.archive, tenant, run_id)
    claims = claims_of(run)
    try:
        places = stored_places(connection, settings, tenant, run_id, kafka=kafka)
    except UnknownRun:
        return RunWhere(None, None, None, run.request_id, None, (), None, None, "the archive has this run", claims)
    return RunWhere(
        places.table_name, places.day, places.shard, places.request_id, places.requested_from, places.outbox,
        places.run_message, places.completion, places.kafka, claims,
    )  # fmt: skip


def stored_places(
    connection: Connection, settings: ApiSettings, tenant: str, run_id: UUID, *, kafka: bool
) -> RunPlaces:
    """Return the places of a run that the database has; one call at a time looks on Kafka."""
    # The role of a tenant may not read the outbox. The statements name the tenant.
    snapshot = partial(connection.snapshot, all_tenants=True)
    with looking(wanted=kafka) as looks:
        found = find_places(
            snapshot, settings, tenant, run_id, retention=timedelta(0), kafka=looks, look_seconds=_LOOK_SECONDS
        )
    return replace(found, kafka=_BUSY) if kafka and not looks else found


@contextmanager
def looking(*, wanted: bool = True) -> Generator[bool]:
    """Yield True for the only look on Kafka, False while there is another."""
    is_first = wanted and _LOOKING.acquire(blocking=False)
    try:
        yield is_first
    finally:
        if is_first:
            _LOOKING.release()


def claims_of(run: RunDetail) -> tuple[ClaimMessage, ...]:
    """Return the messages by which the attempts of a run were claimed."""
    found = {each.attempt: each.claimed_from for each in run.attempts}
    found.setdefault(run.summary.attempt, run.claimed_from)
    return tuple(claim_message(attempt, text) for attempt, text in found.items() if text is not None)


@dataclass(frozen=True, slots=True)
class RunPlacesApi:
    """Calls about the places of runs."""

    reads: Workers
    settings: ApiSettings

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "GET", "/api/v1/runs/{run_id:uuid}/where", self.find_run, scope=Scope.READ, query=WhereQuery,
            answer=RunWhere, example=examples.WHERE,
        )  # fmt: skip

    async def find_run(self, request: Request, caller: Reader) -> Response:
        """Return the table that holds a run, its request, its rows of the outbox and its messages."""
        query, run_id = read_query(request, WhereQuery), UUID(str(request.path_params["run_id"]))
        return await answer(
            self.reads,
            caller,
            lambda each: run_where(each, self.settings, caller.tenant, run_id, kafka=query.kafka),
        )
