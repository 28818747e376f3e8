"""Create the ASGI application: routes, authorization, errors as problem documents, OpenAPI."""

from collections.abc import Mapping, Sequence
from functools import cache

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import encoded
from tidewheel.control.api.ask import AskApi
from tidewheel.control.api.backfills import BackfillsApi
from tidewheel.control.api.batches import BatchesApi
from tidewheel.control.api.bearer import Guard
from tidewheel.control.api.cancellations import CancellationsApi
from tidewheel.control.api.doctor import DoctorApi
from tidewheel.control.api.executors import ExecutorsApi
from tidewheel.control.api.fleet import FleetApi
from tidewheel.control.api.health import HealthApi
from tidewheel.control.api.job_times import JobTimesApi
from tidewheel.control.api.jobs import JobsApi
from tidewheel.control.api.key_check import KeyCheck
from tidewheel.control.api.keys import KeysApi
from tidewheel.control.api.limits import LimitsApi
from tidewheel.control.api.now import NowApi
from tidewheel.control.api.openapi import add_route, openapi
from tidewheel.control.api.ordering_keys import OrderingKeysApi
from tidewheel.control.api.problems import HANDLERS
from tidewheel.control.api.run_events import RunEventsApi
from tidewheel.control.api.run_places import RunPlacesApi
from tidewheel.control.api.runs import RunsApi
from tidewheel.control.api.schemas import SchemasApi
from tidewheel.control.api.status import StatusApi
from tidewheel.control.api.task_tokens import TaskTokensApi
from tidewheel.control.api.tenants import TenantsApi
from tidewheel.control.api.workers import Pools
from tidewheel.control.api.workflows import WorkflowsApi
from tidewheel.control.console.console import Console
from tidewheel.control.console.door import Door
from tidewheel.control.console.live import Live
from tidewheel.control.doctor.kept import Doctor
from tidewheel.doors.rest import Route, add_routes
from tidewheel.executor.message_check import MessageCheck
from tidewheel.message_signatures import MessageKeys
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.dead_letters.routes import DEAD_LETTERS
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.freezes.routes import FREEZES
from tidewheel.nouns.operation import Noun
from tidewheel.nouns.runs.operations import FailedRuns
from tidewheel.nouns.runs.pages import FAILED_RUNS
from tidewheel.nouns.works.operations import Works
from tidewheel.nouns.works.routes import WORKS
from tidewheel.process.service import Shutdown
from tidewheel.settings.api import ApiSettings
from tidewheel.transitions.installation import Installation

NOUNS: Sequence[tuple[type[Noun], Mapping[str, Route]]] = (
    (DeadLetters, DEAD_LETTERS),
    (Freezes, FREEZES),
    (FailedRuns, FAILED_RUNS),
    (Works, WORKS),
)
"""The nouns whose routes are derived."""
_ABOUT = "Jobs, runs and dead letters of Tidewheel, and the calls of executors in other languages."


def make_app(settings: ApiSettings, installation: Installation, pools: Pools, *, stop: Shutdown) -> FastAPI:
    """Return the HTTP API on these workers."""
    keys = MessageKeys()
    check = MessageCheck(keys, settings.message_signatures)
    doctor = Doctor(settings)
    apis = (
        ExecutorsApi(pools.executors, installation, settings, keys, check, stop),
        TaskTokensApi(pools.reports, installation),
        JobTimesApi(pools.reads),
        JobsApi(pools.reads, pools.writes),
        AskApi(pools.reads),
        RunsApi(pools.reads, pools.writes, settings.archive),
        RunPlacesApi(pools.reads, settings),
        WorkflowsApi(pools.reads, pools.writes),
        BackfillsApi(pools.reads, pools.writes),
        BatchesApi(pools.reads, pools.writes),
        CancellationsApi(pools.reads, pools.writes),
        FleetApi(pools.reads),
        TenantsApi(pools.reads, pools.writes),
        RunEventsApi(pools.streams, stop),
        NowApi(pools.reads, installation.shards),
        StatusApi(pools.reads, installation.shards),
        DoctorApi(pools.reads, doctor),
        LimitsApi(pools.reads, pools.writes),
        OrderingKeysApi(pools.reads, pools.writes),
        KeysApi(pools.reads, pools.writes),
        SchemasApi(pools.strangers),
        HealthApi(pools.probes, stop),
    )
    api_keys, door = KeyCheck(pools.keys, settings.api_key_rate), Door(settings)
    guard = Middleware(Guard, settings=settings, tokens=installation.task_tokens, keys=api_keys, console=door)
    app = FastAPI(
        title="Tidewheel",
        description=_ABOUT,
        openapi_url=None,
        middleware=[guard],
        exception_handlers={kind: door.as_page(handler) for kind, handler in HANDLERS.items()},
        redirect_slashes=False,  # a redirect would go to the host that the caller names
    )
    for api in apis:
        api.add_to(app.router)
    for noun, documented in NOUNS:
        add_routes(app.router, noun, documented, pools.reads, pools.writes)

    live = Live(pools.streams, stop)
    console = Console(pools.reads, pools.writes, door, api_keys, live, installation.shards, settings, doctor)
    console.add_to(app.router)

    text = cache(lambda: encoded(openapi(app)))

    async def get_document(_: Request) -> Response:
        """Return this document."""
        return Response(text(), media_type="application/json")

    add_route(
        app.router, "GET", "/api/v1/openapi.json", get_document, scope=Scope.READ,
        answer={"type": "object", "additionalProperties": True},
        example={"openapi": "3.1.0", "paths": {}},
    )  # fmt: skip
    return app
