"""Apply the numbered SQL of this folder: forward only, with checksums, by one runner at a time.

The database records each applied file with the hash of its text. A released file that was edited afterwards is refused,
so that no database holds half of it. Each pending file is one transaction, in the order of the numbers. A file waits
for a lock for a moment only, because all other transactions wait behind it. It is rolled back and tried again.

Files `…_post` are what the release before cannot live with. They are a step of their own, after its last process.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from hashlib import sha256
from importlib import resources
from typing import LiteralString, TypeVar, cast

import psycopg
from psycopg import sql

from tidewheel.clock import monotonic_seconds
from tidewheel.distribution import release_version
from tidewheel.errors import MigrationError
from tidewheel.migrations.row_security import REMEDY, TENANT_ROLE, ownership_problem, secure_tables
from tidewheel.migrations.service_roles import (
    ROLE_PREFIX,
    create_roles,
    grant_rights,
    recorded_prefix,
    require_prefix,
    roles_of_default,
)
from tidewheel.postgres.held_lock import HeldLock, begin_lasting, try_table_lock
from tidewheel.postgres.own_schema import own_schema
from tidewheel.postgres.partitions import ensure_coming_days
from tidewheel.postgres.session import Conn, connect, refuse_shared_sessions
from tidewheel.postgres.statements import Statements, trusted

R = TypeVar("R")

_LOG = logging.getLogger("tidewheel.migrations")

_NO_HURRY = "-c lock_timeout=0 -c statement_timeout=0"  # a new index takes long
# All later transactions queue behind a lock that a migration waits for: firing pauses for no longer than this.
_LOCK_TIMEOUT: LiteralString = "SET lock_timeout = '200ms'"
# For all tables of a file together: `lock_timeout` begins again with each lock, while the first ones are held.
_LOCKS_TIMEOUT: LiteralString = "SET LOCAL statement_timeout = '200ms'"
_LOCK_TABLES: LiteralString = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
_NO_LOCKS_TIMEOUT: LiteralString = "SET LOCAL statement_timeout = 0"
_NO_LOCK_TIMEOUT: LiteralString = "SET lock_timeout = 0"  # CREATE INDEX CONCURRENTLY waits while it blocks no writer
_LOOK_SECONDS = 0.2  # between two looks for another runner
_PAUSE_SECONDS = 0.8  # between two tries: four fifths of the time belong to the services
PATIENCE_SECONDS = 300.0  # longer than `transaction_timeout` lets a transaction of the services live

_ALONE = "-- outside a transaction\n"  # the first line of a file whose statements cannot run in one

_FILE = re.compile(r"^(?P<number>\d{4})_[a-z0-9_]+\.sql$")

_CREATED = re.compile(r"^CREATE (?:TABLE|VIEW) (\w+)", re.MULTILINE)
# The tables that a file locks: `tests/migrations/test_runner.py` compares them with `pg_locks`.
_LOCKED = re.compile(
    r"(?:^ALTER TABLE (?:IF EXISTS )?(?:ONLY )?|^DROP TABLE (?:IF EXISTS )?|^COMMENT ON (?:TABLE|COLUMN) "
    r"|^(?:CREATE|ALTER|DROP) (?:OR REPLACE )?(?:TRIGGER|POLICY)[^;]*? ON |\bREFERENCES )(\w+)",
    re.MULTILINE,
)

_SQL = Statements("tidewheel.migrations")


class MigrationState(StrEnum):
    """The state of one migration in one database."""

    APPLIED = "applied"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of this folder."""

    number: int
    name: str
    text: LiteralString

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hex."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def is_post(self) -> bool:
        """True if it is applied after the last process of the release before."""
        return is_post(self.name)

    @property
    def locked_tables(self) -> frozenset[str]:
        """The tables that its statements lock against writers, those that it creates among them."""
        return frozenset(_LOCKED.findall(self.text))

    @property
    def statements(self) -> tuple[LiteralString, ...] | None:
        """Its statements if each is run by itself, outside a transaction; else None.

        They can be repeated: the run that records them may be the second. Each ends with a semicolon at a line's end.
        """
        if not self.text.startswith(_ALONE):
            return None
        return tuple(trusted(part) for part in re.split(r";\n", self.text.removeprefix(_ALONE)) if part.strip())


