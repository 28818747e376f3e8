"""Archived days: the manifest of each in the archive, and what the database records of them.

A manifest is written after its files, so files without one are no archive. Its own checksum covers all else in it.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime
from hashlib import sha256
from typing import Any, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ArchiveDamaged, Unavailable
from tidewheel.postgres.held_lock import HeldLock, held_lock
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements

FORMAT = 1
RUNS, FACTS = "runs", "facts"
_DAY_MS = 86_400_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)  # no path: a manifest leads to no file elsewhere

_SQL = Statements("tidewheel.control.archive")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of an Avro file."""

    offset: int
    size: int  # in bytes
    rows: int
    tenant: str  # of its first record
    run_id: str  # of its first record; empty in a file of facts
    crc: int  # CRC-32


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """An Avro file of a day."""

    name: str  # in the day's folder; ends with the first digits of its checksum
    kind: str  # `runs` or `facts`
    rows: int
    size: int
    sha256: str
    header: int  # bytes before its first block
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an archived day."""

    day: date  # of UTC, on which its runs ended
    is_base: bool  # its facts have all rows from before, too
    tzdata: str | None  # by which schedulers computed when it was archived
    runs: int
    tenants: Mapping[str, int]  # their runs, in the order of the files; those that have only facts have none
    id_days: tuple[int, ...]  # days since 1970 in the ids of its runs
    files: tuple[ArchiveFile, ...]

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)

    def of_kind(self, kind: str) -> tuple[ArchiveFile, ...]:
        """Return the files of a kind."""
        return tuple(file for file in self.files if file.kind == kind)

    def block_of(self, tenant: str, run_id: UUID) -> tuple[ArchiveFile, Block] | None:
        """Return the only block that can have a run; None if none can."""
        rank = {name: number for number, name in enumerate(self.tenants)}
        if tenant not in rank:
            return None
        blocks = [(file, block) for file in self.of_kind(RUNS) for block in file.blocks]
        keys = [(rank[block.tenant], block.run_id) for _, block in blocks]
        place = bisect_right(keys, (rank[tenant], str(run_id)))
        return blocks[place - 1] if place else None

    def encode(self) -> bytes:
        """Return the manifest as JSON, with its checksum."""
        document = {"format": FORMAT, **asdict(self), "day": self.day.isoformat()}
        return _text({**document, "sha256": sha256(_text(document)).hexdigest()})


def read_manifest(day: str, text: bytes) -> Manifest:
    """Return the manifest of a day."""
    where = f"the manifest of {day}"
    try:
        document: dict[str, Any] = json.loads(text)
        checksum = document.pop("sha256")
        is_whole = sha256(_text(document)).hexdigest() == checksum and document["day"] == day
        is_whole &= _text({**document, "sha256": checksum}) == text
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(where, f"it cannot be read: {error}") from error
    if not is_whole:
        raise damaged(where, "its checksum differs")
    if document["format"] != FORMAT:
        raise ArchiveDamaged(
            f"{where} has the format {document['format']}, but this release reads {FORMAT}; install a later release"
        )
    files: list[ArchiveFile] = []
    for file in document["files"]:
        if not _NAME.fullmatch(str(file["name"])):
            raise damaged(where, f"it names the file {file['name']!r}, which is not in its folder")
        values: dict[str, Any] = {**file, "blocks": tuple(Block(**block) for block in file["blocks"])}
        files.append(ArchiveFile(**values))
    return Manifest(
        day=date.fromisoformat(day),
        is_base=document["is_base"],
        tzdata=document["tzdata"],
        runs=document["runs"],
        tenants=document["tenants"],
        id_days=tuple(document["id_days"]),
        files=tuple(files),
    )


def damaged(name: str, problem: str) -> ArchiveDamaged:
    """Return the error of a file that is not what was written."""
    return ArchiveDamaged(
        f"{name}: {problem}; restore it from a copy; `tidewheel admin archive verify` lists all such files"
    )


def id_day(run_id: UUID | str) -> int:
    """Return the day in the first 48 bits of a run's id, as days since 1970.

    >>> id_day("019d3a1c-7f00-8123-8456-789abcdef012")
    20541
    """
    return int(str(run_id).replace("-", "")[:12], 16) // _DAY_MS


def _text(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class ArchivedDay:
    """A day that is archived: in UTC, the day on which its runs ended."""

    day: date
    runs: int
    bytes: int
    archived_at: datetime


def list_days(connection: Conn) -> list[ArchivedDay]:
    """Return the archived days, the oldest first."""
    return read_rows(connection, class_row(ArchivedDay), _SQL["find_archived_days"], {})


def days_of_run(connection: Conn, run_id: UUID) -> list[date]:
    """Return the archived days with a run whose id has the day of this id, the latest first."""
    rows = connection.execute(_SQL["find_days_of_run"], {"id_day": id_day(run_id)}, binary=True).fetchall()
    return [day for (day,) in cast("list[tuple[date]]", rows)]


def forget_days(connection: Conn) -> int:
    """Forget all archived days: retention drops days without the archive again. Its files stay."""
    return connection.execute(_SQL["delete_archived_days"]).rowcount


@contextmanager
def locked_archive(url: str) -> Generator[HeldLock]:
    """Keep the archive to this process; raise Unavailable if another process writes it."""
    with held_lock(url, "tidewheel-archive-lock", _SQL["lock_archive"], old="archive") as lock:
        if not lock.is_alone:
            raise Unavailable("another process is writing the archive; repeat the command when that process has ended")
        yield lock


def is_locked(connection: Conn) -> bool:
    """Return True while a process writes the archive."""
    return connection.execute(_SQL["is_archive_locked"]).fetchone() == (True,)
