"""Verify archived days: each file that a manifest names is as written, and there is no other one.

A day with a difference may be one that another process writes. So it is verified again, until neither its manifest nor
its files have changed meanwhile. Files that no manifest names are those of a writer while one is at work.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from tidewheel.control.archive.manifest import RUNS, ArchiveFile, read_manifest
from tidewheel.control.archive.records import ArchivedDay
from tidewheel.control.archive.stores import MANIFEST, MissingFile, Store, manifest_text
from tidewheel.errors import ArchiveDamaged

_PIECE_BYTES = 8 << 20  # read at once


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between an archived day and what was written.

    Args:
        is_of_writer: True if a process that writes the day makes it, for as long as it writes.
    """

    day: str
    file: str
    problem: str
    is_of_writer: bool = False


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
            yield Finding(day, file.name, "is not what was written: its checksum differs")
        totals.files += 1
        totals.bytes += file.size
    for name in sorted(sizes.keys() - {MANIFEST, *(file.name for file in manifest.files)}):
        yield Finding(day, name, "is a file that the manifest does not name", is_of_writer=True)
    rows = sum(file.rows for file in manifest.of_kind(RUNS))
    totals.runs += rows
    if record is not None and record.runs != rows:
        # A writer records the day after it has written the manifest.
        problem = f"has {rows:,} runs, and the database has recorded {record.runs:,}"
        yield Finding(day, MANIFEST, problem, is_of_writer=True)


def _checksum(store: Store, day: str, file: ArchiveFile) -> str:
    digest = sha256()
    with suppress(MissingFile):  # a rewrite has deleted it: the checksum differs then
        for offset in range(0, file.size, _PIECE_BYTES):
            digest.update(store.read(f"{day}/{file.name}", (offset, min(_PIECE_BYTES, file.size - offset))))
    return digest.hexdigest()
