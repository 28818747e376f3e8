"""Connections to PostgreSQL: one per thread that needs one, reopened when it breaks.

Every transaction goes through `Session.transaction`, which distinguishes three failures. The database does not answer
(`Unavailable`): nothing was written. The answer to COMMIT was lost (`CommitUnknown`): read back the result. An error of
the data is psycopg's own, and the caller quarantines the row. An error that an operator corrects is an
`InstallationFault`, which is an `Unavailable`: no row is its cause.
"""

import logging
import re
import select
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Concatenate, LiteralString, ParamSpec, TypeAlias, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg import Connection, Cursor, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.rows import RowFactory

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable, UnsupportedServer
from tidewheel.postgres.faults import first_line, without_partition, without_rows_fault
from tidewheel.postgres.fences import EpochOver, epoch, named_servers, primaries
from tidewheel.postgres.own_schema import SchemaConnection, schema_of_options
from tidewheel.postgres.partitions import repair_days
from tidewheel.postgres.statements import Statements

_RESTAMP_EVENTS = Statements("tidewheel")["restamp_events"]

Conn: TypeAlias = Connection[tuple[object, ...]]
P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)

# A statement planned against an empty table is kept as a generic plan, and the next burst takes 80 times as long
# (392 ms against 4.9 ms for one claim: docs/adr/0009); so every statement is planned for what it meets.
_FORCE_CUSTOM_PLAN = "-c plan_cache_mode=force_custom_plan"
# A process that is stopped (SIGSTOP, a frozen machine) inside a transaction must not hold its locks for ever.
_IDLE_LIMIT = "-c idle_in_transaction_session_timeout=15s"
_UTC = "-c timezone=UTC"
# A server with LLVM compiles each plan whose estimated cost is high, and forced indexes make each cost high: services
# run far too slowly there. No statement here takes long enough to earn that.
_NO_JIT = "-c jit=off"
# Durability is part of the promise, so the server's weaker default, if any, is overridden.
_DURABLE = "-c synchronous_commit=on"

# A statement that waits for a lock, or runs, longer than this blocks another transaction, or another blocks it. Its
# transaction is rolled back, which releases all its locks, and the caller retries.
_STATEMENT_LIMITS = "-c lock_timeout=10s -c statement_timeout=30s"
_OPTIONS = f"{_FORCE_CUSTOM_PLAN} {_IDLE_LIMIT} {_UTC} {_NO_JIT} {_DURABLE} {_STATEMENT_LIMITS}"
# The oldest release that `make matrix` runs. Those before it get no more fixes.
_OLDEST_SERVER = 15
_CANCEL_SECONDS = 5.0  # as for connecting: a cancel opens its own connection
# A process that is stopped inside a COPY is not idle: only the limit on the whole transaction releases its locks.
_WHOLE_TRANSACTION = "60s"
_HAS_TRANSACTION_TIMEOUT = 170_000

# For sessions that look rows up by key, a batch at a time. The planner overestimates the cost of a look-up: for 500 of
# 60,000 open runs it read all of them, 53 us a claimed run instead of 6. Hash joins stay enabled: with statistics of an
# emptier table, the only plan without them scans the whole index for each row. A cache of rows by their key (Memoize)
# is never hit, for a batch has each key once: firing paid 1.5 us a run for it.
BY_KEY = "-c enable_mergejoin=off -c enable_seqscan=off -c enable_bitmapscan=off -c enable_memoize=off"
# For those sessions whose statements can only use the key, whatever the statistics: planning a claim of a few runs took
# as long as executing it. Not for statements on many partitions: a generic plan covers all of them.
KEPT_PLANS = f"{BY_KEY} -c plan_cache_mode=force_generic_plan"
# For lists and reads of people: a page by an index costs by its rows, a scan of a table by those of all tenants, and a
# bitmap by those of the whole filter.
FOR_LISTS = "-c enable_seqscan=off -c enable_bitmapscan=off"
# For those that end a batch of runs by one statement: it waits for locked rows, but not for long. Another transaction
# may hold one for minutes, and all other runs of the batch would wait. For a key it waits longer, by the second setting
# (`is_patient` in tidewheel/transitions/queries.sql).
UNIFORM = f"{KEPT_PLANS} -c lock_timeout=50ms -c tidewheel.patient=on"

