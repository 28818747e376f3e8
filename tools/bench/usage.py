"""Measure CPU by process and part, WAL and the broker's log as differences of two marks."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tools.bench.measurement import Spent

_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_SESSIONS = "SELECT pid, coalesce(nullif(application_name, ''), backend_type) FROM pg_stat_activity"


@dataclass(frozen=True, slots=True)
class Mark:
    """The use up to one instant; `kafka_bytes` is None where the log is not seen."""

    at: float
    cpu_seconds: Mapping[str, float]
    part_seconds: Mapping[str, float]
    wal_bytes: int
    kafka_bytes: int | None
    own_seconds: float
    busy_seconds: float
    stolen_seconds: float


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
        times = psutil.cpu_times()
        return Mark(
            at=monotonic_seconds(),
            cpu_seconds={name: sum(map(_of_tree, each)) for name, each in self._processes.items()},
            part_seconds=self._parts(),
            wal_bytes=int(str(row[0])),
            kafka_bytes=self._log_bytes() if self._logs else None,
            own_seconds=self._of_bench(),
            busy_seconds=times.user + times.nice + times.system + times.irq + times.softirq,
            stolen_seconds=times.steal,
        )

    def since(self, mark: Mark, runs: int) -> Spent:
        """Return the use since a mark, for so many runs."""
        return between(mark, self.mark(), runs)

    def _of_bench(self) -> float:
        """CPU seconds of the bench itself, unless it is one of the measured processes."""
        measured = {process.pid for each in self._processes.values() for process in each}
        return 0.0 if os.getpid() in measured else _of_tree(psutil.Process())

    def _parts(self) -> Mapping[str, float]:
        """CPU seconds by thread of each process, and by session of PostgreSQL."""
        found: defaultdict[str, float] = defaultdict(float)
        for name, processes in self._processes.items():
            parts = self._sessions() if name == "postgres" else (part for each in processes for part in _threads(each))
            for part, seconds in parts:
                found[f"{name}: {part}"] += seconds
        return found

    def _sessions(self) -> Iterator[tuple[str, float]]:
        for pid, name in self._connection.execute(_SESSIONS).fetchall():
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(int(str(pid))).cpu_times()
                yield str(name).removeprefix("tidewheel-"), times.user + times.system

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
    parts = {name: seconds - before.part_seconds.get(name, 0.0) for name, seconds in after.part_seconds.items()}
    seen = before.kafka_bytes is not None and after.kafka_bytes is not None
    busy, own = after.busy_seconds - before.busy_seconds, after.own_seconds - before.own_seconds
    return Spent(
        runs=max(runs, 1),
        cpu_seconds=cpu,
        wal_bytes=after.wal_bytes - before.wal_bytes,
        kafka_bytes=(after.kafka_bytes or 0) - (before.kafka_bytes or 0) if seen else None,
        part_seconds=parts,
        others_seconds=max(0.0, busy - own - sum(cpu.values())),
        stolen_seconds=after.stolen_seconds - before.stolen_seconds,
        machine_seconds=(after.at - before.at) * (psutil.cpu_count() or 1),
    )


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


def _threads(process: psutil.Process) -> Iterator[tuple[str, float]]:
    """Return name and CPU seconds of each thread, as Linux has them; a number at the end is dropped."""
    with suppress(psutil.NoSuchProcess):
        for thread in process.threads():
            with suppress(OSError):
                name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
                name = "main" if thread.id == process.pid else re.sub(r"[-_ ]?\d+$", "", name)
                yield name, thread.user_time + thread.system_time
