"""Connections to PostgreSQL: one per thread that needs one, reopened when it breaks.

Every transaction goes through `Session.transaction`, which tells three failures apart: the database does not answer
(`Unavailable`: nothing happened), the answer to COMMIT was lost (`CommitUnknown`: read back what stands), and an error
of the data, which is psycopg's own and names a row to set aside.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias, TypeVar

import psycopg
from psycopg import Connection
from psycopg.rows import RowFactory

from tidewheel.errors import Unavailable

Conn: TypeAlias = Connection[tuple[object, ...]]
R = TypeVar("R")

# A statement planned against an empty table is kept as a generic plan, and the next burst takes 80 times as long
# (392 ms against 4.9 ms for one claim: docs/adr/0009); so every statement is planned for what it meets.
_FORCE_CUSTOM_PLAN = "-c plan_cache_mode=force_custom_plan"
# A process that is stopped (SIGSTOP, a frozen machine) inside a transaction must not hold its row locks for ever.
_LET_GO = "-c idle_in_transaction_session_timeout=15s"
_UTC = "-c timezone=UTC"
# Durability is part of the promise: an installation whose default is weaker gets the strong setting all the same.
_DURABLE = "-c synchronous_commit=on"

# A statement that waits for a lock, or runs, longer than this is in somebody's way, or somebody is in its: it lets go
# of everything it holds, and is tried again.
_PATIENCE = "-c lock_timeout=10s -c statement_timeout=30s"
_CANCEL_SECONDS = 5.0  # as for connecting: a cancel is a connection of its own
# A process that is stopped inside a COPY is not idle: only the limit on the whole transaction frees what it has locked.
_WHOLE_TRANSACTION = "60s"
_HAS_TRANSACTION_TIMEOUT = 170_000

# For sessions that look rows up by their keys, a batch at a time. By its costs the planner takes a look-up for dearer
# than it is: for 500 of 60,000 open runs it read all of them, 53 us for each that was claimed instead of 6. Hash joins
# stay: where statistics are of an emptier table, what is left without them is a walk over the whole index for each row.
BY_KEY = "-c enable_mergejoin=off -c enable_seqscan=off -c enable_bitmapscan=off"
# For those of them whose statements have no other way than the key, whatever the statistics say: planning a claim of a
# few runs took as long as making it. Not for what often has to do with partitions: a kept plan is of all of them.
KEPT_PLANS = f"{BY_KEY} -c plan_cache_mode=force_generic_plan"

# Wrong SQL, or values that psycopg itself cannot send: repeating them is no use.
_OURS = psycopg.ProgrammingError | psycopg.NotSupportedError | psycopg.DataError

# The limit on a statement (also what a person cancels), on the transaction, on a pause inside it.
_TIME_LIMITS = frozenset({"57014", "25P04", "25P03"})

_DATA_CLASSES = frozenset({"22", "23", "54"})


class CommitUnknown(Unavailable):
    """The connection broke while COMMIT was under way: what was written may stand or not."""


def connect(url: str, name: str, *, autocommit: bool = False, options: str = "") -> Conn:
    """Open one connection.

    Args:
        url: A libpq connection string; empty takes the `PG*` variables.
        name: What pg_stat_activity shows, such as `tidewheel-relay`.
        autocommit: For LISTEN, advisory locks and single statements.
        options: Further server settings of this session, as `-c name=value`.

    Raises:
        Unavailable: The server cannot be reached, or refuses.
    """
    try:
        return psycopg.connect(
            url,
            autocommit=autocommit,
            application_name=name,
            connect_timeout=5,
            target_session_attrs="read-write",
            client_encoding="UTF8",  # what `arrays` and `binary_rows` write, whatever PGCLIENTENCODING says
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=20000,
            options=f"{_FORCE_CUSTOM_PLAN} {_LET_GO} {_UTC} {_DURABLE} {_PATIENCE} {options}",
        )
    except psycopg.Error as error:
        raise Unavailable(_first_line(error)) from error


class Session:
    """One connection for one thread; opened when first needed and again after it broke."""

    def __init__(self, url: str, name: str, *, options: str = "", autocommit: bool = False) -> None:
        self._url, self._name, self._options, self._autocommit = url, name, options, autocommit
        self._connection: Conn | None = None

    def connection(self) -> Conn:
        """The open connection.

        Raises:
            Unavailable: It cannot be opened now.
        """
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, self._name, options=self._options, autocommit=self._autocommit)
            if self._connection.info.server_version >= _HAS_TRANSACTION_TIMEOUT:
                self._connection.execute("SELECT set_config('transaction_timeout', %s, false)", [_WHOLE_TRANSACTION])
                self._connection.commit()
        return self._connection

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        """A transaction, committed at the end of the block, rolled back when the block raises.

        Of a session with `autocommit` each statement is one by itself.

        Raises:
            Unavailable: The server was lost, or a deadlock or time limit struck; nothing was written.
            CommitUnknown: The answer to COMMIT was lost.
        """
        connection = self.connection()
        try:
            yield connection
        except psycopg.Error as error:
            self._abandon(connection)
            if is_data_fault(error) or isinstance(error, _OURS):
                raise
            # Everything else is the server's state and not the rows': lost, read-only, out of space, our time limits.
            raise Unavailable(_first_line(error)) from error
        except BaseException:
            self._abandon(connection)
            raise
        try:
            connection.commit()
        except psycopg.Error as error:
            self._abandon(connection)
            # The server said no before it committed (a deferred check, a conflict): that is known, not lost.
            if error.sqlstate and not error.sqlstate.startswith(("08", "57")):
                raise Unavailable(_first_line(error)) from error
            raise CommitUnknown(_first_line(error)) from error

    def cancel(self) -> None:
        """End the statement that another thread waits for, which then finds it `Unavailable`; never raises."""
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        """Close the connection if there is one; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _abandon(self, connection: Conn) -> None:
        try:
            connection.rollback()
        except psycopg.Error:
            self.close()


def rows_of(make: Callable[[Iterable[object]], R]) -> RowFactory[R]:
    """Rows as named tuples, by position: `rows_of(Row._make)`; the columns are in the order of its fields.

    For hot statements: by name, and into a frozen dataclass, a row of 17 columns costs 3 us more.
    """

    def row_maker(cursor: object) -> Callable[[Sequence[object]], R]:
        return make

    return row_maker


def is_data_fault(error: BaseException) -> bool:
    """Whether an error is about the rows themselves (SQLSTATE classes 22, 23, 54) and would come again.

    Connection, space, locks and deadlocks are not: for those nobody's row is set aside.
    """
    state = getattr(error, "sqlstate", None)
    return isinstance(state, str) and state[:2] in _DATA_CLASSES


def is_time_limit(error: BaseException) -> bool:
    """Whether a transaction was given up because it, or one of its statements, took longer than it may.

    What asks for too much at once meets it again; not so what waited for a lock.
    """
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    return getattr(cause, "sqlstate", None) in _TIME_LIMITS


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
