"""Record the starts of handlers: 32 bytes each in a memory-mapped file.

A record costs a no-op handler well under a microsecond, and needs no thread. It can be read during the run.
"""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

VARIABLE = "TIDEWHEEL_BENCH_STARTS"  # the folder; nothing is noted without it

_RECORD = struct.Struct("=dd16s")
_MAX_RECORDS = 8_000_000  # records; the file is sparse, so that only what is written takes place
_NO_RUN = UUID(int=0)


class Start(NamedTuple):
    """One of millions of calls: its start, its due time, its run; zeros where these were not noted."""

    at: float
    due: float
    run: bytes


class Notes:
    """Writes one process's file; for one thread, the event loop's."""

    def __init__(self) -> None:
        folder = os.environ.get(VARIABLE)
        self._at, self._map = 0, mmap.mmap(-1, _RECORD.size)
        self._step = 0
        if folder:
            with Path(folder, f"starts-{os.getpid()}.bin").open("w+b") as file:
                file.truncate(_RECORD.size * _MAX_RECORDS)
                self._map = mmap.mmap(file.fileno(), 0)
            self._step = _RECORD.size

    def note(self, due: float = 0.0, run: UUID = _NO_RUN) -> None:
        """Note that the call of a run begins now, and when it was due."""
        _RECORD.pack_into(self._map, self._at, time.time(), due, run.bytes)
        self._at += self._step


class Starts:
    """Reads what all processes have noted in a folder, also while they do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[Path, mmap.mmap] = {}

    def count(self) -> int:
        """Return the number of calls so far."""
        return sum(map(_count, self._mapped()))

    def processes(self) -> int:
        """Return the number of processes with a call."""
        return sum(_count(each) > 0 for each in self._mapped())

    def read(self) -> list[Start]:
        """All calls, each process's in order."""
        found: list[Start] = []
        for each in self._mapped():
            with memoryview(each) as view, view[: _count(each) * _RECORD.size] as part:
                found += map(Start._make, _RECORD.iter_unpack(part))
        return found

    def _mapped(self) -> Sequence[mmap.mmap]:
        for path in self._folder.glob("starts-*.bin"):
            if path not in self._maps and path.stat().st_size:
                with path.open("rb") as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return list(self._maps.values())


def _count(mapped: mmap.mmap) -> int:
    """Count the records: they are written in order, and none starts at the epoch."""
    low, high = 0, len(mapped) // _RECORD.size
    while low < high:
        middle = (low + high) // 2
        at: float = _RECORD.unpack_from(mapped, middle * _RECORD.size)[0]
        low, high = (middle + 1, high) if at else (low, middle)
    return low
