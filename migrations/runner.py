"""Apply the numbered SQL of this folder: forward only, with checksums, by one runner at a time.

The database records each applied file with the hash of its text. A released file that was edited afterwards is refused,
so that no database holds half of it. Each pending file is one transaction, in the order of the numbers.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import LiteralString, cast

from tidewheel.errors import MigrationError
from tidewheel.migrations.row_security import REMEDY, TENANT_ROLE, ownership_problem, secure_tables
from tidewheel.migrations.service_roles import create_roles, grant_rights, has_roles
from tidewheel.postgres.partitions import ensure_coming_days
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements, trusted

_LOG = logging.getLogger("tidewheel.migrations")

_NO_HURRY = "-c lock_timeout=0 -c statement_timeout=0"  # to wait for a runner, or for a new index, takes long

_FILE = re.compile(r"^(?P<number>\d{4})_[a-z0-9_]+\.sql$")

_CREATED = re.compile(r"^CREATE (?:TABLE|VIEW) (\w+)", re.MULTILINE)

_SQL = Statements("tidewheel.migrations")
_MAKE_TABLE = _SQL["make_migrations_table"]
_TABLE_EXISTS = _SQL["migrations_table_exists"]
_APPLIED = _SQL["read_migrations"]
_RECORD = _SQL["record_migration"]
_LOCK = _SQL["lock_migrations"]


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
        message = f"two migrations have one number: {[migration.name for migration in found]}"
        raise MigrationError(message)
    return tuple(found)


def created_names() -> list[str]:
    """Return the tables and views that the migrations create."""
    return [name for migration in migrations() for name in _CREATED.findall(migration.text)]


def status(url: str) -> list[Status]:
    """Return the state of each migration.

    Raises:
        Unavailable: The database does not respond.
        MigrationError: An applied file was edited. A migration of a newer release is no error.
    """
    with connect(url, "tidewheel-migrate") as connection:
        applied = _read_applied(connection)
    return [
        Status(
            migration.name,
            MigrationState.APPLIED if migration.name in applied else MigrationState.PENDING,
            applied.get(migration.name),
        )
        for migration in migrations()
    ]


def migrate(
    url: str, *, dry_run: bool = False, tenant_role: str | None = TENANT_ROLE, roles: Mapping[str, str] | None = None
) -> list[str]:
    """Apply the pending migrations and store the schemas of this release.

    Args:
        url: The database.
        dry_run: Apply everything, then roll back.
        tenant_role: As for `secure_tables`; a role that cannot be used is logged, and the rest is done.
        roles: Create the roles of the services, with these passwords by service; None leaves them as they are.

    Returns:
        The names of the applied files; with `dry_run` of those that would be applied.

    Raises:
        Unavailable: The database does not respond.
        MigrationError: An applied file was edited, or a role cannot be created. A migration of a newer release is no
            error.
    """
    from tidewheel.migrations.stored_schemas import (
        store_schemas,  # imports the codec, which `require_current` does not need
    )

    with connect(url, "tidewheel-migrate", options=_NO_HURRY) as connection:
        # The session holds it, so that a second runner waits for all files; released with the connection.
        connection.execute(_LOCK)
        applied = _read_applied(connection)
        connection.execute(_MAKE_TABLE)
        pending = [migration for migration in migrations() if migration.name not in applied]
        for migration in pending:
            connection.execute(migration.text)
            connection.execute(_RECORD, {"name": migration.name, "checksum": migration.checksum})
            if not dry_run:
                connection.commit()
        store_schemas(connection)
        if (problem := secure_tables(connection, created_names(), tenant_role)) is not None:
            _LOG.warning("no session can act for a tenant as the role %s: %s; %s", tenant_role, problem, REMEDY)
        if roles is not None:
            create_roles(connection, roles, tenant_role)
        if has_roles(connection):
            grant_rights(connection)
        if dry_run:
            connection.rollback()
        else:
            connection.commit()
            ensure_coming_days(connection)
    return [migration.name for migration in pending]


def require_current(connection: Conn) -> None:
    """Check that the database has this release's migrations, and shows its rows; each service calls it.

    Raises:
        MigrationError: Some are missing, or row-level security hides all rows; the message names the remedy.
    """
    applied = _read_applied(connection)
    missing = [migration.name for migration in migrations() if migration.name not in applied]
    problem = None if missing else ownership_problem(connection)
    connection.rollback()
    if missing:
        message = f"the database lacks {', '.join(missing)}; run `tidewheel migrate`"
        raise MigrationError(message)
    if problem is not None:
        raise MigrationError(problem)


def has_newer(connection: Conn) -> bool:
    """Return True if a newer release has migrated the database: it records a file that this release lacks."""
    applied = {str(name) for name, *_ in connection.execute(_APPLIED)}
    return not applied <= {migration.name for migration in migrations()}


def _read_applied(connection: Conn) -> dict[str, datetime]:
    if connection.execute(_TABLE_EXISTS).fetchone() != (True,):
        return {}
    known = {migration.name: migration.checksum for migration in migrations()}
    applied: dict[str, datetime] = {}
    for name, checksum, applied_at in connection.execute(_APPLIED).fetchall():
        # A newer database is accepted: migrations before a deploy (`pre`) suit the old code too.
        if str(name) in known and known[str(name)] != checksum:
            message = f"{name} was edited after it was applied to this database; restore the released file"
            raise MigrationError(message)
        applied[str(name)] = cast("datetime", applied_at)
    return applied
