"""Read fingerprints of what pages show: one that differs from the last means that a page has changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString, cast
from uuid import UUID

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
_OF_TENANT = _SQL["read_tenant_pulse"]
_OF_RUNS = _SQL["read_run_pulses"]
_OF_JOBS = _SQL["read_job_pulses"]


@dataclass(frozen=True, slots=True)
class Watched:
    """The watched things of one tenant; with `now` all its runs."""

    now: bool
    runs: Sequence[UUID]
    jobs: Sequence[UUID]


def read_pulses(connection: Conn, tenant: str, watched: Watched) -> Mapping[str, str]:
    """Return a fingerprint of each topic, by at most three statements; one that is not there has none."""
    found: dict[str, str] = {}
    if watched.now:
        [(pulse,)] = connection.execute(_OF_TENANT, {"tenant": tenant}).fetchall()
        found["now"] = str(pulse)
    runs = _of(connection, tenant, "run", _OF_RUNS, watched.runs)
    return found | runs | _of(connection, tenant, "job", _OF_JOBS, watched.jobs)


def _of(connection: Conn, tenant: str, kind: str, statement: LiteralString, ids: Sequence[UUID]) -> dict[str, str]:
    if not ids:
        return {}
    columns = {"tenant": tenant, "ids": list(ids)}
    rows = cast("list[tuple[UUID, str]]", connection.execute(statement, columns).fetchall())
    return {f"{kind}:{row_id}": pulse for row_id, pulse in rows}
