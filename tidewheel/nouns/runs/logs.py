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

from tidewheel.errors import FieldError, InvalidInput, UnknownRun
from tidewheel.nouns.operation import Call
from tidewheel.nouns.runs.model import LogPiece
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState

_READ_LOGS = Statements("tidewheel.control")["read_logs"]

_PAGE = 20  # attempts in one read, 64 KiB each
FOLLOW_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _LogRow:
    """A run, and an attempt of it that has output, if there is one."""

    state: str
    newest: int
    attempt: int | None
    outcome: str | None
    output_bytes: int | None
    output: bytes | None


class LogFollower(Iterator[LogPiece]):
    """Iterate over the output of a run, each byte once, until it ends; see `Runs.follow_logs`."""

    def __init__(self, call: Call, run_id: UUID, attempt: int | None = None, *, after: int = 0) -> None:
        self._call = call
        self._columns = {"tenant": call.tenant, "run_id": run_id, "attempt": attempt, "limit": _PAGE}
        self._attempt, self._read = (attempt or 0) if after else 0, after
        self._state, self.newest = RunState.QUEUED, 0
        self._ready: deque[LogPiece] = deque()

    def read(self) -> list[LogPiece]:
        """Return a page of new output, the older attempts first; empty if there is none."""
        columns = {**self._columns, "read_attempt": self._attempt, "read_bytes": self._read}
        with (
            self._call.transaction() as connection,
            connection.cursor(row_factory=class_row(_LogRow), binary=True) as c,
        ):
            rows = c.execute(_READ_LOGS, columns).fetchall()
        if not rows:
            raise UnknownRun(str(self._columns["run_id"]))
        self._state, self.newest = RunState(rows[0].state), rows[0].newest
        return [self._piece(row.attempt, row) for row in rows if row.attempt is not None]

    def page(self) -> list[LogPiece] | None:
        """Return the output since the last page, which may be empty; None when no more can follow."""
        found, attempt = self.read(), self._columns["attempt"]
        is_over = self._state in FINAL or (attempt is not None and self.newest > cast("int", attempt))
        return found or (None if is_over else [])

    def __next__(self) -> LogPiece:
        """Return the next piece of output; wait for it while the run goes on."""
        while not self._ready:
            if (page := self.page()) is None:
                raise StopIteration
            self._ready.extend(page)
            if not page:
                self._call.sleep(FOLLOW_SECONDS)
        return self._ready.popleft()

    def _piece(self, attempt: int, row: _LogRow) -> LogPiece:
        output, written = row.output or b"", row.output_bytes or 0
        new = written - (self._read if attempt == self._attempt else 0)
        self._attempt, self._read = attempt, written
        return LogPiece(attempt, row.outcome, new - len(output), output)


def read_logs(call: Call, run_id: UUID, attempt: int | None = None, *, after: int = 0) -> list[LogPiece]:
    """Return the stored output of attempts, or what one has written after some bytes; see `Runs.logs`."""
    reader = LogFollower(call, run_id, attempt, after=after)
    pieces: list[LogPiece] = []
    while page := reader.read():
        pieces += page
    if attempt is not None and not 1 <= attempt <= reader.newest:
        problem = f"there is no attempt {attempt}, the newest is {reader.newest}"
        raise InvalidInput([FieldError("attempt", problem, "leave it out to read all attempts")])
    return pieces
