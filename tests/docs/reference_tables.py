"""The page of the tables, from the catalog of a migrated database."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from tempfile import mkdtemp
from typing import LiteralString, NamedTuple

from tests.docs.tables import table
from tidewheel.local.daemon import free_port
from tidewheel.local.postgres import Postgres
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import Conn, connect, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

_DUTIES: Mapping[str, str] = {
    "Jobs and their instants": "jobs job_versions job_edges timers overrides skips calendars job_calendars quarantine",
    "Open runs": (
        "job_runs run_inputs active_runs signals cancellations cancelled_jobs pending_cancels deferred_effects dedupes "
        "run_keys key_limits order_keys order_failures"
    ),
    "Ended runs": "finished_runs attempts attempt_outputs failed_runs dead_letters run_days job_days activity",
    "Workflows and batches": "workflows joins releases run_edges batches batch_runs",
    "Bulk work": "works redrives backfills",
    "Freezes": "freezes frozen_jobs",
    "Tenants": "tenants tenant_roles tenant_rates tenant_periods tenant_deletions job_rooms",
    "Messages": "outbox requests intake_offsets schemas",
    "Processes": "processes members executors unhandled_announcements relay_slices",
    "Access": "api_keys sign_ins message_keys task_token_keys audit_log",
    "Installation": "settings tidewheel_migrations retention_state archived_days",
    "Locks without rows": "claims_lock kept_since_lock retention_lock archive_lock restore_lock tenant_locks",
}
# The ends of names of columns that refer to a table.
_REFERS: Mapping[str, str] = {
    "job_id": "jobs",
    "run_id": "job_runs",
    "executor_id": "executors",
    "batch_id": "batches",
    "work_id": "works",
    "freeze_id": "freezes",
}
_HEAD = """\
# Tables

<!-- Generated from the catalog of a migrated database by `python -m tests.docs.reference`.
A test compares the two. Edit the migrations, and the duties in `tests/docs/reference_tables.py`. -->

The tables by their duties, each with its keys. Almost every table has a column `tenant`, by which
[row-level security](access.md#roles-and-grants) separates tenants. A column refers to a table by the end of its name,
such as `job_id`. PostgreSQL itself checks only the references that are marked: a run moves from `job_runs` to
`finished_runs` when it ends, and rows of closed days go with their partitions. The views `runs` and `ended_attempts`
join both. [Queries](operations.md#queries) for operators read these tables. Their columns may change with each release.
"""
_READ_TABLES: LiteralString = """
SELECT c.relname::text, coalesce(pg_get_partkeydef(c.oid), ''),
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       ARRAY(SELECT array_to_string(ARRAY(SELECT pg_get_indexdef(i.indexrelid, n, true)
                                            FROM generate_series(1, i.indnkeyatts) AS n), ', ')
               FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique
              ORDER BY NOT i.indisprimary, 1),
       ARRAY(SELECT f.confrelid::regclass::text
               FROM pg_constraint AS f WHERE f.conrelid = c.oid AND f.contype = 'f' ORDER BY 1)
  FROM pg_class AS c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""


class _Table(NamedTuple):
    name: str
    partitions: str
    columns: Sequence[str]
    keys: Sequence[str]
    checked: Sequence[str]


def tables_page(connection: Conn) -> str:
    """Return the tables of a migrated database by duty, with their keys."""
    with connection.cursor(row_factory=rows_of(_Table._make)) as cursor:
        found = {each.name: each for each in cursor.execute(_READ_TABLES).fetchall()}
    parts = [_HEAD]
    for duty, names in _DUTIES.items():
        rows = [_row(found.pop(name)) for name in names.split()]
        parts += [f"## {duty}", "", table(("Table", "Keys", "Refers to"), rows), ""]
    assert not found, f"write the duties of {', '.join(sorted(found))} into {Path(__file__).name}"
    return "\n".join(parts)


def _row(each: _Table) -> tuple[str, ...]:
    keys = [f"`{key}`" for key in each.keys]
    keys += [f"by day: `{each.partitions}`"] if each.partitions else []
    return f"`{each.name}`", "; ".join(keys), ", ".join(_references(each))


def _references(each: _Table) -> Iterator[str]:
    yield from (f"`{name}` (checked)" for name in each.checked)
    for column in each.columns:
        target = next((to for end, to in _REFERS.items() if column == end or column.endswith(f"_{end}")), each.name)
        if target != each.name and target not in each.checked:
            yield f"`{target}` by `{column}`"


@contextmanager
def migrated() -> Generator[Conn]:
    """Yield a connection to a new database of a server that runs for so long."""
    folder = Path(mkdtemp())
    server = Postgres(folder / "postgres", log=folder / "log", port=free_port(), password=token_hex(), lasting=False)
    try:
        server.start()
        migrate(server.url)
        with closing(connect(server.url, "test")) as connection:
            yield connection
    finally:
        server.stop("immediate")
        rmtree(folder)