@dataclass(frozen=True, slots=True)
class Status:
    """One migration with its state in one database."""

    name: str
    state: MigrationState
    applied_at: datetime | None


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release, in the order of their numbers."""
    found: list[Migration] = []
    for entry in resources.files("tidewheel.migrations").iterdir():
        match = _FILE.match(entry.name)
        if match:
            found.append(Migration(int(match["number"]), entry.name, trusted(entry.read_text(encoding="utf-8"))))
    found.sort(key=lambda migration: migration.number)
    if len({migration.number for migration in found}) != len(found):
        raise MigrationError(f"two migrations have one number: {[migration.name for migration in found]}")
    return tuple(found)


def is_post(name: str) -> bool:
    """Return True if a file of this name is applied after the last process of the release before."""
    return name.endswith("_post.sql")


def created_names() -> list[str]:
    """Return the tables and views that the migrations create."""
    return [name for migration in migrations() for name in _CREATED.findall(migration.text)]


def status(url: str) -> list[Status]:
    """Return the state of each migration; raise MigrationError if an applied file was edited."""
    with connect(url, "tidewheel-migrate", pooled=True) as connection:
        connection.begin()
        applied = _read_applied(connection)
    return [
        Status(
            migration.name,
            MigrationState.APPLIED if migration.name in applied else MigrationState.PENDING,
            applied.get(migration.name),
        )
        for migration in migrations()
    ]


def pending_post(url: str) -> list[str]:
    """Return the pending files that `migrate` applies as a step of their own."""
    return [each.name for each in status(url) if each.state is MigrationState.PENDING and is_post(each.name)]


def migrate(
    url: str,
    *,
    dry_run: bool = False,
    post: bool = False,
    tenant_role: str | None = TENANT_ROLE,
    roles: Mapping[str, str] | None = None,
    role_prefix: str = ROLE_PREFIX,
) -> list[str]:
    """Apply the pending migrations and store the schemas of this release.

    Args:
        dry_run: Apply everything but what cannot run in a transaction, then roll back.
        post: Apply the files `…_post` too, and revoke the rights that this release does not need. A new database gets
            these files without.
        tenant_role: As for `secure_tables`; a role that cannot be used is logged, and the rest is done.
        roles: Create the roles of the services, with these passwords by service; None leaves them as they are.

    Returns:
        The names of the applied files; with `dry_run` of those that would be applied.

    Raises:
        MigrationError: An applied file was edited, a role cannot be created, roles have another prefix, or another
            transaction holds a lock for minutes. Or processes of another release are there, and `post` is set. A
            migration of a newer release is no error.
        SettingsError: A pooler shares sessions, whose locks keep other runners waiting.
    """
    # It imports the codec, which `require_current` does not need.
    from tidewheel.migrations.stored_schemas import store_schemas

    refuse_shared_sessions(url)
    with (
        connect(url, "tidewheel-migrate", options=_NO_HURRY) as connection,
        _alone(url, connection, dry_run=dry_run) as lock,
    ):
        connection.execute(_LOCK_TIMEOUT)
        connection.commit()
        pending, is_new = _to_apply(connection, post=post), not _read_applied(connection)
        if roles is None and not is_new:
            require_prefix(connection, role_prefix)
        connection.rollback()

        def apply(migration: Migration) -> None:
            lock.check()
            if migration.is_post and not is_new:
                _require_no_other_release(connection, migration.name)
                connection.rollback()
            _apply(connection, migration)

        def finish() -> None:
            lock.check()
            if post and not is_new:
                _require_no_other_release(connection, "the revoked rights")
            store_schemas(connection)
            if (problem := secure_tables(connection, created_names(), tenant_role)) is not None:
                _LOG.warning("no session can act for a tenant as the role %s: %s; %s", tenant_role, problem, REMEDY)
            if roles is not None:
                create_roles(connection, roles, tenant_role, role_prefix)
            if recorded_prefix(connection) is not None:
                grant_rights(connection, role_prefix, revoke=post)
            text = (
                "the role %s may call the SQL functions for tenant default alone; for another tenant run "
                "`tidewheel admin tenant limits NAME --grant-role %s`, with '*' as the name for all tenants"
            )
            for role in roles_of_default(connection):
                _LOG.warning(text, role, role)

        def rehearse() -> None:
            _make_schema(connection)
            _try_all(connection, pending)
            finish()

        if dry_run:
            _patiently(connection, rehearse, "the pending migrations")
            connection.rollback()
            return [migration.name for migration in pending]
        for migration in pending:
            _patiently(connection, partial(apply, migration), migration.name)
        _patiently(connection, finish, "the rights of the roles")
        connection.commit()
        ensure_coming_days(connection)
    return [migration.name for migration in pending]


def require_current(connection: Conn) -> None:
    """Check that the database has this release's migrations and shows its rows, or raise MigrationError."""
    applied = _read_applied(connection)
    missing = [migration.name for migration in migrations() if migration.name not in applied and not migration.is_post]
    too_new = sorted(name for name in _newer(applied) if is_post(name))
    problem = None if missing else ownership_problem(connection)
    connection.rollback()
    if too_new:
        message = f"the database has {', '.join(too_new)} of a newer release, not supported by this one; start that one"
        raise MigrationError(message)
    if missing:
        raise MigrationError(f"the database lacks {', '.join(missing)}; run `tidewheel migrate`")
    if problem is not None:
        raise MigrationError("; ".join(problem))


