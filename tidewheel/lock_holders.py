"""Sessions that hold a lock which they should not have, for `doctor` and the scheduler's log."""

from datetime import timedelta
from typing import NamedTuple

from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_FIND_LOCK_HOLDERS = Statements("tidewheel")["find_lock_holders"]


class LockHolder(NamedTuple):
    """A stranger that holds an advisory lock of 0.1, or a session that keeps claims waiting.

    Args:
        age: The time since its transaction began; None if this session may not see that.
    """

    process: int
    role: str
    what: str
    age: timedelta | None

    @property
    def text(self) -> str:
        """A sentence for an operator."""
        since = "" if self.age is None else f" for {int(self.age.total_seconds())} s"
        return f"the session {self.process} of the role {self.role} holds {self.what}{since}"


def find_lock_holders(connection: Conn) -> list[LockHolder]:
    """Return these sessions."""
    with connection.cursor(row_factory=rows_of(LockHolder._make)) as cursor:
        return cursor.execute(_FIND_LOCK_HOLDERS).fetchall()