# Relays read past a clock reading a second later (`low_water.LATE_COMMIT`). The rest of the second is for the COMMIT.
_LONG_SECONDS = 0.25

# The limits on a statement (also sent by a manual cancel), on a transaction, on idle time inside one.
_TIME_LIMITS = frozenset({"57014", "25P04", "25P03"})

# SQLSTATE classes of errors about the server, whatever the rows: connection, read-only, rollback, resources, operator.
_OF_SERVER = frozenset({"08", "25", "40", "53", "57", "58"})
_STATEMENT_TIMEOUT = "57014"

_DATA_CLASSES = frozenset({"22", "23", "54"})


POOLED_BY_TRANSACTION = (
    "a pooler in front of the database shares sessions between connections (pool_mode = transaction or statement): "
    "locks, notifications and settings would be lost"
)
NEEDS_SESSION = (
    "name the server itself in TIDEWHEEL_DATABASE_URL, or set pool_mode = session for this database; only "
    "`tidewheel service api`, clients and calls in your own transactions share sessions (docs/deployment.md, Poolers)"
)
_POOLED_BY_STATEMENT = "statement pooling"  # Source: PgBouncer's src/server.c
_SET_POOL_MODE = "set pool_mode = transaction or session for this database (docs/deployment.md, Poolers)"
_READ_ONLY = "session is read-only"  # Source: libpq's fe-connect.c
_ONLY_READS = (
    "the database accepts no writes (session is read-only): name the primary in TIDEWHEEL_DATABASE_URL; if it is being"
    " restored, wait, or repeat `tidewheel admin restore --yes` if that was interrupted"
)
_NO_OPTIONS = "unsupported startup parameter"  # Source: PgBouncer's src/client.c
_SETTING = re.compile(r"(?:^|(?<=\s))-c\s*([\w.]+)=((?:\\.|\S)*)")
_SET_ALL: LiteralString = """
SELECT set_config(s.name, s.value, false) FROM unnest(%(names)s::text[], %(values)s::text[]) AS s (name, value)
"""
_LOOKS = 5  # at a pooler: other clients, which have its idle session for a moment, hide from one that it is shared

# Source: PostgreSQL's src/backend/libpq/auth.c and utils/init/postinit.c, libpq's fe-connect.c and fe-secure-openssl.c.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects connection",
    '" does not exist',
    "is not permitted to log in",
    "permission denied for database",
    "certificate verify failed",
    "server does not support SSL",
    "requires a valid client certificate",
    "alert unknown ca",
    "alert certificate",
    "alert bad certificate",
    "certificate file",
    "private key file",
)


