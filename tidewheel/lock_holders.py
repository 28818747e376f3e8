"""Sessions that hold a lock which they should not have, for `doctor` and the scheduler's log."""

from datetime import timedelta
from typing import NamedTuple

from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements

_FIND_LOCK_HOLDERS = Statements("tidewheel")["find_lock_holders"]


class LockHolder(NamedTuple):
    """A stranger that holds an advisory lock of 0.1, or a session that keeps claims waiting.

    Args:
        process: None for a prepared transaction, which has none.
        prepared: The name of a prepared transaction.
        age: The time since its transaction began; None if this session may not see that.
    """

    process: int | None
    prepared: str | None
    role: str
    what: str
    age: timedelta | None

    @property
    def text(self) -> str:
        """A sentence for an operator."""
        since = "" if self.age is None else f" for {int(self.age.total_seconds())} s"
        holder = f"session {self.process}" if self.process else f"prepared transaction {self.prepared}"
        return f"the {holder} of the role {self.role} holds {self.what}{since}"

    @property
    def remedy(self) -> str:
        """The statement that ends it, and who may run it."""
        if self.process is None:
            return f"end it as a superuser, or as its role: ROLLBACK PREPARED '{self.prepared}'"
        return f"end it as a superuser, or as a member of its role: SELECT pg_terminate_backend({self.process})"


def find_lock_holders(connection: Conn) -> list[LockHolder]:
    """Return these sessions."""
    with connection.cursor(row_factory=rows_of(LockHolder._make)) as cursor:
        return cursor.execute(_FIND_LOCK_HOLDERS).fetchall()
