"""A read replica: a standby for reads, once it has replayed all that the primary has committed.

Each read compares the two servers when it begins, and waits for the replica for a moment. So it misses no change that
was acknowledged before, whichever process has written it. No clock decides: a replica that is cut off is behind as soon
as the primary writes.

A thread looks at the replica each second. Reads do not try one that is away, behind or frozen.
"""

import logging
import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import RowFactory, class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable, UnsupportedServer
from tidewheel.postgres.session import (
    AccessRefused,
    Conn,
    OwnConnection,
    Session,
    is_time_limit,
    open_one,
    prepare_session,
    read_row,
)
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop

T = TypeVar("T")

_SQL = Statements("tidewheel")
_LOG = logging.getLogger("tidewheel.postgres")
_LOOK_SECONDS = 1.0
_LOOK_OPTIONS = "-c statement_timeout=2s"
# How long a read waits for the replica. One nearby is some milliseconds behind, but for the first part of a record: the
# primary flushes the rest after `wal_writer_delay`, 200 ms.
_WAIT_SECONDS = 0.3
_PAUSE_SECONDS = 0.005  # between two comparisons
_SILENT_SECONDS = 3.0  # of the replica in a look: then no statement waits for it any longer
_NAME = "tidewheel-replica"  # of its sessions, on both servers
_NEVER = threading.Event()


class _Position(NamedTuple):
    """The position up to which the primary has written WAL, and what a copy of it has in common."""

    cluster: int
    database: int
    jobs: int
    timeline: int
    position: str
    role: str


class _Progress(NamedTuple):
    """The progress of a server towards a position of the primary."""

    is_same_cluster: bool
    is_standby: bool
    timeline: int
    behind_bytes: int | None
    is_same_role: bool
    has_tables: bool


class ReplicaState(NamedTuple):
    """The result of a comparison with the primary.

    Args:
        problem: Why no read may use the replica, as a predicate; empty if reads may.
        behind_bytes: The WAL that it has not replayed; None if that is not known.
        is_foreign: True if it is no copy of the primary, which no time mends.
        cause: The error behind the problem.
    """

    problem: str = ""
    behind_bytes: int | None = 0
    is_foreign: bool = False
    cause: str = ""

    @property
    def described(self) -> str:
        """The problem with its cause."""
        return f"{self.problem} ({self.cause})" if self.cause else self.problem


class StandbyConnection(OwnConnection):
    """A connection to a standby, whose statements end with an error once the server is given up.

    TCP does not show that a server is frozen.
    """

    is_given_up: Callable[[], bool] | None = None

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for a statement, as psycopg does."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, work: PQGen[T]) -> PQGen[T]:
        try:
            ready = yield next(work)
            while True:
                if not ready and self.is_given_up is not None and self.is_given_up():
                    self.pgconn.finish()  # no rollback may wait either
                    raise psycopg.OperationalError("the server has not answered for some seconds")
                ready = yield work.send(ready)
        except StopIteration as end:
            return cast("T", end.value)


class StandbySession(Session):
    """A session of the replica, for one read after another.

    A comparison is true of one connection. So a session that has failed refuses work until the next comparison, and no
    other server takes the place of the one that was compared.

    Attributes:
        failure: The error of this server since the last comparison.
    """

    def __init__(self, url: str, options: str, is_given_up: Callable[[], bool]) -> None:
        super().__init__(url, _NAME, options=options)
        self._is_given_up, self.failure = is_given_up, ""

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        """Run the block in a transaction, as the base does; note a failure of this server."""
        if self.failure:
            raise Unavailable(self.failure)
        is_own = True
        try:
            with super().transaction() as connection:
                try:
                    yield connection
                except Unavailable:  # of something else that the block reads, such as an archive
                    is_own = False
                    raise
        except Unavailable as error:
            if is_own:
                self.failure = str(error)
            raise

    def close(self) -> None:
        """Close the connection if there is one; never raises."""
        super().close()
        self.failure = self.failure or "the connection was lost"

    def _open(self) -> OwnConnection:
        connection = open_one(
            self._url, self._name, autocommit=False, options=self._options, prompt=True, pooled=True,
            open_by=self._connect,
        )  # fmt: skip
        prepare_session(connection)  # its epoch may be old: readers compare positions
        return connection

    def _connect(self, url: str, **parameters: Any) -> StandbyConnection:  # noqa: ANN401 - those of psycopg
        parameters["target_session_attrs"] = "prefer-standby"
        connection = StandbyConnection.connect(url, **parameters)
        connection.is_given_up = self._is_given_up
        return connection