class OwnConnection(SchemaConnection):
    """A connection that Tidewheel has opened.

    Attributes:
        tenant: The tenant for which its transaction acts; None if it acts as the role that connected.
        settings: The server settings of a connection through a pooler; None without one.
        begins: The statements that begin a transaction with these settings, where no session keeps them.
        release: The number of the server's release, such as 180001.
        committing: What `Session.transaction` calls once its transaction has committed.
        on_block: Called before the transaction blocks claims until its end.
        shows_damaged: Whether its transaction reads what Python does not have as what is nearest.
    """

    tenant: str | None = None
    notices: "_Notices"
    settings: str | None = None
    begins: sql.Composed | None = None
    release: int = 0
    committing: Sequence[Callable[[], None]] = ()
    has_events: bool = False
    knows_damaged = shows_damaged = False
    on_block: Callable[[], None] | None = None

    def at_commit(self, act: Callable[[], None]) -> None:
        """Call something once the transaction of `Session.transaction` has committed, and never if it has not."""
        self.committing = (*self.committing, act)

    def committed(self) -> None:
        """Call what waits for the commit."""
        acts, self.committing = self.committing, ()
        for act in acts:
            act()

    def begin(self) -> None:
        """Begin a transaction, with its settings, where the next one may have another session of the server."""
        if self.begins is not None:
            self.execute(self.begins)

    def set_through_pooler(self, settings: str, *, pooled: bool) -> None:
        """Set server settings, if a pooler is in between: it drops or refuses those of the connection's start.

        A pooler has its own numbers of processes, by which clients cancel.

        Args:
            pooled: Leave nothing in the session: no setting, no prepared statement.
        """
        if self.server_process() == self.info.backend_pid:
            return
        self.settings = settings
        named = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _SETTING.findall(settings)}
        if not pooled:
            self.execute(_SET_ALL, {"names": list(named), "values": list(named.values())})
            return
        if self.release >= _HAS_TRANSACTION_TIMEOUT:
            named["transaction_timeout"] = _WHOLE_TRANSACTION
        self.prepare_threshold, self.begins = None, _beginning(named)

    def server_process(self) -> int:
        """Return the process of the server, in a transaction of its own."""
        [(process,)] = self.execute("SELECT pg_backend_pid()").fetchall()
        if not self.autocommit:
            self.rollback()
        return cast("int", process)


class _Notices:
    """The notices of a connection: those about a COMMIT whose wait for a standby was cancelled."""

    has_unconfirmed_commit = False

    def __call__(self, notice: Diagnostic) -> None:
        # The function's name is in no language. Source: PostgreSQL's src/backend/replication/syncrep.c.
        self.has_unconfirmed_commit = self.has_unconfirmed_commit or notice.source_function == "SyncRepWaitForLSN"


class RowsLocked(Unavailable):
    """A statement waited for a lock for longer than its session allows; nothing was written."""


class AccessRefused(Unavailable):
    """The server refused the user, the password, the address or the database: no time mends that."""


class OnlyReads(Unavailable):
    """The server accepts no writes: it is a standby, or the database is being restored."""


class CommitUnknown(Unavailable):
    """The connection broke during COMMIT: the transaction may have committed or not.

    Or its wait for the synchronous standby was cancelled: it has committed, but a fail-over may lose it.
    """


def connect(
    url: str, name: str, *, autocommit: bool = False, options: str = "", prompt: bool = False, pooled: bool = False
) -> OwnConnection:
    """Open one connection.

    Args:
        url: A libpq connection string; empty takes the `PG*` variables.
        name: The application_name in pg_stat_activity, such as `tidewheel-relay`.
        options: Further server settings of this session, as `-c name=value`. Those of the URL, or of PGOPTIONS, apply
            too, except where Tidewheel sets them itself.
        prompt: Notice a lost server, or one that returned, within 4 s: for heartbeats.
        pooled: Behind a pooler keep nothing in a session of the server, for the pooler may share sessions: the caller
            begins each transaction by `OwnConnection.begin`.

    Raises:
        UnsupportedServer: The server is older than this release needs.
    """
    servers = named_servers(url)
    if len(servers) > 1:
        primaries.watch(url)
    connection = open_one(url, name, autocommit=autocommit, options=options, prompt=prompt, pooled=pooled)
    if len(servers) == 1 or _is_newest(connection, url):
        return connection
    for server in servers:
        with suppress(Unavailable):
            connection = open_one(server, name, autocommit=autocommit, options=options, prompt=prompt, pooled=pooled)
            if _is_newest(connection, url):
                return connection
    raise Unavailable("an old primary accepts writes, and the standby that was promoted in its place does not answer")


