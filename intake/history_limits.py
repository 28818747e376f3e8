"""Write the limits of jobs that keep a number of their finished runs; retention reads them.

The row of a version without a limit stays: it is not in force, since its version is not the job's current one.
"""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from tidewheel.postgres.pg_binary import integers, texts, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_PUT_HISTORY_LIMITS = Statements("tidewheel.intake")["put_history_limits"]


class HistoryLimit(NamedTuple):
    """The limit of a job's version; `keep` is None without one."""

    job_id: UUID
    tenant: str
    version: int
    keep: int | None


def write_history_limits(connection: Conn, limits: Iterable[HistoryLimit]) -> None:
    """Write the limits of versions that have one, under their jobs' locks."""
    rows = [(limit, keep) for limit in limits if (keep := limit.keep) is not None]
    if rows:
        columns: dict[str, object] = {
            "job_ids": uuids(limit.job_id for limit, _ in rows),
            "tenants": texts(limit.tenant for limit, _ in rows),
            "versions": integers(limit.version for limit, _ in rows),
            "keep": integers(keep for _, keep in rows),
        }
        connection.execute(_PUT_HISTORY_LIMITS, columns)
