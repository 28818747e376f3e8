"""`/healthz`: the process lives. `/readyz`: it could work, for its database answers and nobody has asked it to stop."""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.errors import Unavailable
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown

_ANSWER = Statements("tidewheel.control")["answer"]

_SECONDS = 3.0  # a probe gives up about then


@dataclass(frozen=True, slots=True)
class HealthApi:
    """What probes ask."""

    workers: Workers
    stop: Shutdown

    def routes(self) -> list[Route]:
        """Where they are answered."""
        return [Route("/healthz", self.healthz), Route("/readyz", self.readyz)]

    async def healthz(self, _: Request) -> Response:
        """The event loop turns."""
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        """The database answers.

        Raises:
            Unavailable: It does not, or the process is on its way out.
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
        connection.execute(_ANSWER)