def open_one(
    url: str, name: str, *, autocommit: bool, options: str, prompt: bool, pooled: bool,
    open_by: Callable[..., OwnConnection] = OwnConnection.connect,
) -> OwnConnection:  # fmt: skip
    """Open a connection to the first server of a URL that takes it, as `connect`.

    Args:
        open_by: Gets the parameters of `psycopg.Connection.connect`.
    """
    settings = f"{_options_of(url)} {_OPTIONS} {options}".strip()
    try:
        try:
            connection = _started(url, name, settings, prompt=prompt, open_by=open_by)
        except psycopg.OperationalError as error:
            if _NO_OPTIONS not in str(error):
                raise
            connection = _started(url, name, "", prompt=prompt, open_by=open_by)
        try:
            _refuse_old_server(connection)
            connection.set_through_pooler(settings, pooled=pooled)
            connection.autocommit = autocommit or connection.begins is not None
        except psycopg.Error:
            connection.close()
            raise
    except psycopg.Error as error:
        # The text has a line for each address of a name, and libpq no SQLSTATE for a failed connection. A server with
        # messages in another language is waited for.
        refusal = next((line for line in str(error).splitlines() if any(text in line for text in _REFUSALS)), None)
        if refusal is not None:
            raise AccessRefused(refusal) from error
        if _READ_ONLY in str(error):
            raise OnlyReads(_ONLY_READS) from error
        raise Unavailable(first_line(error)) from error
    connection.schema = schema_of_options(settings)
    connection.notices = _Notices()
    connection.add_notice_handler(connection.notices)
    return connection


def _refuse_old_server(connection: OwnConnection) -> None:
    """Read the release of the server; close the connection and raise UnsupportedServer if it is too old.

    The server, or a pooler in its place, reports its release at the start of the connection. Some poolers report none.
    """
    connection.release = connection.info.server_version
    if not connection.release:
        [(number,)] = connection.execute("SELECT current_setting('server_version_num')::integer").fetchall()
        connection.release = cast("int", number)
    major, minor = divmod(connection.release, 10_000)
    if major < _OLDEST_SERVER:
        connection.close()
        raise UnsupportedServer(
            f"PostgreSQL {major}.{minor} is too old for Tidewheel, which needs {_OLDEST_SERVER} or newer: upgrade the "
            "server, or name another one in TIDEWHEEL_DATABASE_URL (docs/compatibility.md)"
        )


def _beginning(settings: Mapping[str, str]) -> sql.Composed:
    """Return the statements that begin a transaction with these settings, sent as one.

    By SET: a call of set_config would take the transaction's snapshot, after which no isolation level can be set.
    """
    each = [
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(*name.split(".")), _set_value(name, value))
        for name, value in settings.items()
    ]
    return sql.SQL("; ").join([sql.SQL("BEGIN"), *each])


def _set_value(name: str, value: str) -> sql.Composable:
    """Return the value of a setting as SQL: a search path as its names, for one literal would be one name."""
    if name != "search_path":
        return sql.Literal(value)
    names = [each.strip() for each in value.split(",")]
    return sql.SQL(", ").join([sql.Literal(each[1:-1] if each.startswith('"') else each.lower()) for each in names])


def _is_newest(connection: OwnConnection, url: str) -> bool:
    """Return True if no promoted server has taken the place of this one; close the connection otherwise."""
    try:
        return primaries.admit(connection, url)
    except psycopg.Error as error:
        connection.close()
        raise Unavailable(first_line(error)) from error


def own_options(connection: Conn) -> str:
    """Return the user's own server settings of a connection, such as a search path."""
    given = connection.settings if isinstance(connection, OwnConnection) else None
    given = given or connection.info.get_parameters().get("options", "")
    return given.partition(_OPTIONS)[0].strip()


