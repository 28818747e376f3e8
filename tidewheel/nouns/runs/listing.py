"""The list of runs, apart from requests: its command imports neither the client nor what intake needs."""

from typing import Unpack, cast

from tidewheel.api_keys import Scope
from tidewheel.nouns.operation import Noun, Rows, operation
from tidewheel.nouns.runs.model import PageFilter, RunFilter, RunPage
from tidewheel.nouns.runs.reads import list_runs


class RunList(Noun):
    """Lists of runs."""

    @operation("GET /api/v1/runs", "list_runs", scope=Scope.READ)
    def list(self, *, after: str | None = None, limit: Rows = 50, **filters: Unpack[RunFilter]) -> RunPage:
        """List runs, the latest first; those whose time is ahead are last.

        The list is in the order of the column scheduled; a backfill or a retry is listed by the time of its request.
        """
        with self._call.snapshot() as connection:
            return list_runs(connection, self._call.tenant, cast("PageFilter", filters), after=after, limit=limit)
