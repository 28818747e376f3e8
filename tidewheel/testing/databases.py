"""Databases for tests: each a copy of one migrated template.

The next test uses the same copy, emptied. Copies are removed with their server. Dropping one forces a checkpoint, which
flushes every file of every database: 0.4 to 1 s a test were measured on two busy cores, against 0.02 s for emptying.
A table of few pages is emptied by DELETE: TRUNCATE writes a new file for the table and each of its indexes.
"""

from collections.abc import Mapping
from contextlib import closing, nullcontext
from datetime import datetime
from typing import LiteralString, cast
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidewheel import task_token_keys
from tidewheel.errors import Unusable
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.partitions import day_of, ensure_days, forget_days
from tidewheel.postgres.session import Conn, connect
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation

# As in production databases, but for the offset and the instant, which only databases made for tests have.
CLOCK: LiteralString = """
CREATE TABLE test_clock (stands_at timestamptz, ahead interval NOT NULL DEFAULT '0');
INSERT INTO test_clock DEFAULT VALUES;
GRANT SELECT ON test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION tidewheel_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (SELECT coalesce(stands_at, clock_timestamp()) + ahead FROM test_clock);
"""

# What no test made.
_KEPT = ["tidewheel_migrations", "settings", "schemas", "message_keys", "task_token_keys"]
# Returns each table and partition, with its parent or itself, and the bytes of its file. A query for rows would open
# all indexes, and TRUNCATE of a parent would write new files for each of its partitions.
_TABLES: LiteralString = """
SELECT c.relname::text, coalesce(p.relname, c.relname)::text,
       CASE c.relkind WHEN 'r' THEN pg_relation_size(c.oid) ELSE 0 END
  FROM pg_class AS c
  LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND c.relispartition
  LEFT JOIN pg_class AS p ON p.oid = i.inhparent
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> ALL (%s)
 ORDER BY 1
"""
# A trigger that a test leaves would act in the tests that get the copy next, or hold them up.
_TRIGGERS: LiteralString = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgparentid = 0"
# Statements are planned for each partition. A new copy has 20.
_MOST_PARTITIONS = 60
# DELETE leaves dead rows. Below ten pages PostgreSQL plans for a table without statistics as for an empty one.
_FEW_BYTES = 8 * 8192
_EMPTY: Mapping[str, LiteralString] = {
    "tenants": "DELETE FROM tenants; INSERT INTO tenants (tenant) VALUES ('default')",
    "test_clock": "UPDATE test_clock SET stands_at = NULL, ahead = '0'",
}
_ALONE: LiteralString = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

_HAS_SCRAM_ITERATIONS = 160_000


