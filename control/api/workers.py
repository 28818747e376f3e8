"""The threads that do a request's database work: each with connections of its own, none of it on the event loop."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from tidewheel.control.api.problems import Overloaded
from tidewheel.control.client.connection import Door
from tidewheel.executor.remote_executors import RemoteExecutors
from tidewheel.postgres.notify import Notifier
from tidewheel.postgres.session import Session
from tidewheel.process.service import Shutdown
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.installation import Installation

T = TypeVar("T")

_WAITING = 16  # requests that may wait for each thread: at some milliseconds each, more of them would wait for seconds


class Asking(Door):
    """Asks what `Client` asks, with documents as they come."""

    def ask(self, document: Mapping[str, object]) -> Reply:
        """Apply a request, under its request_id where it names one.

        Raises:
            Refused: Something in it does not fit.
            Unavailable: The database does not answer.
        """
        return self._ask(document, cast("str | None", document.get("request_id")))


class Desk:
    """What one thread works with."""

    def __init__(self, url: str, installation: Installation, notifier: Notifier, stop: Shutdown) -> None:
        self._url = url
        self._asking: Asking | None = None
        self.session = Session(url, "tidewheel-api")
        self.executors = RemoteExecutors(self.session, installation, poke=notifier.notify, stop=stop)

    def asking(self) -> Asking:
        """What applies requests; made when it is first needed.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._asking is None:
            self._asking = Asking(self._url)
        return self._asking

    def close(self) -> None:
        """Close its connections."""
        self.session.close()
        if self._asking is not None:
            self._asking.close()


class Workers:
    """A few threads, and a bounded queue in front of them."""

    def __init__(self, url: str, installation: Installation, *, threads: int, stop: Shutdown) -> None:
        self._url, self._installation, self._stop = url, installation, stop
        self._notifier = Notifier(url, "tidewheel-api-notify")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="api")
        self._most = threads * (1 + _WAITING)
        self._busy = 0  # counted on the event loop alone
        self._own = threading.local()
        self._desks: list[Desk] = []

    async def do(self, work: Callable[[Desk], T]) -> T:
        """Have one of the threads do something.

        Raises:
            Overloaded: Too much waits already.
        """
        if self._busy >= self._most:
            message = f"{self._busy} requests are under way; come again in a moment"
            raise Overloaded(message)
        self._busy += 1
        try:
            # Shielded: who hangs up must not make room for more than there is.
            task = asyncio.get_running_loop().run_in_executor(self._pool, self._at_desk, work)
            task.add_done_callback(self._over)
        except BaseException:
            self._busy -= 1
            raise
        return await asyncio.shield(task)

    def close(self) -> None:
        """Let what is under way end, and close every connection."""
        self._pool.shutdown(wait=True)
        for desk in self._desks:
            desk.close()
        self._notifier.close()

    def _over(self, task: "asyncio.Future[T]") -> None:
        self._busy -= 1
        if not task.cancelled():
            task.exception()  # looked at, also where nobody waits for it any more

    def _at_desk(self, work: Callable[[Desk], T]) -> T:
        desk = getattr(self._own, "desk", None)
        if desk is None:
            desk = self._own.desk = Desk(self._url, self._installation, self._notifier, self._stop)
            self._desks.append(desk)
        return work(desk)
