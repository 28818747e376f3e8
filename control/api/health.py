"""`/healthz`: the process is alive. `/readyz`: its database answers, and no stop is requested."""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.errors import Unavailable
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown

_PING = Statements("tidewheel.control")["ping"]

_SECONDS = 3.0  # about the timeout of a probe


@dataclass(frozen=True, slots=True)
class HealthApi:
    """Calls of probes."""

    workers: Workers
    stop: Shutdown

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("/healthz", self.healthz), Route("/readyz", self.readyz)]

    async def healthz(self, _: Request) -> Response:
        """Answer that the event loop runs."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        """Answer that the database answers.

        Raises:
            Unavailable: The database does not answer, or a stop is requested.
        """
        if self.stop.requested():
            message = "stop requested"
            raise Unavailable(message)
        try:
            async with asyncio.timeout(_SECONDS):
                await self.workers.do(_check_database)
        except TimeoutError as error:
            message = f"the database has not answered within {_SECONDS:g} s"
            raise Unavailable(message) from error
        return PlainTextResponse("ready\n")


def _check_database(state: WorkerState) -> None:
    with state.session.transaction() as connection:
        connection.execute(_PING)
