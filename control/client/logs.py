"""Reading what attempts have written, as far as it is kept, and following one that still writes.

Of each attempt the last 64 KiB are kept, and how much it ever wrote: who looks again knows from that how much of what
is kept is new, and how much was lost in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.client.connection import Door
from tidewheel.errors import FieldError, InvalidInput, UnknownRun
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState

_READ_LOGS = Statements("tidewheel.control")["read_logs"]

_PAGE = 20  # attempts at once, 64 KiB each
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What an attempt has written, or has written since somebody looked.

    Args:
        attempt: Its number.
        outcome: How it ended; None while it runs.
        missed_bytes: How much it wrote before this that is no longer kept.
        output: The bytes.
    """

    attempt: int
    outcome: str | None
    missed_bytes: int
    output: bytes


@dataclass(frozen=True, slots=True)
class _Row:
    """A run, with an attempt that has written something where there is one."""

    state: str
    newest: int
    attempt: int | None
    outcome: str | None
    output_bytes: int | None
    output: bytes | None


class Reader:
    """Reads a run's output, each part of it once.

    Args:
        tenant: Whose run it is.
        run_id: The run.
        attempt: The one attempt that is wanted; None for all of them.
    """

    def __init__(self, tenant: str, run_id: UUID, attempt: int | None = None) -> None:
        self._columns = {"tenant": tenant, "run_id": run_id, "attempt": attempt, "most": _PAGE}
        self._attempt, self._read = 0, 0
        self.newest = 0
        self.state = RunState.QUEUED

    @property
    def over(self) -> bool:
        """Whether nothing more can come, as far as was seen."""
        wanted = self._columns["attempt"]
        return self.state in FINAL or (wanted is not None and self.newest > cast("int", wanted))

    def read(self, connection: Conn) -> list[LogPiece]:
        """What is new, the older attempts first; up to a page of it. Where it is empty, there is nothing new.

        Raises:
            UnknownRun: There is no such run in this tenant.
        """
        columns = {**self._columns, "read_attempt": self._attempt, "read_bytes": self._read}
        with connection.cursor(row_factory=class_row(_Row), binary=True) as cursor:
            rows = cursor.execute(_READ_LOGS, columns).fetchall()
        if not rows:
            raise UnknownRun(str(self._columns["run_id"]))
        self.state, self.newest = RunState(rows[0].state), rows[0].newest
        return [self._piece(row.attempt, row) for row in rows if row.attempt is not None]

    def _piece(self, attempt: int, row: _Row) -> LogPiece:
        output, written = row.output or b"", row.output_bytes or 0
        new = written - (self._read if attempt == self._attempt else 0)
        self._attempt, self._read = attempt, written
        kept = output[max(len(output) - new, 0) :]
        return LogPiece(attempt, row.outcome, new - len(kept), kept)


class LogDoor(Door):
    """What a client reads of runs' output."""

    def logs(self, run_id: UUID, attempt: int | None = None) -> list[LogPiece]:
        """What a run's attempts have written, the older ones first; those that wrote nothing are left out.

        Args:
            run_id: The run.
            attempt: Only this one.

        Raises:
            UnknownRun: There is none of this id in this tenant.
            InvalidInput: It has no such attempt.
        """
        reader = Reader(self._tenant, run_id, attempt)
        pieces: list[LogPiece] = []
        while page := self._page(reader):
            pieces += page
        if attempt is not None and not 1 <= attempt <= reader.newest:
            problem = f"there is no attempt {attempt}, the newest is {reader.newest}"
            raise InvalidInput([FieldError("attempt", problem, "leave it out for all of them")])
        return pieces

    def follow_logs(self, run_id: UUID, attempt: int | None = None) -> Iterator[LogPiece]:
        """What a run's attempts have written and go on to write, until the run (or that attempt) is over.

        Raises:
            UnknownRun: There is none of this id in this tenant.
        """
        reader = Reader(self._tenant, run_id, attempt)
        while True:
            page = self._page(reader)
            yield from page
            if not page:
                if reader.over:
                    return
                self._never.wait(_LOOK_SECONDS)

    def _page(self, reader: Reader) -> list[LogPiece]:
        with self._session.transaction() as connection:
            return reader.read(connection)