def connect_configured(url: str, name: str, *, autocommit: bool = False, pooled: bool = False) -> OwnConnection:
    """Open a connection to the configured database; an error names the settings of its address.

    Args:
        pooled: Accept a pooler that shares sessions.

    Raises:
        SettingsError: The server refuses the user, the password, the address or the database, or is too old. Or a
            pooler shares sessions, or has no transactions.
    """
    try:
        connection = connect(url, name, autocommit=autocommit, pooled=True)
        try:
            if connection.settings is not None and not pooled:
                refuse_shared_sessions(url)
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection
    except psycopg.Error as error:
        if _POOLED_BY_STATEMENT in str(error):
            raise SettingsError(f"the pooler refuses transactions: {first_line(error)}; {_SET_POOL_MODE}") from error
        raise Unavailable(f"the database does not answer: {first_line(error)}") from error
    except AccessRefused as error:
        raise SettingsError(
            f"the database refuses the connection: {error}; correct user, password, database or TLS in "
            "TIDEWHEEL_DATABASE_URL or the PG* variables (TLS has sslmode, sslrootcert, sslcert and sslkey)"
        ) from error
    except Unavailable as error:
        raise Unavailable(
            f"the database does not answer: {error}; TIDEWHEEL_DATABASE_URL names it, else `tidewheel up` starts a "
            "local one"
        ) from error


def refuse_shared_sessions(url: str, *, options: str = "") -> None:
    """Raise SettingsError if a pooler shares sessions."""
    if shares_sessions(url, options=options):
        raise SettingsError(f"{POOLED_BY_TRANSACTION}; {NEEDS_SESSION}")


def shares_sessions(url: str, *, options: str = "") -> bool:
    """Return True if a pooler gives the server's session of an idle connection to another one.

    Then two connections at once have one process of the server, or one connection has two.
    """
    with connect(url, "tidewheel-start", options=options, pooled=True) as one:
        if one.settings is None:
            return False
        with connect(url, "tidewheel-start", options=options, pooled=True) as other:
            both = {(one.server_process(), other.server_process()) for _ in range(_LOOKS)}
    [(first, second), *others] = both
    return first == second or bool(others)


def _started(
    url: str, name: str, options: str, *, prompt: bool, open_by: Callable[..., OwnConnection]
) -> OwnConnection:
    return open_by(
        url,
        autocommit=True,
        application_name=name,
        connect_timeout=3 if prompt else 5,
        target_session_attrs="read-write",
        client_encoding="UTF8",  # `pg_binary` writes UTF-8, whatever PGCLIENTENCODING is
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=4000 if prompt else 20000,
        options=options,
    )


def prepare_session(connection: OwnConnection, check: Callable[[Conn], None] = lambda _: None) -> None:
    """Set up the session of a new connection, if the check of it passes; close it otherwise."""
    try:
        connection.begin()
        check(connection)
        if connection.begins is None and connection.release >= _HAS_TRANSACTION_TIMEOUT:
            connection.execute("SELECT set_config('transaction_timeout', %s, false)", [_WHOLE_TRANSACTION])
        connection.commit()
    except EpochOver:
        connection.close()
        raise
    except psycopg.Error as error:  # a server that ends right after it has accepted the connection
        connection.close()
        raise Unavailable(first_line(error)) from error


