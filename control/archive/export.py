"""Archive closed days: their runs with attempts and inputs, and the facts to recompute them.

Retention closes a day once no transaction can add a run to it. Rows of a closed day never change, so they are read page
by page, without a snapshot.

The order makes a death at any point harmless: files, then the manifest, then the record in the database that lets
retention drop the day. Files without a manifest are written again or deleted. A manifest without a record is adopted if
it has no fewer runs of any tenant than the database.

Retention spares a day because another one is recorded. Until the first record it is locked out.

Two processes that write one day would delete each other's files, so the lock is checked before each change.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID

from psycopg.rows import dict_row

from tidewheel.control.archive.containers import Parts, Record
from tidewheel.control.archive.days import FACTS, RUNS, ArchivedDay, Manifest, id_day, list_days, read_manifest
from tidewheel.control.archive.stores import MANIFEST, SETTING, Store, manifest_text
from tidewheel.errors import ArchiveDamaged, Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import HeldLock, held_lock
from tidewheel.postgres.partitions import start_of, stored_days
from tidewheel.postgres.session import BY_KEY, Conn, Session, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition

_SQL = Statements("tidewheel.control.archive")

# A statement may read a partition or all versions, and S3 may take minutes for a file.
OPTIONS = f"{BY_KEY} -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
_HAS_TRANSACTION_TIMEOUT = 170_000

_DAY = timedelta(days=1)
_PAGE_ROWS = 2000  # of a block: about 150 KB compressed, of which one run is found in 10 ms
_BLOCK_BYTES = 16 << 20  # of inputs, attempts or facts in a block: the memory that a page may take
_FETCHED_VERSIONS = 50  # each may have a payload of a megabyte
_KNOWN_VERSIONS = 50_000  # whose attempts are kept in mind, 250 bytes each
_FIRST = UUID(int=0)
_ALWAYS = "-infinity"


@dataclass(frozen=True, slots=True)
class Round:
    """Result of a round: archived days, those whose files were there already, and what was removed."""

    archived: list[ArchivedDay]
    adopted: list[date]
    removed: list[date]
    tenants: list[str]


def archive_session(url: str) -> Session:
    """Return the session of an archiver: without limits on the time of statements and transactions."""
    session = Session(url, "tidewheel-archive", autocommit=True, options=OPTIONS)
    if (connection := session.connection()).release >= _HAS_TRANSACTION_TIMEOUT:
        connection.execute("SELECT set_config('transaction_timeout', '0', false)")
    return session


def export_days(connection: Conn, store: Store, url: str, lock: HeldLock) -> Round:
    """Archive each closed day that is not archived yet, the oldest first, by an autocommit connection."""
    result = Round([], [], [], [])
    recorded = list_days(connection)
    if recorded:
        _check_archive(store, recorded[-1].day)
    else:
        with _without_retention(url) as retention:
            with connection.transaction():
                _adopt_dropped(connection, store, result, lock)
                retention.check()
            first = _days(connection, _SQL["find_days_to_archive"])[:1]
            if first and not result.archived:
                _archive(connection, store, first[0], result, lock)
    for day in _days(connection, _SQL["find_days_to_archive"]):
        _archive(connection, store, day, result, lock)
    return result


def _check_archive(store: Store, day: date) -> None:
    """Check that a store is the archive of the database: a folder that is not mounted has no day."""
    text = manifest_text(store, day.isoformat())
    if text is None:
        raise ArchiveDamaged(
            f"the archive has no manifest of {day}, which the database has recorded: mount the folder, correct"
            f" {SETTING}, or restore the day from a copy"
        )
    read_manifest(day.isoformat(), text)


def record_day(connection: Conn, manifest: Manifest, lock: HeldLock) -> None:
    """Record that a day is archived."""
    lock.check()
    columns = {"day": manifest.day, "runs": manifest.runs, "bytes": manifest.size, "id_days": list(manifest.id_days)}
    connection.execute(_SQL["record_archived_day"], columns)


def write_manifest(store: Store, manifest: Manifest, replaces: bytes | None, lock: HeldLock) -> None:
    """Write the manifest of a day, and delete the files that it does not name."""
    lock.check()
    store.write_manifest(manifest.day.isoformat(), manifest.encode(), replaces)
    delete_others(store, manifest, lock)


def delete_others(store: Store, manifest: Manifest, lock: HeldLock) -> None:
    """Delete the files of a day that its manifest does not name."""
    day = manifest.day.isoformat()
    named = {MANIFEST, *(file.name for file in manifest.files)}
    for name in store.files(day).keys() - named:
        lock.check()
        store.delete(f"{day}/{name}")


@contextmanager
def _without_retention(url: str) -> Generator[HeldLock]:
    """Keep retention from dropping and shortening days; a pass that is under way ends first."""
    with held_lock(url, "tidewheel-archive-retention", _SQL["lock_retention"], _SQL["lock_old_retention"]) as lock:
        if not lock.is_alone:
            raise Unavailable("retention is running; repeat the command when its pass has ended")
        yield lock


def _adopt_dropped(connection: Conn, store: Store, result: Round, lock: HeldLock) -> None:
    """Record the days that only the archive has, in the caller's transaction: all at once, or none."""
    stored = {each.day for each in stored_days(connection) if each.table == "finished_runs"}
    stored -= set(_days(connection, _SQL["find_dropped_days"]))
    for name in store.days():
        if (text := manifest_text(store, name)) is None:
            continue
        manifest = read_manifest(name, text)
        if manifest.runs and manifest.day not in stored:  # without runs it was beyond the archive's period
            _record(connection, manifest, result, lock)
            result.adopted.append(manifest.day)


