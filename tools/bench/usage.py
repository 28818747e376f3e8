"""Measure CPU by process, WAL and the broker's log as differences between two marks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidewheel.postgres.session import Conn
from tools.bench.measurement import Spent

_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True, slots=True)
class Mark:
    """The use up to one instant."""

    cpu_seconds: Mapping[str, float]
    wal_bytes: int
    kafka_bytes: int | None


class Meter:
    """Reads what has been used.

    Args:
        connection: Of the server whose WAL counts; in autocommit.
        processes: What is looked at, by name; several of one name are one.
        logs: Folders of the brokers' data, and what the topics' names begin with; None where they cannot be seen.
    """

    def __init__(
        self,
        connection: Conn,
        processes: Mapping[str, list[psutil.Process]],
        logs: tuple[list[Path], str] | None = None,
    ) -> None:
        self._connection, self._processes, self._logs = connection, processes, logs

    def mark(self) -> Mark:
        """Return the use so far."""
        row = self._connection.execute(_WAL).fetchone()
        assert row is not None
        cpu = {name: sum(map(_of_tree, each)) for name, each in self._processes.items()}
        return Mark(cpu, int(str(row[0])), _log_bytes(*self._logs) if self._logs else None)

    def since(self, mark: Mark, runs: int) -> Spent:
        """Return the use since a mark, for so many runs."""
        return between(mark, self.mark(), runs)


def between(before: Mark, after: Mark, runs: int) -> Spent:
    """Return the use between two marks."""
    cpu = {name: after.cpu_seconds[name] - seconds for name, seconds in before.cpu_seconds.items()}
    kafka = None
    if before.kafka_bytes is not None and after.kafka_bytes is not None:
        kafka = after.kafka_bytes - before.kafka_bytes
    return Spent(max(runs, 1), cpu, after.wal_bytes - before.wal_bytes, kafka)


def process_name(process: psutil.Process) -> str:
    """A process's name; empty for one that is gone."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def _of_tree(process: psutil.Process) -> float:
    """CPU seconds of a process, its children that live, and those that it has waited for."""
    spent = 0.0
    if process.pid == os.getpid():  # servers and services are its children, and counted by their own names
        times = process.cpu_times()
        return times.user + times.system
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return spent
    for each in tree:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def _log_bytes(folders: list[Path], prefix: str) -> int:
    """Return the bytes of the topics' log files, without offsets, transactions and groups."""
    total = 0
    for folder in folders:
        for file in folder.glob(f"{prefix}.*/*.log"):
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                continue
    return total
