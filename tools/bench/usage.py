"""Measure CPU by process, WAL and the broker's log as differences between two marks."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidewheel.postgres.session import Conn
from tools.bench.measurement import Spent

_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True, slots=True)
class Mark:
    """The use up to one instant; `kafka_bytes` is None where the log is not seen."""

    cpu_seconds: Mapping[str, float]
    wal_bytes: int
    kafka_bytes: int | None
    machine_seconds: float


class Meter:
    """Reads what processes have used by name, the server's WAL, and the log of the topics with a prefix.

    The connection is in autocommit.
    """

    def __init__(
        self, connection: Conn, processes: Mapping[str, list[psutil.Process]], logs: list[Path], prefix: str
    ) -> None:
        self._connection, self._processes, self._logs, self._prefix = connection, processes, logs, prefix

    def mark(self) -> Mark:
        """Return the use so far."""
        row = self._connection.execute(_WAL).fetchone()
        assert row is not None
        cpu = {name: sum(map(_of_tree, each)) for name, each in self._processes.items()}
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return Mark(cpu, int(str(row[0])), self._log_bytes() if self._logs else None, busy)

    def since(self, mark: Mark, runs: int) -> Spent:
        """Return the use since a mark, for so many runs."""
        return between(mark, self.mark(), runs)

    def _log_bytes(self) -> int:
        """Return the bytes of the topics' log files, without offsets, transactions and groups."""
        total = 0
        for file in (file for folder in self._logs for file in folder.glob(f"{self._prefix}.*/*.log")):
            with suppress(FileNotFoundError):
                total += file.stat().st_size
        return total


def between(before: Mark, after: Mark, runs: int) -> Spent:
    """Return the use between two marks."""
    cpu = {name: after.cpu_seconds[name] - seconds for name, seconds in before.cpu_seconds.items()}
    seen = before.kafka_bytes is not None and after.kafka_bytes is not None
    kafka = (after.kafka_bytes or 0) - (before.kafka_bytes or 0) if seen else None
    others = after.machine_seconds - before.machine_seconds - sum(cpu.values())
    return Spent(max(runs, 1), cpu, after.wal_bytes - before.wal_bytes, kafka, others)


def _of_tree(process: psutil.Process) -> float:
    """CPU seconds of a process, its children that live, and those that it has waited for."""
    if process.pid == os.getpid():  # servers and services are its children, and counted by their own names
        times = process.cpu_times()
        return times.user + times.system
    spent = 0.0
    with suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                spent += times.user + times.system + times.children_user + times.children_system
    return spent
