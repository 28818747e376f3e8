"""Archive closed days, remove old days and deleted tenants, restore a day, verify archives.

New files are written first, then the manifest takes the place of the one before, then the files that it no longer names
are deleted. Blocks and files without a deleted tenant stay as they are.

Restored rows have tables of their own, which Tidewheel does not read. In its own retention would drop a run within the
hour, and code that creates its id again would find it.

A day with a difference may be one that another process writes. So it is verified again, until neither its manifest nor
its files have changed meanwhile.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from hashlib import sha256
from typing import LiteralString, NamedTuple, cast

import psycopg
from psycopg import sql

from tidewheel.control.archive.containers import Parts, Record, raw_block, read_block, read_rows
from tidewheel.control.archive.days import (
    FACTS,
    RUNS,
    ArchivedDay,
    ArchiveFile,
    Block,
    Manifest,
    list_days,
    locked_archive,
    read_manifest,
)
from tidewheel.control.archive.export import (
    Round,
    archive_session,
    delete_others,
    export_days,
    record_day,
    write_manifest,
)
from tidewheel.control.archive.stores import MANIFEST, MissingFile, Store, manifest_text
from tidewheel.errors import ArchiveDamaged, SettingsError
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import HeldLock
from tidewheel.postgres.own_schema import own_schema
from tidewheel.postgres.partitions import day_of, stored_days
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_INFINITY = "infinity"
_PIECE_BYTES = 8 << 20  # read at once

_CREATE: LiteralString = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.finished_runs (LIKE finished_runs);
CREATE TABLE IF NOT EXISTS {schema}.attempts (LIKE attempts);
CREATE TABLE IF NOT EXISTS {schema}.run_inputs (LIKE run_inputs);
CREATE TABLE IF NOT EXISTS {schema}.facts (
    day date NOT NULL, kind text NOT NULL, tenant text NOT NULL, job_id uuid, at timestamptz NOT NULL,
    "row" jsonb NOT NULL
);
ALTER TABLE {schema}.finished_runs ADD COLUMN IF NOT EXISTS day date, ADD COLUMN IF NOT EXISTS job_key text;
ALTER TABLE {schema}.attempts ADD COLUMN IF NOT EXISTS day date;
ALTER TABLE {schema}.run_inputs ADD COLUMN IF NOT EXISTS day date;
CREATE INDEX IF NOT EXISTS restored_runs_by_id ON {schema}.finished_runs (run_id);
CREATE INDEX IF NOT EXISTS restored_attempts_by_id ON {schema}.attempts (run_id)
"""

_SQL = Statements("tidewheel.control.archive")


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


def restored_schema(connection: Conn) -> str:
    """Return the schema of the restored rows."""
    schema = own_schema(connection)
    return "tidewheel_archive" if schema is None else f"tidewheel_archive_{schema}"


def restore_day(connection: Conn, store: Store, manifest: Manifest) -> None:
    """Write the rows of a day in place of those that an earlier restore has written, in one transaction."""
    day = manifest.day
    try:
        with connection.transaction():
            connection.execute(sql.SQL(_CREATE).format(schema=sql.Identifier(restored_schema(connection))))
            _delete(connection, day)
            for rows in read_rows(store, manifest, RUNS):
                runs = ({**row, "publish_at": row["publish_at"] or _INFINITY} for row in rows)
                _copy(connection, _RUNS, day, runs)
                _copy(connection, _ATTEMPTS, day, (_of(row, each) for row in rows for each in row["attempts"]))
                _copy(connection, _INPUTS, day, (_inputs(row) for row in rows if row["inputs"]))
            for rows in read_rows(store, manifest, FACTS):
                _copy(connection, _FACTS, day, rows)
    except psycopg.errors.InsufficientPrivilege as error:
        schema, role = restored_schema(connection), connection.info.user
        raise SettingsError(
            f"the schema {schema} cannot be written: {error}; grant CREATE on the database to {role}"
        ) from error


def drop_restored(connection: Conn, day: date | None = None) -> bool:
    """Delete the restored rows of a day, or the schema with all of them; return False if the day has none."""
    if day is None:
        schema = sql.Identifier(restored_schema(connection))
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
        return True
    if not _is_there(connection):
        return False
    with connection.transaction():
        return _delete(connection, day) > 0


