"""Restore an archived day into tables of the schema `tidewheel_archive`, for reading by SQL.

Tidewheel reads none of them. In its own tables retention would drop a restored run within the hour, and code that
creates its id again would find it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import sql

from tidewheel.control.archive.containers import Record, read_rows
from tidewheel.control.archive.manifest import FACTS, RUNS, Manifest
from tidewheel.control.archive.stores import Store
from tidewheel.errors import SettingsError
from tidewheel.postgres.session import Conn

SCHEMA = "tidewheel_archive"
_INFINITY = "infinity"

_CREATE: LiteralString = """
CREATE SCHEMA IF NOT EXISTS tidewheel_archive;
CREATE TABLE IF NOT EXISTS tidewheel_archive.finished_runs (LIKE finished_runs);
CREATE TABLE IF NOT EXISTS tidewheel_archive.attempts (LIKE attempts);
CREATE TABLE IF NOT EXISTS tidewheel_archive.run_inputs (LIKE run_inputs);
CREATE TABLE IF NOT EXISTS tidewheel_archive.facts (
    day date NOT NULL, kind text NOT NULL, tenant text NOT NULL, job_id uuid, at timestamptz NOT NULL,
    "row" jsonb NOT NULL
);
ALTER TABLE tidewheel_archive.finished_runs ADD COLUMN IF NOT EXISTS day date, ADD COLUMN IF NOT EXISTS job_key text;
ALTER TABLE tidewheel_archive.attempts ADD COLUMN IF NOT EXISTS day date;
ALTER TABLE tidewheel_archive.run_inputs ADD COLUMN IF NOT EXISTS day date;
CREATE INDEX IF NOT EXISTS restored_runs_by_id ON tidewheel_archive.finished_runs (run_id);
CREATE INDEX IF NOT EXISTS restored_attempts_by_id ON tidewheel_archive.attempts (run_id)
"""


class _Table(NamedTuple):
    """A table of the schema, with the columns that a restored row has."""

    name: str
    columns: Sequence[str]


_RUNS = _Table("finished_runs", (
    "run_id", "tenant", "job_id", "job_key", "job_version", "shard", "cause", "queue", "lane", "state", "scheduled_at",
    "publish_at", "created_at", "started_at", "finished_at", "attempt", "executor_id", "claimed_from", "parent_run_id",
    "root_run_id", "request_id", "requested_from", "reason", "error_type", "workflow_run_id", "generation",
    "concurrency_key",
))  # fmt: skip
_ATTEMPTS = _Table("attempts", (
    "run_id", "tenant", "attempt", "outcome", "started_at", "finished_at", "executor_id", "claimed_from", "error_type",
    "error_message",
))  # fmt: skip
_INPUTS = _Table("run_inputs", (
    "run_id", "tenant", "created_at", "payload", "payload_content_type", "labels", "overlap", "traceparent", "late_ms",
))  # fmt: skip
_FACTS = _Table("facts", ("kind", "tenant", "job_id", "at", "row"))
_TABLES = (_RUNS, _ATTEMPTS, _INPUTS, _FACTS)


def restore_day(connection: Conn, store: Store, manifest: Manifest) -> None:
    """Write the rows of a day in place of those that an earlier restore has written, in one transaction.

    Args:
        connection: With autocommit, of the owner of the tables.

    Raises:
        ArchiveDamaged: A block is not what was written; nothing was restored.
    """
    day = manifest.day
    try:
        with connection.transaction():
            connection.execute(_CREATE)
            _delete(connection, day)
            for rows in read_rows(store, manifest, RUNS):
                _copy(connection, _RUNS, day, map(_run, rows))
                _copy(connection, _ATTEMPTS, day, (_of(row, each) for row in rows for each in row["attempts"]))
                _copy(connection, _INPUTS, day, (_inputs(row) for row in rows if row["inputs"]))
            for rows in read_rows(store, manifest, FACTS):
                _copy(connection, _FACTS, day, rows)
    except psycopg.errors.InsufficientPrivilege as error:
        message = (
            f"the schema {SCHEMA} cannot be written: {error}; grant CREATE on the database to {connection.info.user}"
        )
        raise SettingsError(message) from error


def drop_restored(connection: Conn, day: date | None = None) -> bool:
    """Delete the restored rows of a day, or the schema with all of them; return False if the day has none."""
    if day is None:
        connection.execute("DROP SCHEMA IF EXISTS tidewheel_archive CASCADE")
        return True
    if not _is_there(connection):
        return False
    with connection.transaction():
        return _delete(connection, day) > 0


def remove_restored_tenants(connection: Conn, tenants: Iterable[str]) -> None:
    """Delete the restored rows of deleted tenants."""
    if _is_there(connection):
        for table in _TABLES:
            statement = sql.SQL("DELETE FROM {} WHERE tenant = ANY (%s)").format(sql.Identifier(SCHEMA, table.name))
            connection.execute(statement, [list(tenants)])


def _is_there(connection: Conn) -> bool:
    return connection.execute("SELECT to_regclass('tidewheel_archive.facts') IS NOT NULL").fetchone() == (True,)


def _delete(connection: Conn, day: date) -> int:
    """Delete the rows of a day; return their number."""
    rows = 0
    for table in _TABLES:
        statement = sql.SQL("DELETE FROM {} WHERE day = %s").format(sql.Identifier(SCHEMA, table.name))
        rows += connection.execute(statement, [day]).rowcount
    return rows


def _copy(connection: Conn, table: _Table, day: date, rows: Iterable[Record]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, ("day", *table.columns)))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(SCHEMA, table.name), columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row([day, *_values(table, row)])


def _values(table: _Table, row: Record) -> Iterator[object]:
    return (row[name] for name in table.columns)


def _run(row: Record) -> Record:
    return {**row, "publish_at": row["publish_at"] or _INFINITY}


def _of(run: Record, row: Record) -> Record:
    """Return a row of a run with the columns that name it."""
    return {**row, "run_id": run["run_id"], "tenant": run["tenant"]}


def _inputs(run: Record) -> Record:
    inputs = run["inputs"]
    return {**_of(run, inputs), "labels": json.dumps(inputs["labels"])}
