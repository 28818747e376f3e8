"""`/healthz`: the process is alive. `/readyz`: its database answers, and no stop is requested.

Probes need no token. However many come, the database is checked once a second at most, on one connection.
"""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.bearer import PROBES
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.problems import NotReady
from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.errors import Unavailable
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown

_PING = Statements("tidewheel.control")["ping"]

_SECONDS = 3.0  # about the timeout of a probe
_KEPT_SECONDS = 1.0  # for which an answer holds


class HealthApi:
    """Calls of probes."""

    def __init__(self, workers: Workers, stop: Shutdown) -> None:
        self._workers, self._stop = workers, stop
        self._check: asyncio.Task[str | None] | None = None
        self._checked_at = 0.0

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        for path, probe in zip(PROBES, (self.get_health, self.get_readiness), strict=True):
            add_route(
                router, "GET", path, probe, scope=None, answer={"type": "string"}, example="ok\n", media="text/plain"
            )

    async def get_health(self, _: Request) -> Response:
        """Answer that the event loop runs."""
        return PlainTextResponse("ok\n")

    async def get_readiness(self, _: Request) -> Response:
        """Answer that the database answers.

        Raises:
            NotReady: The database does not answer, or a stop is requested.
        """
        if self._stop.requested():
            message = "stop requested"
            raise NotReady(message)
        now = monotonic_seconds()
        if self._check is None or (self._check.done() and now - self._checked_at >= _KEPT_SECONDS):
            self._check, self._checked_at = asyncio.create_task(self._why_not()), now
        # Shielded: a probe that disconnects must not cancel the check of the others.
        if (why_not := await asyncio.shield(self._check)) is not None:
            raise NotReady(why_not)
        return PlainTextResponse("ready\n")

    async def _why_not(self) -> str | None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._workers.do(_check_database)
        except TimeoutError:
            return f"the database has not answered within {_SECONDS:g} s"
        except Unavailable:
            return "the database does not answer"
        return None


def _check_database(state: WorkerState) -> None:
    with state.session.transaction() as connection:
        connection.execute(_PING)
