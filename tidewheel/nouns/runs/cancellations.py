"""Read cancellations by filter, and count the runs that one would end."""

from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import rows_as
from tidewheel.errors import UnknownCancellation
from tidewheel.nouns.operation import Page, read_page
from tidewheel.nouns.runs.model import Cancellation
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.cancellation import Matches, count_matches

if TYPE_CHECKING:
    from tidewheel.jobs.requests import RunsMatching

_SQL = Statements("tidewheel.control")

_LAST_NUMBER = 2**63 - 1


def count_matching(connection: Conn, tenant: str, asked: "RunsMatching", *, look: int | None = None) -> Matches:
    """Return how many open runs a cancellation would end.

    Runs whose cancel is accepted already are not counted. It looks at `look` open runs; None for all of them.
    """
    of_job = None if asked.key is None else read_job_position(connection, tenant, asked.key).job_id
    labels = Jsonb(asked.labels) if asked.labels else None
    return count_matches(connection, {**dict(asked), "tenant": tenant, "job_id": of_job, "labels": labels}, look)


def list_cancellations(
    connection: Conn, tenant: str, *, after: int | None = None, limit: int = 50
) -> Page[Cancellation]:
    """Return a page of a tenant's cancellations, newest first."""
    require_tenant(connection, tenant)
    columns = {"tenant": tenant, "before": after or _LAST_NUMBER}
    return read_page(
        connection,
        rows_as(Cancellation),
        _SQL["list_cancellations"],
        columns,
        lambda last: last.cancellation_id,
        limit=limit,
    )


def show_cancellation(connection: Conn, tenant: str, number: int) -> Cancellation:
    """Return one cancellation, or raise UnknownCancellation."""
    found = read_row(connection, rows_as(Cancellation), _SQL["read_cancellation"], {"id": number, "tenant": tenant})
    if found is None:
        raise UnknownCancellation(number)
    return found