def _archive(connection: Conn, store: Store, day: date, result: Round, lock: HeldLock) -> None:
    """Write a day, or adopt it; record it."""
    manifest = _standing(connection, store, day, lock)
    if manifest is not None:
        result.adopted.append(day)
    else:
        manifest = _export(connection, store, day, lock)
    failpoint("archiving.before_record")
    _record(connection, manifest, result, lock)


def _record(connection: Conn, manifest: Manifest, result: Round, lock: HeldLock) -> None:
    record_day(connection, manifest, lock)
    result.archived.append(ArchivedDay(manifest.day, manifest.runs, manifest.size, read_now(connection)))


def _standing(connection: Conn, store: Store, day: date, lock: HeldLock) -> Manifest | None:
    """Return the manifest that the archive has of a day without a record; None if it has none.

    It may have more runs than the database, where the period of a tenant has removed some.
    """
    if (text := manifest_text(store, day.isoformat())) is None:
        return None
    manifest = read_manifest(day.isoformat(), text)
    for tenant, rows in _count(connection, day).items():
        if rows > (written := manifest.tenants.get(tenant, 0)):
            raise ArchiveDamaged(
                f"the archive has {day} with {written:,} runs of {tenant}, but the database has {rows:,}; move the "
                f"folder days/{day} out of the archive, and repeat the command"
            )
    delete_others(store, manifest, lock)
    return manifest


def _export(connection: Conn, store: Store, day: date, lock: HeldLock) -> Manifest:
    """Write the files of a day, and then its manifest."""
    name, scratch, since = day.isoformat(), store.prepare(), _since(connection, day)
    tenants: dict[str, int] = {}
    id_days: set[int] = set()
    runs = Parts(name, RUNS, scratch, store, lock)
    for records in _pages(connection, start_of(day), start_of(day + _DAY)):
        for record in records:
            tenants[record["tenant"]] = tenants.get(record["tenant"], 0) + 1
            id_days.add(id_day(record["run_id"]))
        runs.add(records)
    runs.close()
    facts = Parts(name, FACTS, scratch, store, lock)
    for records in _facts(connection, since, start_of(day + _DAY)):
        for record in records:
            tenants.setdefault(record["tenant"], 0)
        facts.add(records)
    facts.close()
    _compare(connection, day, tenants)
    [(tzdata,)] = cast("list[tuple[str | None]]", connection.execute(_SQL["read_tzdata"]).fetchall())
    written = sum(tenants.values())
    manifest = Manifest(
        day, since is None, tzdata, written, tenants, tuple(sorted(id_days)), (*runs.files, *facts.files)
    )
    failpoint("archiving.before_manifest")
    write_manifest(store, manifest, None, lock)
    return manifest


def _compare(connection: Conn, day: date, written: Mapping[str, int]) -> None:
    """Compare what was read of a day with the database.

    The rows of a tenant that is being deleted may have gone meanwhile.
    """
    counted = _count(connection, day)
    deleted = {
        tenant for (tenant,) in cast("list[tuple[str]]", connection.execute(_SQL["find_deleted_tenants"]).fetchall())
    }
    for tenant in sorted(counted.keys() | written.keys() - deleted):
        rows, read = counted.get(tenant, 0), written.get(tenant, 0)
        if rows != read:
            raise Unavailable(f"{day} has {rows:,} runs of {tenant}, but {read:,} were read; repeat the command")


