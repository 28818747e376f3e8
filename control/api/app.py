"""The API process, and the ASGI application that it serves.

The process has its socket, the server's thread, the workers, and a reaper that ends the leases of executors where no
Python executor runs. The application has routes, authorization, errors as problem documents, and OpenAPI.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from itertools import count

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.answers import TRACEPARENT, answer, as_json_response, call, encoded
from tidewheel.control.api.authorization import Admin, Guard, ensure_all_tenants
from tidewheel.control.api.connections import connection_type
from tidewheel.control.api.executors import ExecutorsApi
from tidewheel.control.api.jobs import JobsApi
from tidewheel.control.api.key_check import KeyCheck
from tidewheel.control.api.keyless import HealthApi, SchemasApi, TaskTokensApi
from tidewheel.control.api.openapi import add_route, openapi
from tidewheel.control.api.problems import HANDLERS
from tidewheel.control.api.request_input import TenantQuery, read_body, read_query
from tidewheel.control.api.run_events import RunEventsApi
from tidewheel.control.api.workers import Pools, Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.console import Console
from tidewheel.control.console.door import Door
from tidewheel.control.console.live import Live
from tidewheel.control.doctor.doctor import Broker, Diagnosis, Doctor
from tidewheel.control.explain.operations import JobTimes, Occurrences
from tidewheel.control.reads.overview import Overview
from tidewheel.doors.rest import Route, Routes, add_routes
from tidewheel.errors import SettingsError
from tidewheel.executor.message_check import MessageCheck
from tidewheel.executor.reaper import Reaper
from tidewheel.jobs.validation import StrictModel
from tidewheel.message_signatures import MessageKeys
from tidewheel.nouns.api_keys.operations import ApiKeys
from tidewheel.nouns.api_keys.web import API_KEYS
from tidewheel.nouns.audit_log.operations import AuditLog
from tidewheel.nouns.batches.operations import Batches
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.dead_letters.web import DEAD_LETTERS
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.jobs.operations import Jobs, OneJob
from tidewheel.nouns.jobs.web import JOBS, ONE_JOB
from tidewheel.nouns.limits.operations import Limits, OrderingKeys
from tidewheel.nouns.operation import Noun
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.reads import RunList
from tidewheel.nouns.runs.web import RUN_LISTS, RUNS, RunsApi
from tidewheel.nouns.tenants.operations import Tenants
from tidewheel.nouns.tenants.web import TENANTS, add_deletion
from tidewheel.nouns.workflows.operations import Workflows
from tidewheel.nouns.works.operations import Works
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.replica import Replica
from tidewheel.postgres.session import Session
from tidewheel.process.service import Shutdown
from tidewheel.settings.services import DEV_TOKEN, ApiSettings
from tidewheel.transitions.installation import Installation

NOUNS: Sequence[tuple[type[Noun], Routes]] = (
    (DeadLetters, DEAD_LETTERS),
    (Freezes, {}),
    (Batches, {"submit": Route(headers=TRACEPARENT)}),
    (Workflows, {}),
    (RunList, RUN_LISTS),
    (Runs, RUNS),
    (Works, {}),
    (ApiKeys, API_KEYS),
    (Limits, {}),
    (OrderingKeys, {}),
    (Tenants, TENANTS),
    (JobTimes, {}),
    (Occurrences, {}),
    (OneJob, ONE_JOB),
    (Jobs, JOBS),
    (AuditLog, {}),
    (Overview, {"now": Route(prepare=lambda caller, arguments: arguments.update(sees_fleet=caller.sees_fleet))}),
)
"""The nouns whose routes are derived; jobs are last, for `{key}` matches `{key}:explain` too."""
_ABOUT = "Jobs, runs and dead letters of Tidewheel, and the calls of executors in other languages."
_LOG = logging.getLogger("tidewheel.api")

_ONE_FOR_ALL = (
    "TIDEWHEEL_API_TOKEN opens the calls of executors for all tenants and queues until release 0.3; instead, give each"
    " executor a key of `tidewheel admin api-key create NAME --scope execute`"
)
_DOCTOR = "/api/v1/doctor"
_DOCTOR_SECONDS = 60.0  # for the end of the checks; then the answer has the diagnosis before
_CONNECTIONS = 1000  # open at once; with so many requests in progress, the server answers others with 503
_IDLE_SECONDS = 75  # from the opening or the last response to a complete head: longer than any heartbeat interval
_GRACE_SECONDS = 5  # for requests in progress at a stop
_TICK_SECONDS = 0.1  # as uvicorn, which writes the header `date` anew at each tenth tick
_LOOK_SECONDS = 0.005
_HEAD_BYTES = 16 * 1024  # limit of a request's line and headers


def make_app(settings: ApiSettings, installation: Installation, pools: Pools, *, stop: Shutdown) -> FastAPI:
    """Return the HTTP API on these workers."""
    keys = MessageKeys()
    check = MessageCheck(keys, settings.message_signatures)
    doctor, broker = Doctor(settings), Broker(settings, installation.topics)
    apis = (
        ExecutorsApi(pools.executors, installation, settings, keys, check, stop),
        TaskTokensApi(pools.reports, installation),
        JobsApi(pools.lists, pools.writes),
        RunsApi(pools.writes),
        RunEventsApi(pools.streams, stop),
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
    app.state.reads, app.state.lists, app.state.writes = pools.reads, pools.lists, pools.writes
    for noun, documented in NOUNS:
        add_routes(app.router, noun, documented)
    add_deletion(app.router, pools.writes)
    _add_doctor(app.router, pools.reads, doctor)
    for api in apis:
        api.add_to(app.router)

    live = Live(pools.streams, stop)
    console = Console(pools, door, api_keys, live, installation.shards, settings, doctor, broker)
    console.add_to(app.router)

    text = cache(lambda: encoded(openapi(app)))

    async def get_document(_: Request) -> Response:
        """Return this document."""
        return Response(text(), media_type="application/json")

    add_route(
        app.router, "GET", "/api/v1/openapi.json", get_document, scope=Scope.READ,
        answer={"type": "object", "additionalProperties": True},
    )  # fmt: skip
    return app


def _add_doctor(router: APIRouter, reads: Workers, doctor: Doctor) -> None:
    """Add the routes of the checks, which run on request; each process keeps its last diagnosis."""

    async def get_diagnosis(request: Request, caller: Admin) -> Response:
        """Return the last diagnosis of this process; requires the rights of all tenants."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        return await answer(reads, caller, lambda _: doctor.last())

    async def run_doctor(request: Request, caller: Admin) -> Response:
        """Run the checks of doctor and wait for them; reuse a diagnosis of the last ten seconds."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)

        def read(connection: Connection) -> datetime:
            with connection.snapshot() as reading:
                return read_now(reading)

        return as_json_response(await doctor.run(await call(reads, caller, read), _DOCTOR_SECONDS))

    add = partial(add_route, router, scope=Scope.ADMIN, query=TenantQuery, answer=Diagnosis)
    add("GET", _DOCTOR, get_diagnosis)
    add("POST", f"{_DOCTOR}:run", run_doctor)


class Api:
    """The HTTP API as a service."""

    def __init__(self, settings: ApiSettings, url: str, installation: Installation, stop: Shutdown) -> None:
        self._settings, self._stop, self._rates = settings, stop, installation.rates
        self._replica = None if (read := settings.read_database()) is None else Replica(url, read, stop)
        if self._replica is not None:
            self._replica.require_copy()
        self._socket = _listen(settings)
        self._pools = Pools(url, installation, threads=settings.api_threads, stop=stop, replica=self._replica)
        self._reaper = Reaper(
            Session(url, "tidewheel-api-reap", pooled=True),
            installation,
            lease=settings.lease,
            max_lost=settings.max_lost,
            stop=stop,
        )
        config = uvicorn.Config(
            make_app(settings, installation, self._pools, stop=stop),
            http=connection_type(settings.api_connections_per_address, settings.api_trusted_proxies),
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=settings.api_trusted_proxies is not None,
            forwarded_allow_ips=settings.api_trusted_proxies,
            ws="none",
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
        self._server = _Server(config)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until a stop is requested."""
        # Not on the main thread: uvicorn would replace the signal handlers of `stop` there.
        serving = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        serving.start()
        self._reaper.start()
        if self._replica is not None:
            self._replica.start()
        _LOG.info("listening on %s port %d", self._settings.api_host, self.port)
        token = self._settings.api_token
        if token is not None and not token.get_secret_value().startswith(DEV_TOKEN):
            _LOG.warning(_ONE_FOR_ALL)
        while not self._stop.wait(1.0) and serving.is_alive():
            pass
        self._server.end()
        serving.join(timeout=_GRACE_SECONDS * 2)
        self._stop.request()
        self._reaper.join()
        self._pools.close()
        if self._replica is not None:
            self._replica.join()
        self._rates.close()


class _Server(uvicorn.Server):
    """A server that ends with its last connection, where uvicorn sleeps twice for 100 ms."""

    _ending: asyncio.Event | None = None

    def end(self) -> None:
        """Begin the shutdown, from another thread."""
        self.should_exit = True
        if self._ending is not None:
            with suppress(RuntimeError):  # its loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        """Tick ten times a second until the shutdown."""
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        ticks = count()
        while not await self.on_tick(next(ticks)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close listeners and idle connections, wait for requests in progress, then cancel them."""
        state, deadline = self.server_state, monotonic_seconds() + _GRACE_SECONDS
        for listening in self.servers:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and monotonic_seconds() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        for task in state.tasks:
            task.cancel()


def _listen(settings: ApiSettings) -> socket.socket:
    """Return the listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.api_host, settings.api_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        where = f"{settings.api_host} port {settings.api_port}"
        raise SettingsError(f"TIDEWHEEL_API_HOST, TIDEWHEEL_API_PORT: cannot listen on {where}: {error}") from error
