"""Remove the rows of a tenant whose jobs and runs have ended, from every table with a column `tenant`.

The tables are those of the catalog, so no new one is left out. Where an index begins with the tenant, a pass reads the
rows of the tenant alone, in the order of that index, and begins where the last transaction has ended. Else it reads the
table by ranges of pages. The last pass finds no row.
"""

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import LiteralString, NamedTuple, cast

from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.migrations.runner import created_names
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

# The table and its columns are names of the catalog, so these are no statements of queries.sql. The first one begins
# where the last one has ended: dead entries of removed rows stay in an index until a vacuum.
_REMOVE_INDEXED: LiteralString = """
WITH found AS MATERIALIZED (
    SELECT {columns} FROM {table} AS r WHERE r.tenant = %(tenant)s {beyond} ORDER BY {order} LIMIT %(limit)s
), removed AS (
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT f.place FROM found AS f))
)
SELECT count(*) OVER (), {key} FROM found AS f ORDER BY {backwards} LIMIT 1
"""
_REMOVE_IN_PAGES: LiteralString = """
DELETE FROM {table} WHERE ctid >= %(first)s::text::tid AND ctid < %(end)s::text::tid AND tenant = %(tenant)s
"""

_TRANSACTION_SECONDS = 0.05  # after which a removal commits
_REMOVED_ROWS = 1000
_PAGES = 64  # half a megabyte, and no more than some thousand rows
_DAYS_WRITTEN = timedelta(days=2)  # before a moment: an older partition has no row that was written after it
_DAY = re.compile(r"_\d{8}$")  # the end of a partition's name

# No pass removes rows of these: runs end, the audit log stays, the deletion itself reserves the name.
KEPT = frozenset({"job_runs", "audit_log", "tenant_deletions"})


class Deletion(NamedTuple):
    """The deletion of a tenant, locked."""

    tenant: str
    created_at: datetime
    accepted_at: datetime
    state: str
    begun: bool
    removed: Mapping[str, int]
    round: int
    round_rows: int
    at_table: str | None
    at_page: int
    at_key: list[str] | None


class TenantTable(NamedTuple):
    """A table or a partition with a tenant; `columns` follow it in an index that has it first."""

    name: str
    columns: list[str] | None
    collations: list[str | None] | None
    pages: int


class _Place(NamedTuple):
    """The position in a table: the next page, or the last key of the index."""

    page: int = 0
    key: list[str] | None = None


class TenantRows:
    """Removes the rows of tenants; one walk reads the catalog once."""

    def __init__(self, installation: Installation, keep: timedelta) -> None:
        self._installation, self._keep = installation, keep
        self._tables: dict[tuple[str, bool], list[TenantTable]] = {}

    def forget_tables(self) -> None:
        """Read the catalog again at the next removal: partitions come and go, and tables grow."""
        self._tables.clear()

    def remove(self, connection: Conn, deletion: Deletion) -> bool:
        """Remove the next rows; end the deletion after a pass that has found none."""
        tables = self._read_tables(connection, deletion)
        names = [table.name for table in tables]
        # A partition that was dropped meanwhile begins the pass again.
        number = names.index(deletion.at_table) if deletion.at_table in names else 0
        place = _Place(deletion.at_page, deletion.at_key) if deletion.at_table in names else _Place()
        removed, rows, until = dict(deletion.removed), 0, monotonic_seconds() + _TRANSACTION_SECONDS
        while number < len(tables) and rows < _REMOVED_ROWS and monotonic_seconds() < until:
            table = tables[number]
            some, behind = _remove_some(connection, deletion.tenant, table, place)
            if some:
                kind = _DAY.sub("", table.name)
                removed[kind] = removed.get(kind, 0) + some
                rows += some
            number, place = (number + 1, _Place()) if behind is None else (number, behind)
        rows += deletion.round_rows
        ended = number == len(tables)
        if ended and rows == 0:
            topic = self._installation.topics.requests_of(deletion.tenant)
            connection.execute(_SQL["drop_intake_offsets"], {"topic": topic})
            connection.execute(_SQL["finish_deletion"], {"tenant": deletion.tenant, "keep": self._keep})
            _LOG.info("deleted tenant %s with %d rows", deletion.tenant, sum(removed.values()))
            return False
        columns: dict[str, object] = {
            "tenant": deletion.tenant,
            "removed": Jsonb(removed),
            "round": deletion.round + ended,
            "round_rows": 0 if ended else rows,
            "at_table": None if ended else names[number],
            "at_page": place.page,
            "at_key": place.key,
        }
        connection.execute(_SQL["advance_deletion"], columns)
        return True

    def _read_tables(self, connection: Conn, deletion: Deletion) -> list[TenantTable]:
        """Return the tables of a pass, without partitions that can have no row of the tenant.

        The first pass leaves out those of days before the tenant was created. The later ones leave out those of days
        before the acceptance, which nothing writes.
        """
        is_first = deletion.round == 1
        key = deletion.tenant, is_first
        if key not in self._tables:
            oldest = (deletion.created_at if is_first else deletion.accepted_at) - _DAYS_WRITTEN
            self._tables[key] = find_tenant_tables(connection, f"{oldest:%Y%m%d}")
        return self._tables[key]


