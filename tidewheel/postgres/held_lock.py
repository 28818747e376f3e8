"""Hold the lock of a table for as long as a block runs, and find sessions that hold one wrongly.

A block may have many transactions. The lock lies in a transaction of a connection of its own, which reads and writes
nothing: so it holds back no vacuum. It ends with the process, by whatever death; with a lease also if the process is
stopped. It also ends with the connection, which the server may close while the block works elsewhere: `check` before
each step that two processes must not take.
"""

from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Literal, LiteralString, NamedTuple

import psycopg

from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, connect, rows_of
from tidewheel.postgres.statements import Statements

_NO_LIMITS: LiteralString = """
SELECT set_config(name, '0', false)
  FROM pg_settings
 WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""
_CHECK: LiteralString = "SHOW transaction_isolation"  # takes no snapshot, for which a drop of a partition would wait
_SQL = Statements("tidewheel")

OldLock = Literal["archive", "kept_since", "retention", "tenant_repair"]
"""Advisory keys by which this release and 0.1 exclude each other, where neither waits (ADR 0087)."""


class HeldLock:
    """The locks of a connection that has begun a transaction; `is_alone` is False if others hold one too."""

    def __init__(self, connection: Conn, *, is_alone: bool) -> None:
        self._connection, self.is_alone = connection, is_alone

    def check(self) -> None:
        """Raise Unavailable if the connection has ended since: others may hold the locks now."""
        try:
            self._connection.execute(_CHECK)
        except psycopg.Error as error:
            message = "the connection that held the lock was lost, so another process may be at work; repeat the call"
            raise Unavailable(message) from error


@contextmanager
def held_lock(
    url: str, name: str, *statements: LiteralString, old: OldLock | None = None, lease: timedelta | None = None
) -> Generator[HeldLock]:
    """Run a block under the locks of some statements.

    Args:
        statements: LOCK TABLE, or queries that return false if others hold the lock.
        old: The key that excludes processes of 0.1.
        lease: The server ends the locks once the process has stood still for so long; by default never.
    """
    with closing(connect(url, name, autocommit=True)) as connection, _rolled_back(connection):
        begin_lasting(connection)
        is_alone = all(try_table_lock(connection, each) for each in statements)
        lock = HeldLock(connection, is_alone=is_alone and (old is None or try_old_lock(connection, old)))
        if lease is None:
            yield lock
            return
        milliseconds = str(lease // timedelta(milliseconds=1))
        connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [milliseconds])
        done = Event()
        renewing = Thread(target=_renew, args=(lock, lease.total_seconds() / 4, done), name=name, daemon=True)
        renewing.start()
        try:
            yield lock
        finally:
            done.set()
            renewing.join()


@contextmanager
def _rolled_back(connection: Conn) -> Generator[None]:
    """Roll back after the block: the server may notice a closed connection too late."""
    try:
        yield
    finally:
        with suppress(psycopg.Error):
            connection.rollback()


def _renew(lock: HeldLock, seconds: float, done: Event) -> None:
    """Keep a lease until the block is done, or the connection has ended: the next `check` finds that."""
    with suppress(Unavailable):
        while not done.wait(seconds):
            lock.check()


def begin_lasting(connection: Conn) -> None:
    """Begin a transaction that the server does not end, for locks of tables; autocommit is on."""
    connection.execute(_NO_LIMITS)
    connection.execute("BEGIN")


def try_table_lock(connection: Conn, statement: LiteralString) -> bool:
    """Run a statement that locks; return False if others hold the lock, or if it returns false.

    Args:
        connection: Inside a transaction, which goes on either way.
    """
    try:
        with connection.transaction():
            cursor = connection.execute(statement)
            return cursor.description is None or cursor.fetchone() != (False,)
    except psycopg.errors.LockNotAvailable:
        return False


def try_old_lock(connection: Conn, name: OldLock) -> bool:
    """Take a key of 0.1 until the transaction ends; return False while a process of 0.1 has it.

    A key of a stranger is passed over: then the two releases do not exclude each other.
    """
    return connection.execute(_SQL["try_old_lock"], {"name": name}).fetchone() == (True,)


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
        held = f"holds {self.what}"
        if self.age is not None:
            held = f"has held {self.what} for {int(self.age.total_seconds())} s"
        holder = f"session {self.process}" if self.process else f"prepared transaction {self.prepared}"
        return f"the {holder} of the role {self.role} {held}"

    @property
    def remedy(self) -> str:
        """The statement that ends it, and who may run it."""
        if self.process is None:
            return f"end it as a superuser, or as its role: ROLLBACK PREPARED '{self.prepared}'"
        return f"end it as a superuser, or as a member of its role: SELECT pg_terminate_backend({self.process})"


def find_lock_holders(connection: Conn) -> list[LockHolder]:
    """Return these sessions."""
    with connection.cursor(row_factory=rows_of(LockHolder._make)) as cursor:
        return cursor.execute(_SQL["find_lock_holders"]).fetchall()
