"""Avro object container files: written block by block, read as a whole or one block alone.

A block is one page of rows, compressed by itself. The marker between blocks follows from day and kind. So the same rows
give the same bytes, and a repeat writes the same files.
"""

import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from json import loads
from pathlib import Path
from typing import IO, Any, TypeAlias, cast
from zlib import crc32

from fastavro import (
    parse_schema,
    reader,
    writer,  # pyright: ignore[reportUnknownVariableType] - its stubs leave IO without a type
)

from tidewheel.control.archive.days import FACTS, RUNS, ArchiveFile, Block, Manifest, damaged
from tidewheel.control.archive.stores import MissingFile, Store
from tidewheel.postgres.held_lock import HeldLock

Record: TypeAlias = dict[str, Any]

PART_BYTES = 128 << 20  # of a file: a repeat after a failure, or without a tenant, writes no more than one again
_ALL_ROWS = 1 << 62  # the interval at which fastavro would cut a block
_HASH_DIGITS = 16
_LEVEL = 6  # zlib's default

_PACKAGE = files("tidewheel.control.archive")
_SCHEMAS = {
    kind: parse_schema(loads(_PACKAGE.joinpath(f"{stem}.avsc").read_text("utf-8")))
    for kind, stem in ((RUNS, "archived_run"), (FACTS, "archived_fact"))
}


class Parts:
    """The files of one kind of a day, `runs` or `facts`: the store takes each once it is large enough."""

    def __init__(self, day: str, kind: str, scratch: Path, store: Store, lock: HeldLock) -> None:
        self._day, self._kind, self._path = day, kind, scratch / f"{kind}.growing"
        self._store, self._lock = store, lock
        self._sync = sha256(f"tidewheel {day} {kind}".encode()).digest()[:16]
        self._header = _encoded(kind, [], self._sync)
        self._blocks: list[Block] = []
        self._file: IO[bytes] | None = None
        self._hash = sha256()
        self._size = 0
        self.files: list[ArchiveFile] = []

    def add(self, records: Sequence[Record]) -> None:
        """Write records as one block."""
        if records:
            data = _encoded(self._kind, records, self._sync)[len(self._header) :]
            self._write(data, len(records), records[0]["tenant"], records[0].get("run_id", ""))

    def add_block(self, data: bytes, block: Block) -> None:
        """Write a block of another file of this day and kind as it is."""
        self._write(data, block.rows, block.tenant, block.run_id)

    def close(self) -> None:
        """Finish the last file."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        digest = self._hash.hexdigest()
        name = f"{self._kind}-{len(self.files):04d}-{digest[:_HASH_DIGITS]}.avro"
        rows = sum(block.rows for block in self._blocks)
        self._lock.check()
        self._store.keep(self._path, f"{self._day}/{name}")
        self.files.append(
            ArchiveFile(name, self._kind, rows, self._size, digest, len(self._header), tuple(self._blocks))
        )

    def _write(self, data: bytes, rows: int, tenant: str, run_id: str) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
            self._blocks, self._hash, self._size = [], sha256(), 0
            self._append(self._header)
        self._blocks.append(Block(self._size, len(data), rows, tenant, run_id, crc32(data)))
        self._append(data)
        if self._size >= PART_BYTES:
            self.close()

    def _append(self, data: bytes) -> None:
        assert self._file is not None  # noqa: S101 - _write has opened it
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)


def read_block(store: Store, day: str, file: ArchiveFile, block: Block) -> list[Record]:
    """Return the records of one block, or raise ArchiveDamaged."""
    name, data = f"{day}/{file.name}", raw_block(store, day, file, block)
    header = store.read(name, (0, file.header))
    try:
        found = reader(BytesIO(header + data), _SCHEMAS[file.kind])
        return list(cast("Iterator[Record]", iter(found)))
    except (ValueError, EOFError, zlib.error) as error:
        raise damaged(name, f"a block cannot be read: {error}") from error


def raw_block(store: Store, day: str, file: ArchiveFile, block: Block) -> bytes:
    """Return the bytes of one block; raises as `read_block` does."""
    name = f"{day}/{file.name}"
    try:
        data = store.read(name, (block.offset, block.size))
    except MissingFile:
        raise damaged(name, "the file is missing") from None
    if crc32(data) != block.crc:
        raise damaged(name, f"the block at byte {block.offset} is damaged: its checksum differs")
    return data


def read_rows(store: Store, manifest: Manifest, kind: str) -> Iterator[list[Record]]:
    """Yield the records of a day, a block at a time; raises as `read_block` does."""
    for file in manifest.of_kind(kind):
        for block in file.blocks:
            yield read_block(store, manifest.day.isoformat(), file, block)


def _encoded(kind: str, records: Sequence[Record], sync: bytes) -> bytes:
    """Return a file with one block of these records."""
    out = BytesIO()
    writer(
        out,
        _SCHEMAS[kind],
        records,
        codec="deflate",
        sync_interval=_ALL_ROWS,
        sync_marker=sync,
        codec_compression_level=_LEVEL,
    )
    return out.getvalue()