def _pages(connection: Conn, since: datetime, until: datetime) -> Iterator[list[Record]]:
    """Yield the runs of a day with their attempts and inputs, a block at a time."""
    tenant, run_id = "", str(_FIRST)
    known: dict[tuple[str, int], int] = {}
    while True:
        columns = {"since": since, "until": until, "tenant": tenant, "run_id": run_id, "limit": _PAGE_ROWS}
        rows = _read(connection, _SQL["read_runs_of_day"], columns)
        _add_max_attempts(connection, rows, known)
        oldest = min((row["created_at"] for row in rows), default=since)
        span = {"since": start_of(oldest.date()), "until": until}
        weights = connection.execute(
            _SQL["weigh_runs"], {**span, "run_ids": [row["run_id"] for row in rows]}
        ).fetchall()
        weighed = dict(cast("list[tuple[str, int]]", weights))
        for block in _blocks(rows, weighed):
            _add_inputs(connection, block, [row["run_id"] for row in block if row["run_id"] in weighed], span)
            yield block
        if len(rows) < _PAGE_ROWS:
            return
        tenant, run_id = rows[-1]["tenant"], rows[-1]["run_id"]


def _add_max_attempts(connection: Conn, rows: Sequence[Record], known: dict[tuple[str, int], int]) -> None:
    """Read the definitions of versions that are not known yet, each once, and a few at a time."""
    if len(known) > _KNOWN_VERSIONS:
        known.clear()
    missing = sorted({(row["job_id"], row["job_version"]) for row in rows} - known.keys())
    if missing:
        with connection.transaction(), connection.cursor("archived_versions") as cursor:
            cursor.itersize = _FETCHED_VERSIONS
            columns = {"job_ids": [job_id for job_id, _ in missing], "versions": [version for _, version in missing]}
            cursor.execute(_SQL["read_definitions"], columns, binary=True)
            for job_id, version, definition in cast("Iterator[tuple[str, int, bytes]]", iter(cursor)):
                known[job_id, version] = decode(definition, JobDefinition).retry.max_attempts
    for row in rows:
        row["max_attempts"] = known.get((row["job_id"], row["job_version"]))


def _blocks(rows: Sequence[Record], weights: dict[str, int]) -> Iterator[list[Record]]:
    """Divide a page by the bytes of inputs and attempts; only a single run may have more than a block."""
    block: list[Record] = []
    size = 0
    for row in rows:
        weight = weights.get(row["run_id"], 0)
        if block and size + weight > _BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append(row)
        size += weight
    if block:
        yield block


def _add_inputs(connection: Conn, rows: Sequence[Record], run_ids: Sequence[str], span: dict[str, datetime]) -> None:
    attempts: defaultdict[str, list[Record]] = defaultdict(list)
    inputs: dict[str, Record] = {}
    if run_ids:
        columns = {**span, "run_ids": run_ids}
        for row in _read(connection, _SQL["read_attempts_of_runs"], columns):
            attempts[row.pop("run_id")].append(row)
        for row in _read(connection, _SQL["read_inputs_of_runs"], columns):
            inputs[row.pop("run_id")] = row
    for row in rows:
        row["attempts"] = attempts.get(row["run_id"], [])
        row["inputs"] = inputs.get(row["run_id"])


def _facts(connection: Conn, since: datetime | None, until: datetime) -> Iterator[list[Record]]:
    """Yield the facts of a span, a block at a time; they are read in one transaction."""
    with connection.transaction(), connection.cursor("archived_facts", row_factory=dict_row) as cursor:
        connection.execute("SET LOCAL enable_seqscan = on")
        cursor.itersize = _FETCHED_VERSIONS
        cursor.execute(_SQL["read_facts"], {"since": since or _ALWAYS, "until": until})
        block: list[Record] = []
        size = 0
        for row in cursor:
            block.append(row)
            size += len(row["row"])
            if size > _BLOCK_BYTES or len(block) == _PAGE_ROWS:
                yield block
                block, size = [], 0
        yield block


def _since(connection: Conn, day: date) -> datetime | None:
    """Return the end of the archived day before; None for the first one, whose facts have all from before."""
    before = [each.day for each in list_days(connection) if each.day < day]
    return start_of(max(before) + _DAY) if before else None


def _read(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> list[Record]:
    return read_rows(connection, dict_row, statement, columns)


def _days(connection: Conn, statement: LiteralString) -> list[date]:
    return [day for (day,) in cast("list[tuple[date]]", connection.execute(statement).fetchall())]


def _count(connection: Conn, day: date) -> dict[str, int]:
    """Return the runs of a day for each tenant, without those of tenants that are being deleted."""
    columns = {"since": start_of(day), "until": start_of(day + _DAY)}
    return dict(cast("list[tuple[str, int]]", connection.execute(_SQL["count_runs_of_day"], columns).fetchall()))
