"""Read the stored output of attempts, and follow an attempt that is still writing.

PostgreSQL keeps the last 64 KiB of each attempt's output and a count of all bytes written. A reader that polls again
takes the difference of the counts as the new bytes. New bytes that are no longer stored were dropped in between.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.client.connection import Connection
from tidewheel.errors import FieldError, InvalidInput, UnknownRun
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState

_READ_LOGS = Statements("tidewheel.control")["read_logs"]

_PAGE = 20  # attempts in one read, 64 KiB each
FOLLOW_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LogPiece:
    """New output of an attempt, whose outcome is None while it runs, after bytes that are not stored."""

    attempt: int
    outcome: str | None
    dropped_bytes: int
    output: bytes


@dataclass(frozen=True, slots=True)
class _LogRow:
    """A run, and an attempt of it that has output, if there is one."""

    state: str
    newest: int
    attempt: int | None
    outcome: str | None
    output_bytes: int | None
    output: bytes | None


class _LogReader:
    """Reads a run's output, each byte once."""

    def __init__(self, tenant: str, run_id: UUID, attempt: int | None = None, after: int = 0) -> None:
        self._columns = {"tenant": tenant, "run_id": run_id, "attempt": attempt, "limit": _PAGE}
        self._attempt, self._read = (attempt or 0) if after else 0, after
        self.newest = 0
        self.state = RunState.QUEUED

    @property
    def is_over(self) -> bool:
        """True if no more output can follow, by the state that was read last."""
        attempt = self._columns["attempt"]
        return self.state in FINAL or (attempt is not None and self.newest > cast("int", attempt))

    def read(self, connection: Conn) -> list[LogPiece]:
        """Return a page of new output, the older attempts first; empty if there is none."""
        columns = {**self._columns, "read_attempt": self._attempt, "read_bytes": self._read}
        with connection.cursor(row_factory=class_row(_LogRow), binary=True) as cursor:
            rows = cursor.execute(_READ_LOGS, columns).fetchall()
        if not rows:
            raise UnknownRun(str(self._columns["run_id"]))
        self.state, self.newest = RunState(rows[0].state), rows[0].newest
        return [self._piece(row.attempt, row) for row in rows if row.attempt is not None]

    def _piece(self, attempt: int, row: _LogRow) -> LogPiece:
        output, written = row.output or b"", row.output_bytes or 0
        new = written - (self._read if attempt == self._attempt else 0)
        self._attempt, self._read = attempt, written
        return LogPiece(attempt, row.outcome, new - len(output), output)


def read_logs(connection: Connection, run_id: UUID, attempt: int | None = None, *, after: int = 0) -> list[LogPiece]:
    """Return the stored output of attempts, or what one has written after some bytes; see `Runs.logs`."""
    reader = _LogReader(connection.tenant, run_id, attempt, after)
    pieces: list[LogPiece] = []
    while page := _page(connection, reader):
        pieces += page
    if attempt is not None and not 1 <= attempt <= reader.newest:
        problem = f"there is no attempt {attempt}, the newest is {reader.newest}"
        raise InvalidInput([FieldError("attempt", problem, "leave it out to read all attempts")])
    return pieces


class LogFollower(Iterator[LogPiece]):
    """Iterate over the output of a run's attempts until the run ends; see `Runs.follow_logs`."""

    def __init__(self, connection: Connection, run_id: UUID, attempt: int | None = None) -> None:
        self._connection, self._reader = connection, _LogReader(connection.tenant, run_id, attempt)
        self._ready: deque[LogPiece] = deque()

    def page(self) -> list[LogPiece] | None:
        """Return the output since the last page, which may be empty; None when no more can follow."""
        return _page(self._connection, self._reader) or (None if self._reader.is_over else [])

    def __next__(self) -> LogPiece:
        """Return the next piece of output; wait for it while the run goes on."""
        while not self._ready:
            if (page := self.page()) is None:
                raise StopIteration
            self._ready.extend(page)
            if not page:
                self._connection.sleep(FOLLOW_SECONDS)
        return self._ready.popleft()


def _page(connection: Connection, reader: _LogReader) -> list[LogPiece]:
    with connection.transaction() as transaction:
        return reader.read(transaction)
