"""Threads for the database work of HTTP requests, and turns of callers: nothing blocks the event loop.

Each kind of caller has threads, a queue and connections of its own, so executors never wait for strangers. Tenants and
their keys take turns: the tenant that sends most waits longest, and a full queue pushes out the last of the tenant that
has the most in it. The last free thread of a kind is for a tenant that has none.

No thread waits for a lock longer than 200 ms. A request that meets a locked row gives its thread back, and is repeated
until it finds the row free: its transaction was rolled back. After five seconds the answer is 503 `busy`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tidewheel.audit import Actor, Door, process_actor
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.problems import Busy, Overloaded
from tidewheel.control.client.connection import Connection
from tidewheel.executor.remote_executors import RemoteExecutors
from tidewheel.intake.locks import RowLocked
from tidewheel.postgres.notify import Notifier
from tidewheel.postgres.replica import Replica
from tidewheel.postgres.session import FOR_LISTS, RowsLocked, Session
from tidewheel.process.service import Shutdown
from tidewheel.transitions.installation import Installation
from tidewheel.turns import Turns, less

T = TypeVar("T")

_LOCKED = (RowLocked, RowsLocked)

_REPORT_THREADS = _STRANGER_THREADS = _KEY_THREADS = 2
_READ_THREADS = _WRITE_THREADS = 4
_STREAM_THREADS = 2
_LOCK_LIMIT = "-c lock_timeout=200ms"  # of each wait: longer than any transaction of ours holds a row
# A read that takes longer would keep others out. Its answer is 503.
_READ_LIMIT = f"{_LOCK_LIMIT} -c statement_timeout=10s"
_STREAM_OPTIONS = f"{_READ_LIMIT} -c enable_bitmapscan=on"  # a BRIN index has no other scan
_QUEUED = 16  # requests per thread: at some milliseconds each, more would wait for seconds
_PARKED_SECONDS = 5.0  # for which a request is repeated that met a lock: half of what clients wait for an answer
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0  # between two tries
_REST = 4  # times the time for which claims waited, until the next request blocks them: claims have four fifths


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn a request takes."""

    tenant: str = ""  # where none is known, what takes its place, such as an address
    key: str = ""


_NOBODY = Turn()


@dataclass(eq=False, slots=True)
class _Work(Generic[T]):
    """Work that waits for a thread, or has one."""

    run: "Callable[[WorkerState], T]"
    turn: Turn
    blocks_claims: bool  # no run starts while it writes
    result: "asyncio.Future[T]"
    blocked_at: float | None = None  # when claims began to wait for it, or for its try


class _BlocksClaims(Exception):
    """No run can start while this work writes: it needs a turn of such work."""


class WorkerState:
    """Connections of one thread."""

    def __init__(
        self, url: str, installation: Installation, notifier: Notifier, options: str, replica: Replica | None
    ) -> None:
        self._url, self._options, self._shared = url, options, installation
        self._replica: tuple[Session | None, str | None] = None, None
        self._connection: Connection | None = None
        self._may_block_claims, self._writes = False, 0
        self.blocked_at: float | None = None
        compares = replica is not None  # it does nothing else then
        self.session = Session(url, "tidewheel-api", options=options, autocommit=compares, renews=True, pooled=True)
        self._reader = None if replica is None else replica.reader(self.session, f"{FOR_LISTS} {options}")
        self.executors = RemoteExecutors(self.session, installation, notify=notifier.notify)

    def connection(
        self, tenant: str = "default", actor: Actor | None = None, traceparent: str | None = None
    ) -> Connection:
        """Return the connection for requests of a tenant, an actor and a trace; opened on first use."""
        if self._connection is None:
            self._connection = Connection(
                self._url, application="tidewheel-api", options=self._options, shared=self._shared, lock_seconds=0.0
            )
            self._connection.before_blocking, self._connection.on_block = self._before_blocking, self._on_block
        self._connection.tenant, self._connection.actor = tenant, actor or process_actor(Door.REST)
        self._connection.traceparent = traceparent
        self._connection.replica, self._connection.replica_problem = self._replica
        return self._connection

    def do(self, work: "Callable[[WorkerState], T]", *, may_block_claims: bool) -> T:
        """Do work.

        Raises:
            RowLocked, RowsLocked: Another transaction holds a row; nothing was written.
            Busy: Another transaction holds a row, and a part of the work was committed.
            _BlocksClaims: It has a request that blocks claims, and may not block them; nothing was written.
        """
        self._may_block_claims, self._writes = may_block_claims, self._connection.writes if self._connection else 0
        self.blocked_at = None
        try:
            return work(self) if self._reader is None else self._reader.read(partial(self._read, work))
        except _LOCKED as error:
            if self._has_written:
                raise Busy.of(error) from error
            raise

    def _read(self, work: "Callable[[WorkerState], T]", replica: Session | None, problem: str) -> T:
        self._replica = replica, problem
        return work(self)

    @property
    def _has_written(self) -> bool:
        return self._connection is not None and self._connection.writes != self._writes

    def _before_blocking(self) -> None:
        if not (self._may_block_claims or self._has_written):
            raise _BlocksClaims

    def _on_block(self) -> None:
        self.blocked_at = self.blocked_at or monotonic_seconds()

    def close(self) -> None:
        """Close its connections."""
        self.session.close()
        if self._reader is not None:
            self._reader.close()
        if self._connection is not None:
            self._connection.close()