class Replica:
    """The read replica of a process."""

    def __init__(self, url: str, replica_url: str, stop: Shutdown) -> None:
        self._url, self._looked_at, self._was_used = replica_url, math.inf, cast("bool | None", None)
        self._primary = Session(url, _NAME, options=_LOOK_OPTIONS, autocommit=True, renews=True, pooled=True)
        self._standby = StandbySession(replica_url, _LOOK_OPTIONS, self._is_silent)
        self._thread = threading.Thread(
            target=run_loop, args=(stop, "replica", self._step), kwargs={"longest_pause": _LOOK_SECONDS},
            name="replica", daemon=True,
        )  # fmt: skip
        self.state = ReplicaState("has not been looked at yet", None)

    def require_copy(self) -> None:
        """Look for the first time.

        Raises:
            SettingsError: The server is no copy of the primary.
        """
        with suppress(Exception):  # the thread reports it
            self.look()
        if self.state.is_foreign:
            self.close()
            remedy = "name a standby that streams from the database of TIDEWHEEL_DATABASE_URL"
            raise SettingsError(f"TIDEWHEEL_READ_DATABASE_URL names a server that {self.state.described}; {remedy}")

    def start(self) -> None:
        """Start the thread that looks."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, after a stop was requested."""
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Close the sessions of the looks."""
        self._primary.close()
        self._standby.close()

    def reader(self, primary: Session, options: str) -> "ReplicaReader":
        """Return what one thread reads with.

        Args:
            primary: A session with `autocommit`, for the comparisons.
            options: The server settings of reads on the replica.
        """
        return ReplicaReader(self, primary, StandbySession(self._url, options, self._is_silent))

    def look(self) -> ReplicaState:
        """Compare both servers now; keep the result, and return it.

        Raises:
            Unavailable: The primary does not answer.
        """
        self._looked_at = math.inf  # how long the primary takes says nothing about the replica
        try:
            wanted = _read_position(self._primary)
            self._looked_at = monotonic_seconds()
            self.state = _compare(wanted, self._standby)
        except Exception as error:
            if not isinstance(error, Unavailable):
                self.state = ReplicaState("cannot be compared with the primary", None, cause=str(error))
            raise
        return self.state

    def _is_silent(self) -> bool:
        return monotonic_seconds() - self._looked_at > _SILENT_SECONDS

    def _step(self) -> float:
        found = self.look()
        is_used = not found.problem
        if is_used is not self._was_used:
            self._was_used = is_used
            if is_used:
                _LOG.info("lists and pages are read from the read replica")
            else:
                _LOG.warning("lists and pages are read from the primary: the read replica %s", found.described)
        metrics.set("replica_lag_bytes", math.nan if found.behind_bytes is None else found.behind_bytes)
        return _LOOK_SECONDS


@dataclass(frozen=True, slots=True)
class ReplicaReader:
    """The sessions of one thread that reads."""

    _of: Replica
    _primary: Session
    _replica: StandbySession

    def read(self, work: Callable[[Session | None, str], T]) -> T:
        """Read on the replica if it has what the primary has committed, else on the primary.

        Work during which the replica fails is repeated on the primary, unless it took too long.

        Args:
            work: Only reads. Gets the session of the replica; or None, and why the replica is not used.
        """
        problem = self._of.state.problem or _compare(_read_position(self._primary), self._replica).problem
        if not problem:
            try:
                found = work(self._replica, "")
            except Unavailable as error:
                if not self._replica.failure or is_time_limit(error):
                    raise
            else:
                if not self._replica.failure:
                    metrics.count("replica_reads", 1, "replica")
                    return found
            problem = "could not finish the read"
            text = "a read is repeated on the primary, because it failed on the read replica: %s"
            _LOG.info(text, self._replica.failure)
        metrics.count("replica_reads", 1, "primary")
        return work(None, problem)

    def close(self) -> None:
        """Close the session of the replica."""
        self._replica.close()


def _read_position(primary: Session) -> _Position:
    return _read(primary, class_row(_Position), _SQL["read_position"], {})


def _compare(wanted: _Position, replica: StandbySession) -> ReplicaState:
    """Wait for a moment until a replica has replayed a position of the primary."""
    until = monotonic_seconds() + _WAIT_SECONDS
    replica.failure = ""
    try:
        while True:
            found = _read(replica, class_row(_Progress), _SQL["read_progress"], wanted._asdict())
            state = _judged(wanted, found)
            if not found.is_standby:
                replica.close()  # the next session finds the standby, where several servers are named
            if not state.problem or not state.behind_bytes or monotonic_seconds() > until:
                return state
            _NEVER.wait(_PAUSE_SECONDS)
    except UnsupportedServer as error:
        return ReplicaState("is too old", None, is_foreign=True, cause=str(error))
    except Unavailable as error:
        replica.close()
        problem = "refuses the connection" if isinstance(error, AccessRefused) else "does not answer"
        return ReplicaState(problem, None, cause=str(error))


def _judged(wanted: _Position, found: _Progress) -> ReplicaState:
    behind = found.behind_bytes
    if not found.is_same_cluster or (behind is not None and behind <= 0 and not found.has_tables):
        return ReplicaState("belongs to another cluster, database or schema than the primary", None, is_foreign=True)
    problems = (
        (not found.is_standby, "accepts writes and is no standby"),
        (not found.is_same_role, "is read as another role than the primary"),
        (found.timeline != wanted.timeline, "has not stored the timeline of the primary"),
    )
    problem = next((text for holds, text in problems if holds), "")
    if problem or behind is None:
        return ReplicaState(problem or "does not show what it has replayed", None)
    return ReplicaState(f"is {behind:,} bytes behind the primary", behind) if behind > 0 else ReplicaState()


def _read(session: Session, record: RowFactory[T], statement: LiteralString, columns: Mapping[str, object]) -> T:
    found = session.within(read_row, record, statement, columns)
    assert found is not None  # noqa: S101 - a row of functions
    return found
