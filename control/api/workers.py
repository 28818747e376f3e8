"""Threads for the database work of HTTP requests, so that it never blocks the event loop.

Each kind of caller has threads, a queue and connections of its own, so executors never wait for strangers.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidewheel.audit import Actor, Door, process_actor
from tidewheel.control.api.problems import Overloaded
from tidewheel.control.client.connection import Connection
from tidewheel.executor.remote_executors import RemoteExecutors
from tidewheel.postgres.notify import Notifier
from tidewheel.postgres.session import Session
from tidewheel.process.service import Shutdown
from tidewheel.transitions.installation import Installation

T = TypeVar("T")

_REPORT_THREADS = _STRANGER_THREADS = _KEY_THREADS = 2
_READ_THREADS = _WRITE_THREADS = 4
_STREAM_THREADS = 2
# A read that takes longer would keep others out. Its answer is 503.
_READ_LIMIT = "-c statement_timeout=10s"
_STREAM_OPTIONS = f"{_READ_LIMIT} -c enable_bitmapscan=on"  # a BRIN index has no other scan
_QUEUED = 16  # requests per thread: at some milliseconds each, more would wait for seconds


class WorkerState:
    """Connections of one thread."""

    def __init__(self, url: str, installation: Installation, notifier: Notifier, stop: Shutdown, options: str) -> None:
        self._url, self._options, self._shared = url, options, installation
        self._connection: Connection | None = None
        self.session = Session(url, "tidewheel-api", renews=True)
        self.executors = RemoteExecutors(self.session, installation, notify=notifier.notify, stop=stop)

    def connection(
        self, tenant: str = "default", actor: Actor | None = None, traceparent: str | None = None
    ) -> Connection:
        """Return the connection for requests of a tenant, an actor and a trace; opened on first use.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._connection is None:
            self._connection = Connection(
                self._url, application="tidewheel-api", options=self._options, shared=self._shared
            )
        self._connection.tenant, self._connection.actor = tenant, actor or process_actor(Door.REST)
        self._connection.traceparent = traceparent
        return self._connection

    def close(self) -> None:
        """Close its connections."""
        self.session.close()
        if self._connection is not None:
            self._connection.close()


class Workers:
    """A few threads with a bounded queue."""

    def __init__(
        self, url: str, installation: Installation, *, threads: int, stop: Shutdown, options: str = ""
    ) -> None:
        self._url, self._installation, self._stop, self._options = url, installation, stop, options
        self._notifier = Notifier(url, "tidewheel-api-notify")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="api")
        self._limit = threads * (1 + _QUEUED)
        self._busy = 0  # changed on the event loop only
        self._local = threading.local()
        self._states: list[WorkerState] = []

    async def do(self, work: Callable[[WorkerState], T]) -> T:
        """Run work on one of the threads.

        Raises:
            Overloaded: The queue is full.
        """
        if self._busy >= self._limit:
            message = f"{self._busy} requests are in progress; retry in a moment"
            raise Overloaded(message)
        self._busy += 1
        try:
            # Shielded: a client that disconnects must not free a place before its work has ended.
            task = asyncio.get_running_loop().run_in_executor(self._pool, self._with_state, work)
            task.add_done_callback(self._over)
        except BaseException:
            self._busy -= 1
            raise
        return await asyncio.shield(task)

    def close(self) -> None:
        """Finish the work in progress, and close every connection."""
        self._pool.shutdown(wait=True)
        for state in self._states:
            state.close()
        self._notifier.close()

    def _over(self, task: "asyncio.Future[T]") -> None:
        self._busy -= 1
        if not task.cancelled():
            task.exception()  # retrieved, also where the caller no longer waits

    def _with_state(self, work: Callable[[WorkerState], T]) -> T:
        state = getattr(self._local, "state", None)
        if state is None:
            state = self._local.state = WorkerState(
                self._url, self._installation, self._notifier, self._stop, self._options
            )
            self._states.append(state)
        return work(state)


class Pools:
    """The workers of each kind of caller."""

    def __init__(self, url: str, installation: Installation, *, threads: int, stop: Shutdown) -> None:
        self.executors = Workers(url, installation, threads=threads, stop=stop)
        self.reports = Workers(url, installation, threads=_REPORT_THREADS, stop=stop)
        self.strangers = Workers(url, installation, threads=_STRANGER_THREADS, stop=stop)
        self.reads = Workers(url, installation, threads=_READ_THREADS, stop=stop, options=_READ_LIMIT)
        self.streams = Workers(url, installation, threads=_STREAM_THREADS, stop=stop, options=_STREAM_OPTIONS)
        self.writes = Workers(url, installation, threads=_WRITE_THREADS, stop=stop)
        self.keys = Workers(url, installation, threads=_KEY_THREADS, stop=stop)
        self.probes = Workers(url, installation, threads=1, stop=stop)

    def close(self) -> None:
        """Finish the work in progress, and close every connection."""
        for workers in (
            self.streams,
            self.executors,
            self.reports,
            self.strangers,
            self.reads,
            self.writes,
            self.keys,
            self.probes,
        ):
            workers.close()
