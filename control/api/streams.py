"""Answers that last: the places of their clients, and what they read about runs and pages."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, TypeAlias, cast
from uuid import UUID

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tidewheel.control.api.problems import Overloaded
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.ids import job_id
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy that collects answers would hold events

_SQL = Statements("tidewheel.control")
End: TypeAlias = tuple[datetime, UUID]
"""The end of a run: its time and its run."""
OPEN_RUNS = 500  # whose changes are seen
ENDS = 1000  # of one read


class Places:
    """The streams of one kind that a process may have open: of all tenants, of one tenant, of one key.

    Args:
        most: Of all; a tenant may have half of them.
    """

    def __init__(self, kind: str, most: int, of_key: int) -> None:
        self._kind, self._most, self._of_tenant, self._of_key = kind, most, most // 2, of_key
        self._open = Counter[tuple[str, str | None]]()  # by tenant and key

    def take(self, tenant: str, key_id: str | None) -> Callable[[], None]:
        """Take a place for a client's key, or for none; return what gives it back, once."""
        of_key = sum(count for (_, each), count in self._open.items() if key_id is not None and each == key_id)
        of_tenant = sum(count for (each, _), count in self._open.items() if each == tenant)
        for count, most, whose in (
            (of_key, self._of_key, f"the key {key_id}"),
            (of_tenant, self._of_tenant, f"tenant {tenant}"),
            (self._open.total(), self._most, "this process"),
        ):
            if count >= most:
                raise Overloaded(f"{whose} has {most} open {self._kind}, the limit; close one first")
        self._open[tenant, key_id] += 1
        taken = [(tenant, key_id)]

        def give_back() -> None:
            while taken:
                place = taken.pop()
                self._open[place] -= 1
                self._open += Counter[tuple[str, str | None]]()  # forgets who has none

        return give_back


class Streaming(StreamingResponse):
    """A stream that gives its place back, also if its client leaves before it begins."""

    def __init__(self, events: AsyncGenerator[bytes | memoryview], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


@dataclass(frozen=True, slots=True)
class RunChanges:
    """State and last attempt of the newest open runs, and the oldest ends that were not known."""

    now: datetime
    open_runs: Mapping[UUID, tuple[str, int]]
    ends: Sequence[End]


def start_of_changes(connection: Conn, tenant: str, key: str | None) -> datetime:
    """Check the filter of a stream; return the database's clock."""
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    return read_now(connection)


def read_run_changes(
    connection: Conn, tenant: str, key: str | None, *, after: End, until: datetime, known: Sequence[UUID]
) -> RunChanges:
    """Return the newest open runs, and the ends after one and before `until` except known ones."""
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
