"""One run: what happened, how far it is, why it waits."""

from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import ClassVar
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.archive.show import show_run_anywhere
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.logs import LogPiece, read_logs
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.timing import WIDTH, timing
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, part
from tidewheel.control.reads.run_payload import Payload, read_run_payload
from tidewheel.control.run_places import RunPlaces, find_places
from tidewheel.errors import UnknownRun
from tidewheel.settings.api import ApiSettings


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of a run.

    Args:
        settings: The archive, and the names of topics.
    """

    settings: ApiSettings
    template: ClassVar[str] = "run.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the run, its payload, its output and its places."""
        del urls
        read_query(request, TenantQuery)
        run_id = _run_id(str(request.path_params["run_id"]))
        now = page_now(connection)
        run = show_run_anywhere(connection.snapshot, self.settings.archive, caller.tenant, run_id)
        is_stored = not (run.archived or run.copied)

        def read_places() -> RunPlaces:
            # The role of a tenant may not read the outbox. The statements name the tenant.
            with connection.snapshot(all_tenants=True) as reading:
                return find_places(reading, self.settings, caller.tenant, run_id, retention=timedelta(0), kafka=False)

        def read_payload() -> Payload | None:
            with connection.snapshot() as reading:
                return read_run_payload(reading, caller.tenant, run_id)

        def read_output() -> list[LogPiece]:
            try:
                return read_logs(connection, run_id)
            except UnknownRun:  # dropped meanwhile
                return []

        return View(
            {
                "now": now, "run": run, "summary": run.summary, "sentence": about_run(run, now),
                "timing": timing(run, now), "width": WIDTH,
                "payload": part(read_payload) if is_stored else None,
                "places": part(read_places) if is_stored else None,
                "logs": part(read_output) if is_stored else [],
            }
        )  # fmt: skip


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such run: a run's id is a UUID") from None
