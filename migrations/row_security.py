"""Row-level security: a session that acts for a tenant finds and writes no other tenant's rows.

`tidewheel migrate` calls `secure_tables` last. So each table with a column `tenant` has the policy, and a new table
needs no line of its own. The owner of the tables is exempt: services work for all tenants, and they COPY, which
row-level security refuses. Partitions have no grants, so the role reaches their rows through the parents alone.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import LiteralString, cast

import psycopg
from psycopg import sql

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

TENANT_ROLE = "tidewheel_tenant"
REMEDY = "create the role and grant it as docs/access.md shows, then run `tidewheel migrate`"

_SQL = Statements("tidewheel.migrations")

_ALL: tuple[LiteralString, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")
# The rights of the role where they differ: on tables with a tenant all, on others and on views none.
_RIGHTS: Mapping[str, tuple[LiteralString, ...]] = MappingProxyType(
    {
        "archived_days": ("SELECT",),
        "ended_attempts": ("SELECT",),
        "runs": ("SELECT",),
        "audit_log": ("SELECT", "INSERT", "UPDATE"),  # its trigger refuses every change but a counter's
        "claims_lock": ("UPDATE",),
        "executors": ("SELECT",),
        "kept_since_lock": ("DELETE",),
        "outbox": ("INSERT",),
        "run_days": ("SELECT",),
        "tenant_deletions": ("SELECT",),
        "tenant_periods": ("SELECT",),
        "tenant_roles": ("SELECT",),
        "tenants": ("SELECT",),
    }
)

_SEQUENCES: Mapping[str, LiteralString] = MappingProxyType(
    {"catch_up_pace": "SELECT, UPDATE", "cancellations_id_seq": "USAGE", "freezes_id_seq": "USAGE"}
)

_CREATE_ROLE: LiteralString = "CREATE ROLE {} NOLOGIN"
_GRANT_ROLE: LiteralString = "GRANT {} TO CURRENT_USER"
_ENABLE: LiteralString = "ALTER TABLE {} ENABLE ROW LEVEL SECURITY"
_CREATE_POLICY: LiteralString = """
CREATE POLICY of_tenant ON {} USING (tenant = current_setting('tidewheel.tenant', true))
"""


def secure_tables(connection: Conn, names: Collection[str], role: str | None) -> str | None:
    """Create the missing policies, the role and its grants, in a transaction of the tables' owner.

    Other tables of the schema than these stay as they are. The API and `Client` act for a tenant as the role, or as the
    owner if it is None. Return the reason why no session can act as the role; None if it can.
    """
    for name in unsecured_tables(connection, names):
        table = sql.Identifier(name)
        connection.execute(sql.SQL(_ENABLE).format(table))
        if connection.execute(_SQL["find_policy"], {"table": name}).fetchone() is None:
            connection.execute(sql.SQL(_CREATE_POLICY).format(table))
    if role is None:
        connection.execute(_SQL["forget_tenant_role"])
        return None
    if (problem := _ensure_role(connection, role)) is not None:
        return problem
    named = sql.Identifier(role)
    [(schema,)] = cast("list[tuple[str]]", connection.execute("SELECT current_schema()").fetchall())
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), named))
    for name, _, has_tenant, granted in _tables(connection, names, role):
        rights = _RIGHTS.get(name, _ALL if has_tenant else ())
        if set(granted) != set(rights):
            table = sql.Identifier(name)
            connection.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(table, named))
            if rights:
                connection.execute(
                    sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(", ").join(map(sql.SQL, rights)), table, named)
                )
    for name, right in _SEQUENCES.items():
        statement = sql.SQL("GRANT {} ON SEQUENCE {} TO {}")
        connection.execute(statement.format(sql.SQL(right), sql.Identifier(name), named))
    if (problem := role_problem(connection, role)) is None:
        connection.execute(_SQL["record_tenant_role"], {"role": role})
    return problem


def role_problem(connection: Conn, role: str) -> str | None:
    """Return the reason why this session cannot act as the role, or sees all rows as it; None if it can."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            if connection.execute(_SQL["is_bound"]).fetchone() != (True,):
                return "row-level security does not bind it: it is a superuser, has BYPASSRLS or owns the tables"
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    return None


def ownership_problem(connection: Conn) -> tuple[str, str] | None:
    """Return why this session sees no row of any tenant, and the remedy; None if it sees all."""
    if connection.execute(_SQL["is_bound"]).fetchone() != (True,):
        return None
    return (
        f"row-level security hides all rows from the user {connection.info.user}, which does not own the tables",
        f"run `ALTER TABLE … OWNER TO {connection.info.user}` for each of them, or connect as their owner, or as a "
        "role of `tidewheel migrate --roles`",
    )


def unsecured_tables(connection: Conn, names: Collection[str]) -> list[str]:
    """Return those of these tables that have a tenant, but no policy in force."""
    found = _tables(connection, names, None)
    return [name for name, is_secured, has_tenant, _ in found if has_tenant and not is_secured]


def _tables(connection: Conn, names: Collection[str], role: str | None) -> list[tuple[str, bool, bool, list[str]]]:
    columns = {"names": list(names), "role": role, "rights": list(_ALL)}
    return cast("list[tuple[str, bool, bool, list[str]]]", connection.execute(_SQL["find_tables"], columns).fetchall())


def _ensure_role(connection: Conn, role: str) -> str | None:
    """Create the role, and let this session's user act as it; return the reason if it cannot."""
    named = sql.Identifier(role)
    if connection.execute(_SQL["find_role"], {"role": role}).fetchone() is None:
        problem = _tried(connection, sql.SQL(_CREATE_ROLE).format(named))
        if problem is not None and connection.execute(_SQL["find_role"], {"role": role}).fetchone() is None:
            return problem
    set_role = sql.SQL("SET LOCAL ROLE {}").format(named)
    if (problem := _tried(connection, set_role, kept=False)) is None:
        return None
    _tried(connection, sql.SQL(_GRANT_ROLE).format(named))
    return _tried(connection, set_role, kept=False) and problem


def _tried(connection: Conn, statement: sql.Composed, *, kept: bool = True) -> str | None:
    """Execute a statement; return its error, after which the transaction goes on."""
    try:
        with connection.transaction(force_rollback=not kept):
            connection.execute(statement)
    except psycopg.errors.LockNotAvailable:
        raise  # another session creates the role: the caller tries again
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    return None
