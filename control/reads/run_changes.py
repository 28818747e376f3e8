"""Read the changes of runs since the last read, for a stream, and fingerprints of what pages show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, TypeAlias, cast
from uuid import UUID

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.ids import job_id
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")
Place: TypeAlias = tuple[datetime, UUID]
"""The place of an end: its time and its run."""
OPEN_RUNS = 500  # whose changes are seen
ENDS = 1000  # of one read


@dataclass(frozen=True, slots=True)
class RunChanges:
    """State and last attempt of the newest open runs, and the oldest ends that were not known."""

    now: datetime
    open_runs: Mapping[UUID, tuple[str, int]]
    ends: Sequence[Place]


def start_of_changes(connection: Conn, tenant: str, key: str | None) -> datetime:
    """Check the filter of a stream; return the database's clock."""
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    return read_now(connection)


def read_run_changes(
    connection: Conn, tenant: str, key: str | None, *, after: Place, until: datetime, known: Sequence[UUID]
) -> RunChanges:
    """Return the newest open runs, and the ends after a place and before `until` except known ones."""
    job = None if key is None else job_id(tenant, key)
    columns: dict[str, object] = {"tenant": tenant, "job_id": job, "limit": OPEN_RUNS}
    found = connection.execute(_SQL["find_open_states"], columns, binary=True).fetchall()
    standing = {run_id: (state, attempt) for run_id, state, attempt in cast("list[tuple[UUID, str, int]]", found)}
    columns |= {"first": after[0], "after_id": after[1], "until": until, "known": list(known), "limit": ENDS}
    ended = connection.execute(_SQL["find_ends"], columns, binary=True).fetchall()
    rows = cast("list[tuple[datetime, UUID | None, datetime]]", ended)
    ends = [(at, run_id) for _, run_id, at in rows if run_id is not None]
    return RunChanges(rows[0][0], standing, ends)


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
        [(pulse,)] = connection.execute(_SQL["read_tenant_pulse"], {"tenant": tenant}).fetchall()
        found["now"] = str(pulse)
    runs = _of(connection, tenant, "run", _SQL["read_run_pulses"], watched.runs)
    return found | runs | _of(connection, tenant, "job", _SQL["read_job_pulses"], watched.jobs)


def _of(connection: Conn, tenant: str, kind: str, statement: LiteralString, ids: Sequence[UUID]) -> dict[str, str]:
    if not ids:
        return {}
    columns = {"tenant": tenant, "ids": list(ids)}
    rows = cast("list[tuple[UUID, str]]", connection.execute(statement, columns).fetchall())
    return {f"{kind}:{row_id}": pulse for row_id, pulse in rows}