class Workers:
    """A few threads with a bounded queue; with a replica their work only reads."""

    def __init__(
        self, url: str, installation: Installation, *, threads: int, stop: Shutdown, options: str = _LOCK_LIMIT,
        replica: Replica | None = None,
    ) -> None:  # fmt: skip
        self._url, self._installation, self._stop, self._options = url, installation, stop, options
        self._replica = replica
        self._notifier = Notifier(url, "tidewheel-api-notify")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="api")
        self._local = threading.local()
        self._states: list[WorkerState] = []
        # From here on, all is changed on the event loop only.
        self._free = threads
        self._busy = Counter[str]()  # threads by tenant
        self._waiting = Turns[_Work[Any]](threads * _QUEUED)
        self._blockers = Turns[_Work[Any]](threads * _QUEUED)
        self._may_block = True  # no blocker of claims has a thread, or has just had one
        self._parked = Counter[str]()  # requests by tenant
        self._most_parked = threads * _QUEUED // 2  # of a tenant

    async def do(self, work: Callable[[WorkerState], T], turn: Turn = _NOBODY) -> T:
        """Run work on one of the threads; repeat it for some seconds while it meets a lock.

        Work that has committed a part of its changes is not repeated.
        Work with a request that blocks claims is done in a turn of such work: alone, with a rest afterwards.
        """
        now = asyncio.get_running_loop().time
        until, pause, blocks_claims = now() + _PARKED_SECONDS, _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return await self._once(work, turn, blocks_claims)
            except _BlocksClaims:
                blocks_claims = True
                continue
            except _LOCKED as error:
                if now() + pause > until or self._parked[turn.tenant] >= self._most_parked or self._stop.requested():
                    raise Busy.of(error) from error
            self._parked[turn.tenant] += 1
            try:
                await asyncio.sleep(pause)
            finally:
                less(self._parked, turn.tenant)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Finish the work in progress, and close every connection."""
        self._pool.shutdown(wait=True)
        for state in self._states:
            state.close()
        self._notifier.close()

    async def _once(self, work: Callable[[WorkerState], T], turn: Turn, blocks_claims: bool) -> T:  # noqa: FBT001
        entry = _Work(work, turn, blocks_claims, asyncio.get_running_loop().create_future())
        queue = self._blockers if blocks_claims else self._waiting
        if (last := queue.wait(turn.tenant, turn.key, entry)) is not None:
            message = f"{len(queue)} requests are waiting; retry in a moment"
            _fail(last.result, Overloaded(message))
        self._begin()
        try:
            # Shielded: the work of a client that disconnects keeps its thread until it has ended.
            return await asyncio.shield(entry.result)
        finally:
            queue.leave(turn.tenant, turn.key, entry)

    def _begin(self) -> None:
        """Give the free threads to those whose turn it is."""
        loop = asyncio.get_running_loop()
        while self._free:
            found = self._blockers.take(self._may_begin) if self._may_block else None
            found = found or self._waiting.take(self._may_begin)
            if found is None:
                return
            tenant, work = found
            self._free -= 1
            self._busy[tenant] += 1
            self._may_block &= not work.blocks_claims
            done = loop.run_in_executor(self._pool, self._on_thread, work)
            done.add_done_callback(partial(self._over, work))

    def _end_rest(self) -> None:
        self._may_block = True
        self._begin()

    def _may_begin(self, tenant: str) -> bool:
        return self._free > 1 or not self._busy[tenant]

    def _over(self, work: _Work[T], done: "asyncio.Future[T]") -> None:
        loop = asyncio.get_running_loop()
        self._free += 1
        less(self._busy, work.turn.tenant)
        if work.blocks_claims:
            waited = 0.0 if work.blocked_at is None else monotonic_seconds() - work.blocked_at
            loop.call_later(_REST * waited, self._end_rest)
        if (error := done.exception()) is None:
            work.result.set_result(done.result())
        else:
            _fail(work.result, error)
        self._begin()

    def _on_thread(self, work: _Work[T]) -> T:
        state = getattr(self._local, "state", None)
        if state is None:
            state = self._local.state = WorkerState(
                self._url, self._installation, self._notifier, self._options, self._replica
            )
            self._states.append(state)
        try:
            return state.do(work.run, may_block_claims=work.blocks_claims)
        finally:
            work.blocked_at = state.blocked_at


class Turnstile:
    """Turns `apart_seconds` apart, an address after the other."""

    def __init__(self, *, apart_seconds: float, saved_seconds: float, most: int) -> None:
        self._apart, self._saved = apart_seconds, saved_seconds
        self._waiting = Turns[asyncio.Future[bool]](most)
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def passes(self, address: str) -> bool:
        """Wait for a turn; return False as soon as the queue pushes this entry out."""
        loop = asyncio.get_running_loop()
        if self._timer is None and self._next <= loop.time():
            self._count(loop.time())
            return True
        entry: asyncio.Future[bool] = loop.create_future()
        if (last := self._waiting.wait(address, "", entry)) is not None:
            last.set_result(False)
        self._timer = self._timer or loop.call_at(self._next, self._give)
        try:
            return await entry
        finally:
            self._waiting.leave(address, "", entry)

    def _give(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if (found := self._waiting.take()) is not None:
            self._count(loop.time())
            found[1].set_result(True)
            self._timer = loop.call_at(self._next, self._give)

    def _count(self, now: float) -> None:
        self._next = max(self._next, now - self._saved) + self._apart


class Pools:
    """The workers of each kind of caller; `lists` alone read a replica, if there is one."""

    def __init__(
        self, url: str, installation: Installation, *, threads: int, stop: Shutdown, replica: Replica | None = None
    ) -> None:
        self.replica = replica
        some = partial(Workers, url, installation, stop=stop)
        self.executors = some(threads=threads)
        self.reports = some(threads=_REPORT_THREADS)
        self.strangers = some(threads=_STRANGER_THREADS)
        reads = partial(some, threads=_READ_THREADS, options=_READ_LIMIT)
        self.reads = reads()
        self.lists = self.reads if replica is None else reads(replica=replica)
        self.streams = some(threads=_STREAM_THREADS, options=_STREAM_OPTIONS)
        self.writes = some(threads=_WRITE_THREADS)
        self.keys = some(threads=_KEY_THREADS)
        self.probes = some(threads=1)

    def close(self) -> None:
        """Finish the work in progress, and close every connection."""
        for workers in dict.fromkeys(vars(self).values()):  # lists may be the reads
            if isinstance(workers, Workers):
                workers.close()


def _fail(result: "asyncio.Future[Any]", error: BaseException) -> None:
    result.set_exception(error)
    result.exception()  # retrieved, also where the caller no longer waits
