"""Questions: `/api/v1/ask`. By the code of the command line."""

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
from tidewheel.control.api.queries import TenantQuery, Text, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.ask.answer import Answer, ask
from tidewheel.control.ask.question import MAX_QUESTION
from tidewheel.control.client.connection import Connection
from tidewheel.jobs.values import one_line


class AskQuery(TenantQuery):
    """A question.

    Attributes:
        q: A run id, also as `01a1f866…44d1`, a dead letter such as `#4711`, a key, `KEY at TIME`, `why KEY TIME`, or
            the beginning of a name.
        tz: The IANA time zone of a time without an offset; by default that of the job.
    """

    q: Annotated[str, AfterValidator(one_line(MAX_QUESTION))]
    tz: Text | None = None


@dataclass(frozen=True, slots=True)
class AskApi:
    """The call that answers questions.

    Args:
        reads: The threads of reads.
    """

    reads: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(router, "GET", "/api/v1/ask", self.ask, scope=Scope.READ, query=AskQuery, answer=Answer,
                  example=examples.ANSWER)  # fmt: skip

    async def ask(self, request: Request, caller: Reader) -> Response:
        """Find what a text names: a run, a dead letter, a job, or an instant of a job with its explanation."""
        query = read_query(request, AskQuery)
        return await answer(self.reads, caller, lambda each: answered(each, caller, query.q, query.tz))


def answered(connection: Connection, caller: Caller, text: str, zone: str | None) -> Answer:
    """Answer a question of a caller; executors are found for one of all tenants."""
    sees_all = caller.all_tenants and Scope.READ in caller.scopes
    with connection.snapshot(all_tenants=sees_all) as reading:
        late = connection.installation.misfire_after
        return ask(reading, caller.tenant, text, zone, all_tenants=sees_all, misfire_after=late)
