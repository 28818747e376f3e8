"""The list of workflows: which of them go on, and which have failed."""

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Cursors
from tidewheel.control.api.workflows import WorkflowList, WorkflowsQuery, page_of_workflows
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.listing import list_view
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, read_filters


@dataclass(frozen=True, slots=True)
class WorkflowsPage:
    """The list of workflows."""

    template: ClassVar[str] = "workflows.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page by the filters of the address."""
        query, errors = read_filters(request, WorkflowsQuery)

        def listed() -> tuple[WorkflowList, str | None]:
            cursors = Cursors.of_list("workflows", query, caller.tenant)
            found = page_of_workflows(connection, caller.tenant, query, cursors)
            return found, found.next_cursor

        return list_view("workflows", query, listed, errors=errors, now=page_now(connection), urls=urls)
