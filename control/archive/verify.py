"""Verify archived days: each file that a manifest names is as written, and there is no other one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from tidewheel.control.archive.manifest import RUNS, ArchiveFile, read_manifest
from tidewheel.control.archive.records import ArchivedDay
from tidewheel.control.archive.stores import MANIFEST, MissingFile, Store
from tidewheel.errors import ArchiveDamaged

_PIECE_BYTES = 8 << 20  # read at once


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between an archived day and what was written.

    Args:
        day: The day.
        file: Its file.
        problem: The difference.
    """

    day: str
    file: str
    problem: str


@dataclass(slots=True)
class Verified:
    """Totals of a verification."""

    days: int = 0
    files: int = 0
    runs: int = 0
    bytes: int = 0


def verify(store: Store, days: Iterable[str], recorded: Iterable[ArchivedDay], totals: Verified) -> Iterator[Finding]:
    """Yield the differences of days; count what was read.

    Args:
        store: The archive.
        days: Days that have files, or a record.
        recorded: The records of the database.
        totals: Receives the totals.
    """
    records = {each.day.isoformat(): each for each in recorded}
    for day in days:
        yield from _verify_day(store, day, records.get(day), totals)


def _verify_day(store: Store, day: str, record: ArchivedDay | None, totals: Verified) -> Iterator[Finding]:
    sizes = store.files(day)
    totals.days += 1
    try:
        manifest = read_manifest(day, store.read(f"{day}/{MANIFEST}"))
    except MissingFile:
        # Without a record the files are those of an archiver that died: the next one deletes them or writes them again.
        yield Finding(day, MANIFEST, "is missing" if record else "is missing: no archiver has finished this day")
        return
    except ArchiveDamaged as error:
        yield Finding(day, MANIFEST, str(error))
        return
    for file in manifest.files:
        if file.name not in sizes:
            yield Finding(day, file.name, "is missing")
        elif sizes[file.name] != file.size:
            yield Finding(day, file.name, f"has {sizes[file.name]:,} bytes instead of {file.size:,}")
        elif _checksum(store, day, file) != file.sha256:
            yield Finding(day, file.name, "is not what was written: its checksum differs")
        totals.files += 1
        totals.bytes += file.size
    for name in sorted(sizes.keys() - {MANIFEST, *(file.name for file in manifest.files)}):
        yield Finding(day, name, "is a file that the manifest does not name")
    rows = sum(file.rows for file in manifest.of_kind(RUNS))
    totals.runs += rows
    if record is not None and record.runs != rows:
        yield Finding(day, MANIFEST, f"has {rows:,} runs, and the database has recorded {record.runs:,}")


def _checksum(store: Store, day: str, file: ArchiveFile) -> str:
    digest = sha256()
    for offset in range(0, file.size, _PIECE_BYTES):
        digest.update(store.read(f"{day}/{file.name}", (offset, min(_PIECE_BYTES, file.size - offset))))
    return digest.hexdigest()
