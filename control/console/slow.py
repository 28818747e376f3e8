"""The slowest runs of a time, below those that still run for longer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.reads.activity import slowest_runs
from tidewheel.nouns.runs.model import RunSummary
from tidewheel.nouns.runs.reads import longest_attempts

_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_SHOWN = 50
_RUNNING = 10


class SlowQuery(TenantQuery):
    """The time of the page of slow runs: it has those that ended within it before now."""

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
                running = longest_attempts(reading, caller.tenant, now - took, limit=_RUNNING)
                return [*running, *(each.run for each in found)]

        found = Failed("") if errors else part(read)
        values = {"now": now, "found": found, "query": query, "spans": list(_SPANS), "errors": errors}
        return View(values, 422 if errors else 200)