def has_newer(connection: Conn) -> bool:
    """Return True if a newer release has migrated the database: it records a file that this release lacks."""
    return bool(_newer(str(name) for name, *_ in connection.execute(_SQL["read_migrations"])))


def _newer(applied: Iterable[str]) -> set[str]:
    """Return the applied files that this release lacks."""
    return set(applied) - {migration.name for migration in migrations()}


@contextmanager
def _alone(url: str, connection: Conn, *, dry_run: bool) -> Generator[HeldLock]:
    """Keep other runners waiting for all files; a rehearsal on a new database needs no lock."""
    if connection.execute(_SQL["migrations_table_exists"]).fetchone() != (True,):
        connection.rollback()
        if dry_run:
            yield HeldLock(connection, is_alone=True)
            return
        _make_table(connection)
    connection.rollback()
    never = threading.Event()
    with closing(connect(url, "tidewheel-migrate-lock", autocommit=True)) as holding:
        begin_lasting(holding)
        while not try_table_lock(holding, _SQL["lock_migrations"]):
            never.wait(_LOOK_SECONDS)
        yield HeldLock(holding, is_alone=True)


def _make_table(connection: Conn) -> None:
    try:
        _make_schema(connection)
        connection.execute(_SQL["make_migrations_table"])
        connection.commit()
    except psycopg.errors.UniqueViolation:  # another runner has made it at the same time
        connection.rollback()


def _make_schema(connection: Conn) -> None:
    """Create the schema of the search path, unless it exists."""
    schema = own_schema(connection)
    if schema is None or connection.execute("SELECT current_schema()").fetchone() == (schema,):
        return
    role = connection.info.user
    if connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", [schema]).fetchone() == (True,):
        message = f"the role {role} may not use the schema {schema}; let its owner grant USAGE and CREATE on it"
        raise MigrationError(message)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise MigrationError(
            f"the role {role} may not create the schema {schema} of TIDEWHEEL_DATABASE_SCHEMA; let the owner of the "
            f"database run `CREATE SCHEMA {schema} AUTHORIZATION {role}`"
        ) from error


