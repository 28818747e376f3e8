"""The rows of the fault matrix that need a right of the session: partitions, bad lines, full disks."""

import threading
from contextlib import suppress
from typing import ClassVar

import psycopg

from tests.faults.outside.network import fill
from tests.faults.outside.rows import ONE, PAST_LEASE, Row

_LOSSY_SECONDS = 10
_NEVER = threading.Event()
_SEGMENTS = 20  # of WAL; more than the small disk has room for


class Cut(Row):
    """A partition of one service, in its network namespace."""

    role: ClassVar[str]
    hold = PAST_LEASE
    to: ClassVar[str] = "all"
    expected = "as a pause; nothing runs without a claim"
    holds_commits = True

    def inject(self) -> None:
        self.space = self.site.spaces[self.choose(self.role)]
        if self.to == "all":
            self.space.cut()
        else:
            self.space.cut_port(self._port())

    def heal(self) -> None:
        if self.to == "all":
            self.space.mend()
        else:
            self.space.mend_port(self._port())

    def _port(self) -> int:
        return self.site.database_port if self.to == "database" else self.site.broker_port


_ONE_WAY = (
    ("executor", "database", "PostgreSQL"),
    ("executor", "broker", "the broker"),
    ("relay", "broker", "the broker"),
)
CUTS: tuple[type[Row], ...] = (
    *(Cut.of(name=f"partition of {ONE[role]}", role=role) for role in ("executor", "scheduler", "relay", "intake")),
    *(Cut.of(name=f"one-way partition of {ONE[role]} from {other}", role=role, to=to) for role, to, other in _ONE_WAY),
)


class LossyBroker(Row):
    """Lines of all services to the broker that lose everything for a part of each second."""

    name, hold = "lossy lines to the broker", 0.0
    expected = "lateness grows; what is sent again is stored once"

    def inject(self) -> None:
        spaces, port = list(self.site.spaces.values()), self.site.broker_port
        for _ in range(_LOSSY_SECONDS):
            for space in spaces:
                space.cut_port(port)
            _NEVER.wait(self.random.uniform(0.3, 0.7))
            for space in spaces:
                space.mend_port(port)
            _NEVER.wait(self.random.uniform(0.2, 0.5))

    def heal(self) -> None:
        """The lines are whole."""


class SlowDatabase(Row):
    name, hold = "slow and lossy line to PostgreSQL", 10.0
    expected = "lateness grows"
    holds_commits = True

    def inject(self) -> None:
        assert self.site.proxy is not None
        self.site.proxy.line.delay, self.site.proxy.line.resets = (0.02, 0.1), 0.005

    def heal(self) -> None:
        assert self.site.proxy is not None
        self.site.proxy.line.delay, self.site.proxy.line.resets = (0.0, 0.0), 0.0


class SilentDatabase(Row):
    name, hold = "silent line to PostgreSQL", PAST_LEASE
    expected = "everything stands still"
    holds_commits = True

    def inject(self) -> None:
        assert self.site.proxy is not None
        self.site.proxy.line.silent = True

    def heal(self) -> None:
        assert self.site.proxy is not None
        self.site.proxy.line.silent = False


class FullDisk(Row):
    """A full file system."""

    place: ClassVar[str]
    hold = 8.0

    def inject(self) -> None:
        self.ballast = fill(self.site.home / self.place)

    def heal(self) -> None:
        self.ballast.unlink()
        self.site.start_database()


class FullData(FullDisk):
    name, place = "full disk of PostgreSQL's data", "postgres"
    expected = "the server refuses what needs space, and stays up"


class FullWal(FullDisk):
    name, place = "full disk of PostgreSQL's WAL", "postgres/data/pg_wal"
    expected = "the server goes down; a supervisor starts it once there is space"

    def inject(self) -> None:
        super().inject()
        with suppress(psycopg.Error), self.site.database() as connection:
            for _ in range(_SEGMENTS):  # this load alone fills no segment in the time
                connection.execute("SELECT pg_logical_emit_message(true, 'faults', repeat('x', 4000000))")
                connection.execute("SELECT pg_switch_wal()")
        self.detail["down"] = self.site.stack.postgres.pid is None


class FullBroker(FullDisk):
    name, place = "full disk of the broker", "kafka"
    expected = "the broker goes down, or refuses; nothing is deleted without a report"

    def heal(self) -> None:
        self.detail["down"] = self.site.stack.broker(1).pid is None
        self.ballast.unlink()
        if self.site.stack.broker(1).pid is None:
            self.site.start_broker()


NETWORK: tuple[type[Row], ...] = (*CUTS, LossyBroker)
LINES: tuple[type[Row], ...] = (SlowDatabase, SilentDatabase)
DISKS: tuple[type[Row], ...] = (FullData, FullWal, FullBroker)