class Template:
    """A migrated database, and the copies of it that tests use.

    Args:
        server_url: A database of the server on which they are made; nothing in it is touched.
        extra: SQL that the copies have had too, such as `CLOCK`.
        roles: The passwords of the services' roles, by service; without, services connect as the owner of the tables.
    """

    def __init__(
        self, server_url: str, name: str, extra: LiteralString = "", *, roles: Mapping[str, str] | None = None
    ) -> None:
        self._server_url, self.name = server_url, f"{name}_{uuid4().hex[:8]}"
        self._admin = self._connect()
        # Copying files takes half the time of logging them, and forces two checkpoints: cheap where nothing is flushed.
        flushes = self._admin.execute("SELECT current_setting('fsync')::bool").fetchone() == (True,)
        self._strategy: LiteralString = "WAL_LOG" if flushes else "FILE_COPY"
        self._clean: list[str] = []
        self._left: dict[str, Conn] = {}
        self._execute("CREATE DATABASE {}", self.name)
        url = self._url(self.name)
        # An iteration more makes no guess of such a password harder, and costs each connection.
        has_iterations = roles is not None and self._admin.info.server_version >= _HAS_SCRAM_ITERATIONS
        migrate(make_conninfo(url, options="-c scram_iterations=1") if has_iterations else url, roles=roles)
        with connect(url, "template") as connection:
            if extra:
                connection.execute(extra)
            self.installation = read_installation(connection, Connections.load(http_allow_private=True))
            task_token_keys.refresh(self.installation.task_tokens, connection)
            self._triggers = connection.execute(_TRIGGERS).fetchone()
            self._tables = {str(parent) for _, parent, _ in connection.execute(_TABLES, [_KEPT])}

    def copy(self) -> str:
        """Create a copy for one test; return its URL."""
        name = f"test_{uuid4().hex[:16]}"
        self._execute(f"CREATE DATABASE {{}} TEMPLATE {{}} STRATEGY {self._strategy}", name, self.name)
        return self._url(name)

    def take(self) -> str:
        """Return the URL of an empty copy."""
        return self._clean.pop() if self._clean else self.copy()

    def take_left(self, url: str) -> Conn | None:
        """Return the connection to a copy that the test before has left: its server process knows the tables."""
        return self._left.pop(url, None)

    def give_back(self, url: str, left: Conn | None = None) -> None:
        """Empty a copy for the next test; drop one with many days or with other triggers.

        Args:
            left: A connection of the test in autocommit that prepares nothing, which is cheaper than a new one;
                `take_left` returns it.
        """
        with closing(connect(url, "empty", autocommit=True)) if left is None else nullcontext(left) as connection:
            forget_days(connection)  # the test, or a process that it started, may have dropped some
            connection.execute("DISCARD ALL")
            connection.execute(_ALONE)
            tables = cast("list[tuple[str, str, int]]", connection.execute(_TABLES, [_KEPT]).fetchall())
            days = sum(name != parent for name, parent, _ in tables)
            if days > _MOST_PARTITIONS or connection.execute(_TRIGGERS).fetchone() != self._triggers:
                connection.close()
                self.drop(url)
                return
            with connection.transaction():
                self._empty(connection, tables)
        self._clean.append(url)
        if left is not None:
            self._left[url] = left

    def drop(self, url: str) -> None:
        """Drop a copy; its open connections are closed."""
        name = cast("str", conninfo_to_dict(url)["dbname"])
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def close(self, *, drop: bool = False) -> None:
        """Close; drop the databases now if the server is not the tests' own."""
        for connection in self._left.values():
            connection.close()
        if drop:
            for url in self._clean:
                self.drop(url)
            self.drop(self._url(self.name))
        self._admin.close()

    def _empty(self, connection: Conn, tables: list[tuple[str, str, int]]) -> None:
        made = [name for name, parent, _ in tables if parent not in self._tables]
        filled = {name: size for name, _, size in tables if size and name not in {*made, *_EMPTY}}
        # Without triggers, which a superuser alone can leave out, no order of the tables matters.
        most = _FEW_BYTES if connection.info.parameter_status("is_superuser") == "on" else 0
        large = [name for name, size in filled.items() if size > most]
        for statement, names in (sql.SQL("DROP TABLE {} CASCADE"), made), (sql.SQL("TRUNCATE {} CASCADE"), large):
            if names:
                connection.execute(statement.format(sql.SQL(", ").join(map(sql.Identifier, names))))
        if few := filled.keys() - large:
            deletes = sql.SQL("; ").join(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)) for name in sorted(few))
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(deletes)
            connection.execute("SET LOCAL session_replication_role = origin")
        for name in self._tables.intersection(_EMPTY):  # tenants after what refers to them
            connection.execute(_EMPTY[name])
        connection.execute("DELETE FROM settings WHERE name = 'topic_prefix' OR starts_with(name, 'payload_schema/')")
        connection.execute("SELECT setval('catch_up_pace', 0, false)")

    def _connect(self) -> psycopg.Connection:
        try:
            return psycopg.connect(self._server_url, autocommit=True)
        except psycopg.OperationalError as error:
            raise Unusable(f"the server that tests are to use does not answer: {error}") from error

    def _url(self, name: str) -> str:
        return make_conninfo(self._server_url, dbname=name)

    def _execute(self, statement: LiteralString, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def stop_clock(connection: Conn, at: datetime) -> None:
    """Stop the clock of a database that has `CLOCK` at an instant; create the partitions of its day."""
    connection.execute("UPDATE test_clock SET stands_at = %s, ahead = '0'", [at])
    ensure_days(connection, [day_of(at)])