def _to_apply(connection: Conn, *, post: bool) -> list[Migration]:
    """Return the pending files of this step."""
    applied = _read_applied(connection)
    pending = [migration for migration in migrations() if migration.name not in applied]
    later = [migration.name for migration in pending if migration.is_post]
    now = [migration for migration in pending if not migration.is_post]
    if post and applied:
        _require_no_other_release(connection, ", ".join(later) or "the revoked rights")
    connection.rollback()
    if post or not applied:  # no process has ever seen a new database
        return pending
    # A release numbers its `_post` files last: one before a pending file is of an earlier release.
    late = [name for name in later if now and name < now[-1].name]
    if late:
        raise MigrationError(
            f"{', '.join(late)} of an earlier release is pending; run `tidewheel migrate --post` of that release "
            "first, or stop all processes and run it with this release"
        )
    return now


def _require_no_other_release(connection: Conn, what: str) -> None:
    others = [
        f"{role} {version} on {host} pid {pid}"
        for role, version, host, pid in connection.execute(
            _SQL["find_processes_of_other_releases"], {"version": release_version()}
        )
    ]
    if others:
        raise MigrationError(
            f"{what}: only processes of {release_version()} support this, and others run: {'; '.join(others)}; "
            "stop them; of killed ones `--forget-silent 5m` deletes the registrations"
        )


def _apply(connection: Conn, migration: Migration) -> None:
    """Apply one file, and record it."""
    if migration.statements is None:
        _lock_tables(connection, migration.locked_tables)
        connection.execute(migration.text)
    else:
        connection.autocommit = True
        try:
            connection.execute(_NO_LOCK_TIMEOUT)
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute(_LOCK_TIMEOUT)
        finally:
            connection.autocommit = False
    connection.execute(_SQL["record_migration"], {"name": migration.name, "checksum": migration.checksum})
    connection.commit()


def _try_all(connection: Conn, pending: Iterable[Migration]) -> None:
    """Apply the files that can run in one transaction, without a commit."""
    pending = [migration for migration in pending if migration.statements is None]
    _lock_tables(connection, {name for migration in pending for name in migration.locked_tables})
    connection.execute(_SQL["make_migrations_table"])
    for migration in pending:
        connection.execute(migration.text)


def _lock_tables(connection: Conn, names: Collection[str]) -> None:
    """Lock those of these tables that exist, all within the time that writers may wait."""
    columns: dict[str, object] = {"names": sorted(names)}
    found = [
        name
        for (name,) in cast("list[tuple[str]]", connection.execute(_SQL["find_existing_tables"], columns).fetchall())
    ]
    if not found:
        return
    connection.execute(_LOCKS_TIMEOUT)
    try:
        connection.execute(sql.SQL(_LOCK_TABLES).format(sql.SQL(", ").join(map(sql.Identifier, found))))
    except psycopg.errors.QueryCanceled as error:
        raise psycopg.errors.LockNotAvailable(f"the locks of {', '.join(found)} took too long together") from error
    connection.execute(_NO_LOCKS_TIMEOUT)


def _patiently(connection: Conn, work: Callable[[], object], what: str) -> None:
    """Do some work; while another transaction holds a lock that it needs, roll back and try again."""
    deadline, never = monotonic_seconds() + PATIENCE_SECONDS, threading.Event()
    while True:
        try:
            work()
        except psycopg.errors.LockNotAvailable as error:
            connection.rollback()
            if monotonic_seconds() > deadline:
                raise MigrationError(
                    f"{what}: another transaction has held a lock for minutes ({str(error).splitlines()[0]}); end it "
                    "(`pg_stat_activity` has its start in `xact_start`), and run `tidewheel migrate` again"
                ) from error
            _LOG.info("%s: waiting for a lock, then trying again", what)
            never.wait(_PAUSE_SECONDS)
        else:
            return


def _read_applied(connection: Conn) -> dict[str, datetime]:
    if connection.execute(_SQL["migrations_table_exists"]).fetchone() != (True,):
        return {}
    known = {migration.name: migration.checksum for migration in migrations()}
    applied: dict[str, datetime] = {}
    for name, checksum, applied_at in connection.execute(_SQL["read_migrations"]).fetchall():
        # A newer database is accepted: migrations before a deploy (`pre`) suit the old code too.
        if str(name) in known and known[str(name)] != checksum:
            raise MigrationError(f"{name} was edited after it was applied to this database; restore the released file")
        applied[str(name)] = cast("datetime", applied_at)
    return applied
