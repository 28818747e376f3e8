"""The archived days that the database records, and those that may have a run by its id."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.archive.manifest import id_day
from tidewheel.errors import Unavailable
from tidewheel.postgres.held_lock import HeldLock, held_lock
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control.archive")
_LOCK_ARCHIVE = _SQL["lock_archive"]
_IS_ARCHIVE_LOCKED = _SQL["is_archive_locked"]
_FIND_ARCHIVED_DAYS = _SQL["find_archived_days"]
_FIND_DAYS_OF_RUN = _SQL["find_days_of_run"]
_DELETE_ARCHIVED_DAYS = _SQL["delete_archived_days"]


@dataclass(frozen=True, slots=True)
class ArchivedDay:
    """A day that is archived: in UTC, the day on which its runs ended."""

    day: date
    runs: int
    bytes: int
    archived_at: datetime


def list_days(connection: Conn) -> list[ArchivedDay]:
    """Return the archived days, the oldest first."""
    with connection.cursor(row_factory=class_row(ArchivedDay), binary=True) as cursor:
        return cursor.execute(_FIND_ARCHIVED_DAYS).fetchall()


def days_of_run(connection: Conn, run_id: UUID) -> list[date]:
    """Return the archived days with a run whose id has the day of this id, the latest first."""
    rows = connection.execute(_FIND_DAYS_OF_RUN, {"id_day": id_day(run_id)}, binary=True).fetchall()
    return [day for (day,) in cast("list[tuple[date]]", rows)]


def forget_days(connection: Conn) -> int:
    """Forget all archived days: retention drops days without the archive again. Its files stay."""
    return connection.execute(_DELETE_ARCHIVED_DAYS).rowcount


@contextmanager
def locked_archive(url: str) -> Generator[HeldLock]:
    """Keep the archive to this process; raise Unavailable if another process writes it."""
    with held_lock(url, "tidewheel-archive-lock", _LOCK_ARCHIVE) as lock:
        if not lock.is_alone:
            message = "another process writes the archive; repeat the command when it has ended"
            raise Unavailable(message)
        yield lock


def is_locked(connection: Conn) -> bool:
    """Return True while a process writes the archive."""
    return connection.execute(_IS_ARCHIVE_LOCKED).fetchone() == (True,)
