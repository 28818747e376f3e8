"""A read replica: a standby for reads, once it has replayed all that the primary has committed.

Each read compares the two servers when it begins, and waits for the replica for a moment. So it misses no change that
was acknowledged before, whichever process has written it. No clock decides: a replica that is cut off is behind as soon
as the primary writes.

A thread looks at the replica each second. Reads do not try one that is away, behind or frozen.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import LiteralString, NamedTuple, TypeVar

from psycopg.rows import RowFactory, class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable, UnsupportedServer
from tidewheel.postgres.session import Session, is_time_limit, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown

T = TypeVar("T")

_SQL = Statements("tidewheel")
_LOG = logging.getLogger("tidewheel.postgres")
_LOOK_SECONDS = 1.0
_LOOK_OPTIONS = "-c statement_timeout=2s"
# Of a read for the replica. One nearby is some milliseconds behind, but for the first part of a record: the primary
# flushes the rest after `wal_writer_delay`, 200 ms.
_WAIT_SECONDS = 0.3
_PAUSE_SECONDS = 0.005  # between two comparisons
_SILENT_SECONDS = 3.0  # of a look: then no statement waits for the replica any longer
_NAME = "tidewheel-replica"  # of its sessions, on both servers
_NEVER = threading.Event()


class _Position(NamedTuple):
    """The position up to which the primary has written WAL, and what a copy of it has in common."""

    cluster: int
    database: int
    jobs: int
    segment: str
    position: str


class _Progress(NamedTuple):
    """The progress of a server towards a position of the primary."""

    is_same_cluster: bool
    is_standby: bool
    timeline: int
    behind_bytes: int | None
    behind_seconds: float | None
    has_tables: bool


class ReplicaState(NamedTuple):
    """The result of a comparison with the primary.

    Args:
        problem: Why no read may use the replica, as a predicate; empty if reads may.
        behind_seconds: The age of what it has replayed last; 0 if it has all; None if that is not known.
        is_foreign: True if it is no copy of the primary, which no time mends.
        cause: The error behind the problem.
    """

    problem: str = ""
    behind_seconds: float | None = 0.0
    is_foreign: bool = False
    cause: str = ""

    @property
    def described(self) -> str:
        """The problem with its cause."""
        return f"{self.problem} ({self.cause})" if self.cause else self.problem


class Replica:
    """The read replica of a process."""

    def __init__(self, url: str, replica_url: str, stop: Shutdown) -> None:
        self._urls, self._stop, self._looked_at = (url, replica_url), stop, monotonic_seconds()
        self._sessions = self.reader(_LOOK_OPTIONS)
        self._thread = threading.Thread(target=self._run, name="replica", daemon=True)
        self.state = ReplicaState()

    def start(self) -> None:
        """Look, and go on looking on a thread.

        Raises:
            SettingsError: The server is no copy of the primary.
        """
        self._look()
        if self.state.is_foreign:
            self._sessions.close()
            remedy = "name a standby that streams from the database of TIDEWHEEL_DATABASE_URL"
            raise SettingsError(f"TIDEWHEEL_READ_DATABASE_URL names a server that {self.state.described}; {remedy}")
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, after a stop was requested."""
        self._thread.join()

    def reader(self, options: str) -> "ReplicaReader":
        """Return the sessions of one thread, with these server settings."""
        url, replica_url = self._urls
        primary = Session(url, _NAME, options=options, autocommit=True, renews=True, pooled=True)
        replica = Session(
            replica_url, _NAME, options=options, prompt=True, renews=True, pooled=True, is_given_up=self._is_silent
        )
        return ReplicaReader(self, primary, replica)

    def _is_silent(self) -> bool:
        return monotonic_seconds() - self._looked_at > _SILENT_SECONDS

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self._look()
        self._sessions.close()

    def _look(self) -> None:
        self._looked_at = monotonic_seconds()
        try:
            found = self._sessions.compare()
        except Unavailable:  # of the primary: reads report it
            return
        if bool(found.problem) != bool(self.state.problem):
            if found.problem:
                _LOG.warning("lists and pages are read from the primary: the read replica %s", found.described)
            else:
                _LOG.info("the read replica is used again")
        self.state = found
        metrics.set("replica_lag_seconds", float("nan") if found.behind_seconds is None else found.behind_seconds)


@dataclass(frozen=True, slots=True)
class ReplicaReader:
    """The sessions of one thread that reads."""

    _of: Replica
    _primary: Session
    _replica: Session

    def read(self, work: Callable[[Session | None, str], T]) -> T:
        """Read on the replica if it has what the primary has committed, else on the primary.

        Work that fails on the replica is repeated on the primary, unless it took too long.

        Args:
            work: Only reads. Gets the session of the replica; or None, and why the replica is not used.
        """
        if not (problem := self._of.state.problem or self.compare().problem):
            try:
                found = work(self._replica, "")
            except Unavailable as error:
                if is_time_limit(error):
                    raise
                problem = "could not finish the read"
                _LOG.info("a read is repeated on the primary, for it failed on the read replica: %s", error)
            else:
                metrics.count("replica_reads", 1, "replica")
                return found
        metrics.count("replica_reads", 1, "primary")
        return work(None, problem)

    def compare(self) -> ReplicaState:
        """Compare the two servers now."""
        return compare(self._primary, self._replica)

    def close(self) -> None:
        """Close both."""
        self._primary.close()
        self._replica.close()


def compare(primary: Session, replica: Session) -> ReplicaState:
    """Wait for a moment until a replica has what the primary has committed by now.

    Raises:
        Unavailable: The primary does not answer.
    """
    wanted = _read(primary, class_row(_Position), _SQL["read_position"], {})
    until = monotonic_seconds() + _WAIT_SECONDS
    try:
        while True:
            found = _read(replica, class_row(_Progress), _SQL["read_progress"], wanted._asdict())
            state = _judged(wanted, found)
            if not found.is_standby:
                replica.close()  # the next session finds the standby, where several servers are named
            if state.behind_seconds is None or not state.problem or monotonic_seconds() > until:
                return state
            _NEVER.wait(_PAUSE_SECONDS)
    except UnsupportedServer as error:
        return ReplicaState("is too old", None, is_foreign=True, cause=str(error))
    except Unavailable as error:
        replica.close()
        return ReplicaState("does not answer", None, cause=str(error))


def _judged(wanted: _Position, found: _Progress) -> ReplicaState:
    behind = found.behind_bytes
    if not found.is_same_cluster or (behind is not None and behind <= 0 and not found.has_tables):
        return ReplicaState("belongs to another cluster, database or schema than the primary", None, is_foreign=True)
    if not found.is_standby:
        return ReplicaState("accepts writes and is no standby", None)
    if found.timeline != int(wanted.segment[:8], 16):  # a segment's name begins with the timeline
        return ReplicaState("has not stored the timeline of the primary", None)
    if behind is None:
        return ReplicaState("does not show what it has replayed", None)
    if behind > 0:
        seconds = max(found.behind_seconds or 0.0, _WAIT_SECONDS)
        return ReplicaState(f"is {seconds:,.1f} s behind the primary", seconds)
    return ReplicaState()


def _read(session: Session, record: RowFactory[T], statement: LiteralString, columns: Mapping[str, object]) -> T:
    found = session.within(read_row, record, statement, columns)
    assert found is not None  # noqa: S101 - a row of functions
    return found
