"""One round of archiving: closed days in, old days and deleted tenants out.

Remove rows from archived days: deleted tenants, and runs of days beyond the archive's period. New files are written
first, then the manifest takes their place in one step, then the files that it no longer names are deleted. Blocks
without the tenant are copied as they are, and files without it stay.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import cast

from tidewheel.control.archive.containers import Parts, raw_block, read_block
from tidewheel.control.archive.export import archive_session, delete_others, export_days, record_day, write_manifest
from tidewheel.control.archive.manifest import FACTS, RUNS, ArchiveFile, Block, Manifest, read_manifest
from tidewheel.control.archive.records import ArchivedDay, list_days, locked_archive
from tidewheel.control.archive.restore import remove_restored_tenants
from tidewheel.control.archive.stores import Store, manifest_text
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.held_lock import HeldLock
from tidewheel.postgres.partitions import day_of, stored_days
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control.archive")
_FIND_TENANTS_TO_REMOVE = _SQL["find_tenants_to_remove"]
_RECORD_TENANT_REMOVED = _SQL["record_tenant_removed"]
_DELETE_ARCHIVED_DAY = _SQL["delete_archived_day"]


@dataclass(frozen=True, slots=True)
class Round:
    """Result of a round: the archived days, and those adopted because their files were there already."""

    archived: list[ArchivedDay]
    adopted: list[date]
    removed: list[date]
    tenants: list[str]


def archive_closed_days(url: str, store: Store, keep: timedelta) -> Round:
    """Archive each closed day; remove days older than the archive's period, and deleted tenants.

    Args:
        store: The archive; the caller closes it.

    Raises:
        ArchiveDamaged: The archive has a day with other rows, or a block that cannot be read.
        Unavailable: Another process archives, or a server does not answer.
    """
    with locked_archive(url) as lock, closing(archive_session(url)) as session, session.transaction() as connection:
        exported = export_days(connection, store, url, lock)
        removed = remove_old_days(connection, store, day_of(read_now(connection) - keep), lock)
        tenants = remove_tenants(connection, store, lock)
        if tenants:
            remove_restored_tenants(connection, tenants)
        return Round(exported.days, exported.adopted, removed, tenants)


def remove_tenants(connection: Conn, store: Store, lock: HeldLock) -> list[str]:
    """Remove the deleted tenants whose rows have left the database; return their names.

    The database has no row of them, so no day that is archived later has one.
    """
    found = cast("list[tuple[str]]", connection.execute(_FIND_TENANTS_TO_REMOVE).fetchall())
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
        connection.execute(_RECORD_TENANT_REMOVED, {"tenant": tenant})
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
        connection.execute(_DELETE_ARCHIVED_DAY, {"day": day})
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
