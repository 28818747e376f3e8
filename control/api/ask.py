"""Find what a text names: `/api/v1/ask`. By the code of the command line."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Caller, Reader
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.ask import Answer, ask
from tidewheel.control.client.connection import Connection
from tidewheel.jobs.values import MAX_TEXT, one_line


class AskQuery(TenantQuery):
    """A text.

    Attributes:
        q: A run id, also as `01a1f866…44d1`, a dead letter such as `#4711`, a key, or the beginning of one.
    """

    q: Annotated[str, AfterValidator(one_line(MAX_TEXT))]


@dataclass(frozen=True, slots=True)
class AskApi:
    """The call that finds what a text names, with the threads of reads."""

    reads: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(router, "GET", "/api/v1/ask", self.ask, scope=Scope.READ, query=AskQuery, answer=Answer,
                  example=examples.ANSWER)  # fmt: skip

    async def ask(self, request: Request, caller: Reader) -> Response:
        """Find what a text names: a run, a dead letter or a job."""
        query = read_query(request, AskQuery)
        return await answer(self.reads, caller, lambda each: answered(each, caller, query.q))


def answered(connection: Connection, caller: Caller, text: str) -> Answer:
    """Find what a text of a caller names."""
    with connection.snapshot() as reading:
        return ask(reading, caller.tenant, text)