class Session:
    """One connection for one thread, opened on first use and reopened after it broke.

    The other arguments are those of `connect`.

    Args:
        renews: Replace a connection that the server has closed between two transactions: nothing was sent. Not for a
            caller that holds locks of the session, or whose clock stops while the server is away: a statement reports
            the loss there.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        options: str = "",
        autocommit: bool = False,
        prompt: bool = False,
        renews: bool = False,
        pooled: bool = False,
    ) -> None:
        self._url, self._name, self._options, self._autocommit, self._prompt = url, name, options, autocommit, prompt
        self._renews, self._pooled = renews, pooled
        self._connection: OwnConnection | None = None

    def connection(self) -> OwnConnection:
        """Return the open connection."""
        if self._connection is not None and self._renews and _was_closed_idle(self._connection):
            self.close()
        if self._connection is None or self._connection.closed:
            self._connection = self._open()
        return self._connection

    def _open(self) -> OwnConnection:
        connection = connect(
            self._url, self._name, options=self._options, autocommit=self._autocommit, prompt=self._prompt,
            pooled=self._pooled,
        )  # fmt: skip
        prepare_session(connection, epoch.check)
        return connection

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        """Run the block in a transaction: commit at its end, roll back if it raises.

        In a session with `autocommit` each statement is a transaction.

        Raises:
            Unavailable: The server was lost, a deadlock or a time limit ended it, or a partition was missing, which
                exists now; nothing was written.
        """
        connection = self.connection()
        began = monotonic_seconds()
        try:
            connection.begin()
            yield connection
            _restamp_events(connection, began)
        except psycopg.Error as error:
            hide_values(error)
            self._abandon(connection)
            if lacks_partition(error):
                try:
                    repair_days(connection)
                except psycopg.Error as failure:
                    raise without_partition(error, failure) from error
                raise Unavailable(first_line(error)) from error
            if is_data_fault(error) or _is_misuse(error):
                raise
            if isinstance(error, psycopg.errors.LockNotAvailable):
                raise RowsLocked(first_line(error)) from error
            raise without_rows_fault(error) from error
        except BaseException:
            self._abandon(connection)
            raise
        try:
            connection.commit()
        except psycopg.Error as error:
            hide_values(error)
            self._abandon(connection)
            # The server refused before it committed (a deferred check, a conflict): the outcome is known.
            if error.sqlstate and not error.sqlstate.startswith(("08", "57")):
                raise without_rows_fault(error) from error
            raise CommitUnknown(first_line(error)) from error
        if connection.notices.has_unconfirmed_commit:
            self.close()
            message = "the wait for the synchronous standby was cancelled: a fail-over may lose the transaction"
            raise CommitUnknown(message)
        if connection.committing:
            connection.committed()

    def within(self, work: Callable[Concatenate[Conn, P], R], *given: P.args, **named: P.kwargs) -> R:
        """Call a function of a connection in a transaction of its own."""
        with self.transaction() as connection:
            return work(connection, *given, **named)

    def cancel(self) -> None:
        """Cancel the statement that another thread waits for, which then gets `Unavailable`; never raises."""
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        """Close the connection if there is one; never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _abandon(self, connection: OwnConnection) -> None:
        connection.committing, connection.has_events = (), False
        try:
            connection.rollback()
        except psycopg.Error:
            self.close()


def at_commit(connection: Conn, act: Callable[[], None]) -> None:
    """Call something once the transaction has committed; never on a user's own connection."""
    if isinstance(connection, OwnConnection):
        connection.at_commit(act)


def rows_of(make: Callable[[Iterable[object]], R]) -> RowFactory[R]:
    """Return rows as named tuples by position: `rows_of(Row._make)`, columns in the order of its fields.

    For hot statements: reading a row of 17 columns by name into a frozen dataclass costs 3 us more.
    """

    def row_maker(cursor: object) -> Callable[[Sequence[object]], R]:
        return make

    return row_maker


def readable_rows(cursor: Cursor[R]) -> list[R]:
    """Return the rows of a statement but those that Python cannot hold.

    These have an instant before year 1, or after 9999. It is for rows that one transaction works off together: a
    damaged one must not stop the others.
    """
    try:
        return cursor.fetchall()
    except psycopg.DataError:
        found: list[R] = []
    for place in range(cursor.rowcount):
        cursor.scroll(place, mode="absolute")
        try:
            found += [row] if (row := cursor.fetchone()) is not None else []
        except psycopg.DataError as error:
            _leave_out(str(error))
    return found


@lru_cache(maxsize=100)  # each error is logged once, and again after a hundred others
def _leave_out(error: str) -> None:
    _LOG.error("a stored row cannot be read and is skipped; the other rows are processed: %s", error)


