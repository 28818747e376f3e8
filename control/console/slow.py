"""The slowest runs of a time, below those that still run for longer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.reads.activity import slowest_runs
from tidewheel.control.reads.runs import RunFilter, RunSummary, list_runs
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState

_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_SHOWN = 50
_RUNNING = 10  # shown
_LOOKED_AT = 200  # running runs of which those are the longest


class SlowQuery(TenantQuery):
    """The time of the page of slow runs.

    Attributes:
        last: Only runs that ended within this time before now.
    """

    last: Literal["1h", "24h", "7d"] = "24h"


@dataclass(frozen=True, slots=True)
class SlowPage:
    """The slowest runs."""

    template: ClassVar[str] = "slow.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the slowest runs of the time that the address names."""
        del urls
        query, errors = read_filters(request, SlowQuery)
        now = page_now(connection)

        def read() -> Sequence[RunSummary]:
            with connection.snapshot() as reading:
                found = slowest_runs(reading, caller.tenant, now - _SPANS[query.last], now + _SPANS["1h"], _SHOWN)
                took = timedelta(seconds=found[0].took if found else 0)
                return [*_still_running(reading, caller.tenant, now - took), *(each.run for each in found)]

        found = Failed("") if errors else part(read)
        values = {"now": now, "found": found, "query": query, "spans": list(_SPANS), "errors": errors}
        return View(values, 422 if errors else 200)


def _still_running(connection: Conn, tenant: str, since: datetime) -> Sequence[RunSummary]:
    """Return the runs whose attempt runs since an instant, the longest first.

    No run starts before the instant of its id, so later ids need no look.
    """
    filters = RunFilter(status=RunState.RUNNING, until=since)
    found = list_runs(connection, tenant, filters, limit=_LOOKED_AT).runs
    begun = sorted((each.started_at, each.run_id, each) for each in found if each.started_at is not None)
    return [run for at, _, run in begun if at <= since][:_RUNNING]