def remove_restored_tenants(connection: Conn, tenants: Iterable[str]) -> None:
    """Delete the restored rows of deleted tenants."""
    if _is_there(connection):
        for table in _TABLES:
            statement = sql.SQL("DELETE FROM {} WHERE tenant = ANY (%s)").format(_identifier(connection, table))
            connection.execute(statement, [list(tenants)])


def _is_there(connection: Conn) -> bool:
    facts = f"{restored_schema(connection)}.facts"
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [facts]).fetchone() == (True,)


def _identifier(connection: Conn, table: _Table) -> sql.Identifier:
    return sql.Identifier(restored_schema(connection), table.name)


def _delete(connection: Conn, day: date) -> int:
    rows = 0
    for table in _TABLES:
        statement = sql.SQL("DELETE FROM {} WHERE day = %s").format(_identifier(connection, table))
        rows += connection.execute(statement, [day]).rowcount
    return rows


def _copy(connection: Conn, table: _Table, day: date, rows: Iterable[Record]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, ("day", *table.columns)))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(_identifier(connection, table), columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row([day, *(row[name] for name in table.columns)])


def _of(run: Record, row: Record) -> Record:
    """Return a row of a run with the columns that name it."""
    return {**row, "run_id": run["run_id"], "tenant": run["tenant"]}


def _inputs(run: Record) -> Record:
    inputs = run["inputs"]
    return {**_of(run, inputs), "labels": json.dumps(inputs["labels"])}


def archive_closed_days(url: str, store: Store, keep: timedelta) -> Round:
    """Archive each closed day; remove days older than the archive's period, and deleted tenants."""
    with locked_archive(url) as lock, closing(archive_session(url)) as session, session.transaction() as connection:
        done = export_days(connection, store, url, lock)
        done.removed.extend(remove_old_days(connection, store, day_of(read_now(connection) - keep), lock))
        done.tenants.extend(remove_tenants(connection, store, lock))
        if done.tenants:
            remove_restored_tenants(connection, done.tenants)
        return done


def remove_tenants(connection: Conn, store: Store, lock: HeldLock) -> list[str]:
    """Remove the deleted tenants whose rows have left the database; return their names.

    The database has no row of them, so no day that is archived later has one.
    """
    found = cast("list[tuple[str]]", connection.execute(_SQL["find_tenants_to_remove"]).fetchall())
    tenants = [tenant for (tenant,) in found]
    if not tenants:
        return []
    recorded = {each.day.isoformat() for each in list_days(connection)}
    for day in store.days():
        changed = _without(store, day, set(tenants), lock)
        if changed is not None and day in recorded:
            record_day(connection, changed, lock)
    lock.check()
    for tenant in tenants:
        connection.execute(_SQL["record_tenant_removed"], {"tenant": tenant})
    return tenants


def remove_old_days(connection: Conn, store: Store, oldest: date, lock: HeldLock) -> list[date]:
    """Remove the runs of archived days before this one, whose partitions are dropped; return those days.

    Their facts stay: versions of an old day may be in force on a later one.
    """
    kept = {each.day for each in stored_days(connection) if each.table == "finished_runs"}
    days = [each.day for each in list_days(connection) if each.day < oldest and each.day not in kept]
    for day in days:
        if (text := manifest_text(store, day.isoformat())) is not None:
            manifest = read_manifest(day.isoformat(), text)
            tenants = dict.fromkeys(manifest.tenants, 0)
            changed = replace(manifest, runs=0, tenants=tenants, id_days=(), files=manifest.of_kind(FACTS))
            write_manifest(store, changed, text, lock)
        lock.check()
        connection.execute(_SQL["delete_archived_day"], {"day": day})
    return days


def _without(store: Store, day: str, tenants: set[str], lock: HeldLock) -> Manifest | None:
    """Write a day without some tenants; return its manifest, None if it has none of them."""
    if (text := manifest_text(store, day)) is None:
        return None
    manifest = read_manifest(day, text)
    gone = tenants & manifest.tenants.keys()
    if not gone:
        delete_others(store, manifest, lock)  # a process may have died before it did
        return None
    scratch = store.prepare()
    files: list[ArchiveFile] = []
    for file, touched in _touched(manifest, gone):
        if not touched:
            files.append(file)
            continue
        parts = Parts(day, file.kind, scratch, store, lock)
        for block in file.blocks:
            if block in touched:
                rows = read_block(store, day, file, block)
                parts.add([row for row in rows if row["tenant"] not in gone])
            else:
                parts.add_block(raw_block(store, day, file, block), block)
        parts.close()
        files += parts.files
    left = {tenant: runs for tenant, runs in manifest.tenants.items() if tenant not in gone}
    changed = replace(manifest, tenants=left, runs=sum(left.values()), files=tuple(files))
    write_manifest(store, changed, text, lock)
    return changed


def _touched(manifest: Manifest, tenants: set[str]) -> Iterator[tuple[ArchiveFile, set[Block]]]:
    """Yield the files of a day with those of their blocks that may have a row of the tenants."""
    rank = {name: number for number, name in enumerate(manifest.tenants)}
    ranks = [rank[tenant] for tenant in tenants]
    starts = [rank[block.tenant] for file in manifest.of_kind(RUNS) for block in file.blocks]
    ends = iter([*starts[1:], len(rank)])
    for file in manifest.files:
        if file.kind == FACTS:  # in no order of tenants
            yield file, set(file.blocks)
        else:
            spans = [(block, rank[block.tenant], next(ends)) for block in file.blocks]
            yield file, {block for block, first, last in spans if any(first <= each <= last for each in ranks)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between an archived day and what was written."""

    day: str
    file: str
    problem: str
    is_of_writer: bool = False  # a process that writes the day makes it, for as long as it writes


@dataclass(slots=True)
class Verified:
    """Totals of a verification."""

    days: int = 0
    files: int = 0
    runs: int = 0
    bytes: int = 0

    def add(self, other: "Verified") -> None:
        """Add the totals of a day."""
        self.days += other.days
        self.files += other.files
        self.runs += other.runs
        self.bytes += other.bytes


def verify(
    store: Store,
    days: Iterable[str],
    recorded: Callable[[], Iterable[ArchivedDay]],
    totals: Verified,
    is_written: Callable[[], bool],
) -> Iterator[Finding]:
    """Yield the differences of days; count what was read."""
    for day in days:
        while True:
            before = manifest_text(store, day), store.files(day)
            record = next((each for each in recorded() if each.day.isoformat() == day), None)
            read = Verified(days=1)
            findings = list(_verify_day(store, day, record, read))
            writes = bool(findings) and is_written()
            if not findings or before == (manifest_text(store, day), store.files(day)):
                break
        totals.add(read)
        yield from (each for each in findings if not (writes and each.is_of_writer))


def _verify_day(store: Store, day: str, record: ArchivedDay | None, totals: Verified) -> Iterator[Finding]:
    if (text := manifest_text(store, day)) is None:
        # Without a record the files are those of an archiver that died: the next one deletes them or writes them again.
        problem = "is missing" if record else "is missing: no archiver has finished this day"
        yield Finding(day, MANIFEST, problem, is_of_writer=record is None)
        return
    try:
        manifest = read_manifest(day, text)
    except ArchiveDamaged as error:
        yield Finding(day, MANIFEST, str(error))
        return
    sizes = store.files(day)
    for file in manifest.files:
        if file.name not in sizes:
            yield Finding(day, file.name, "is missing")
        elif sizes[file.name] != file.size:
            yield Finding(day, file.name, f"has {sizes[file.name]:,} bytes instead of {file.size:,}")
        elif _checksum(store, day, file) != file.sha256:
            yield Finding(day, file.name, "is damaged: its checksum differs")
        totals.files += 1
        totals.bytes += file.size
    for name in sorted(sizes.keys() - {MANIFEST, *(file.name for file in manifest.files)}):
        yield Finding(day, name, "is not named in the manifest", is_of_writer=True)
    rows = sum(file.rows for file in manifest.of_kind(RUNS))
    totals.runs += rows
    if record is not None and record.runs != rows:
        # A writer records the day after it has written the manifest.
        problem = f"has {rows:,} runs, but the database has recorded {record.runs:,}"
        yield Finding(day, MANIFEST, problem, is_of_writer=True)


def _checksum(store: Store, day: str, file: ArchiveFile) -> str:
    digest = sha256()
    with suppress(MissingFile):  # a rewrite has deleted it: the checksum differs then
        for offset in range(0, file.size, _PIECE_BYTES):
            digest.update(store.read(f"{day}/{file.name}", (offset, min(_PIECE_BYTES, file.size - offset))))
    return digest.hexdigest()