def read_rows(
    connection: Conn, record: RowFactory[R], statement: LiteralString, columns: Mapping[str, object]
) -> list[R]:
    """Return the rows of a statement as records."""
    with connection.cursor(row_factory=record, binary=True) as cursor:
        return cursor.execute(statement, columns).fetchall()


def read_row(
    connection: Conn, record: RowFactory[R], statement: LiteralString, columns: Mapping[str, object]
) -> R | None:
    """Return the only row of a statement as a record; None without one."""
    with connection.cursor(row_factory=record, binary=True) as cursor:
        return cursor.execute(statement, columns).fetchone()


def read_ids(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> set[UUID]:
    """Return the ids that a statement finds, its only column."""
    return set(list_ids(connection, statement, columns))


def list_ids(connection: Conn, statement: LiteralString, columns: Mapping[str, object] | None = None) -> list[UUID]:
    """Return the ids that a statement finds, in its order."""
    found = connection.execute(statement, columns, binary=True).fetchall()
    return [each for (each,) in found if isinstance(each, UUID)]


def _restamp_events(connection: OwnConnection, began: float) -> None:
    """Give the events of a long transaction the time of its end, so that they leave in their order."""
    if connection.has_events:
        connection.has_events = False
        if monotonic_seconds() - began > _LONG_SECONDS:
            connection.execute(_RESTAMP_EVENTS)


def is_data_fault(error: BaseException) -> bool:
    """Return True if the rows cause an error (SQLSTATE classes 22, 23, 54), so that a retry fails again.

    psycopg raises `DataError` without an SQLSTATE for a value that it cannot send, such as a text with NUL.
    Errors of connection, space, locks and deadlocks are not of this kind: they quarantine no row.
    """
    state = getattr(error, "sqlstate", None)
    return isinstance(error, psycopg.DataError) or (isinstance(state, str) and state[:2] in _DATA_CLASSES)


def hide_values(error: psycopg.Error) -> None:
    """Reduce an error to its first line: DETAIL and CONTEXT quote rows, so payloads and secrets.

    `diag` keeps them for code that decides. Callers log, store and reply with the error's text.
    """
    if error.args:
        error.args = (first_line(error), *error.args[1:])


def is_time_limit(error: BaseException) -> bool:
    """Return True if a transaction, or one of its statements, exceeded a time limit.

    A retry with the same work exceeds it again. A wait for a lock has another SQLSTATE and is not counted.
    """
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    return getattr(cause, "sqlstate", None) in _TIME_LIMITS


def is_refused(error: BaseException) -> bool:
    """Return True if a part of a batch may be the cause of an error, and a smaller batch may succeed.

    A missing partition, a lock, a table or column of some rows only: not the connection, nor the server as a whole.
    """
    state = getattr(error.__cause__ if isinstance(error, Unavailable) else error, "sqlstate", None)
    return isinstance(state, str) and (state[:2] not in _OF_SERVER or state == _STATEMENT_TIMEOUT)


def lacks_partition(error: psycopg.Error) -> bool:
    """Return True if a row's partition is missing.

    A violated CHECK constraint has the same SQLSTATE, but a name.
    """
    return isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None


def _was_closed_idle(connection: Conn) -> bool:
    """Return True if the server has closed a connection outside a transaction: it ended, or restarted.

    Only a last message or the end of the stream can be there to read, since these sessions listen to no channel.
    """
    if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _options_of(url: str) -> str:
    """Return the options of the URL, else of PGOPTIONS or PGSERVICE: an argument would replace them."""
    if (own := conninfo_to_dict(url).get("options")) is not None:
        return str(own)
    defaults = {each.keyword: each.val for each in Conninfo.get_defaults()}
    return (defaults[b"options"] or b"").decode()


def _is_misuse(error: psycopg.Error) -> bool:
    """Return True if psycopg itself refused a call: code is wrong, and a retry fails again."""
    return error.sqlstate is None and isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError)