def find_tenant_tables(connection: Conn, oldest: str) -> list[TenantTable]:
    """Return the tables with a tenant whose rows are removed, without partitions before the oldest day."""
    names = [name for name in created_names() if name not in KEPT]
    return read_rows(connection, class_row(TenantTable), _SQL["find_tenant_tables"], {"names": names, "oldest": oldest})


def removal_from(table: TenantTable, after: list[str] | None) -> sql.Composed:
    """Return the statement that removes rows of a tenant: behind a key, or of a range of pages."""
    name = sql.Identifier(table.name)
    if table.columns is None:
        return sql.SQL(_REMOVE_IN_PAGES).format(table=name)
    collations = [_collate(each) for each in table.collations or ()]
    keys = [sql.Identifier("r", column) + each for column, each in zip(table.columns, collations, strict=True)]
    found = [sql.Identifier("f", column) for column in table.columns]
    comma = sql.SQL(", ")
    beyond: sql.Composable = sql.SQL("")
    if after is not None and keys:
        values = comma.join(sql.Placeholder(f"after_{number}") for number in range(len(keys)))
        # Not only behind the key: it may be one of several rows.
        beyond = sql.SQL("AND ({}) >= ({})").format(comma.join(keys), values)
    return sql.SQL(_REMOVE_INDEXED).format(
        table=name,
        columns=comma.join([sql.SQL("r.ctid AS place"), *(sql.Identifier("r", column) for column in table.columns)]),
        beyond=beyond,
        order=comma.join([sql.SQL("r.tenant"), *keys]),
        key=sql.SQL("ARRAY[{}]::text[]").format(comma.join(each + sql.SQL("::text") for each in found)),
        backwards=comma.join(
            [
                *(each + of + sql.SQL(" DESC") for each, of in zip(found, collations, strict=True)),
                sql.SQL("f.place DESC"),
            ]
        ),
    )


def _collate(collation: str | None) -> sql.Composable:
    return sql.SQL("") if collation is None else sql.SQL(" COLLATE {}").format(sql.Identifier(collation))


def _remove_some(connection: Conn, tenant: str, table: TenantTable, place: _Place) -> tuple[int, _Place | None]:
    if table.columns is None:
        if place.page >= table.pages:
            return 0, None
        end = place.page + _PAGES
        pages = {"tenant": tenant, "first": f"({place.page},0)", "end": f"({end},0)"}
        removed = connection.execute(removal_from(table, None), pages).rowcount
        return removed, None if end >= table.pages else _Place(end)
    after = {f"after_{number}": value for number, value in enumerate(place.key or ())}
    columns: dict[str, object] = {"tenant": tenant, "limit": _REMOVED_ROWS, **after}
    row = connection.execute(removal_from(table, place.key), columns, binary=True).fetchone()
    if row is None:
        return 0, None
    rows, key = cast("tuple[int, list[str]]", row)
    return rows, _Place(key=key) if rows == _REMOVED_ROWS else None
