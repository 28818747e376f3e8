"""`tidewheel.AsyncClient`: the client for coroutines, with its calls in order on one thread.

Each part of `Client` has a counterpart with all of its methods. `async_client.pyi` lists them for editors and type
checkers: `python -m tests.golden` writes it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache, wraps
from inspect import getmembers, isfunction
from types import TracebackType, new_class
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast
from uuid import UUID

from tidewheel.audit import Actor
from tidewheel.control.client.client import Client
from tidewheel.nouns.batches.operations import Batch, Batches
from tidewheel.nouns.operation import Noun
from tidewheel.nouns.runs.detail import FOLLOW_SECONDS
from tidewheel.nouns.runs.model import LogPiece, Run
from tidewheel.nouns.runs.operations import Runs, run_polling
from tidewheel.nouns.works.operations import POLL_SECONDS, Polling, Work, Works
from tidewheel.settings.connections import Connections

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Part(Generic[S]):
    """A part of a client, with the thread that runs its calls."""

    def __init__(self, part: S, thread: "_Thread") -> None:
        self._part, self._thread = part, thread

    def __init_subclass__(cls, of: type[S]) -> None:
        """Add the methods of the part, but those that the class has itself."""
        for name, method in getmembers(of, isfunction):
            if not name.startswith("_") and not hasattr(cls, name):
                setattr(cls, name, _call(method))


def _call(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Part[S], P], Coroutine[Any, Any, T]]:
    """Return the method for coroutines: same arguments, the call on the client's thread."""

    @wraps(method)
    async def call(self: _Part[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.call(lambda: method(self._part, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return cast("Callable[Concatenate[_Part[S], P], Coroutine[Any, Any, T]]", call)


class AsyncRuns(_Part[Runs], of=Runs):
    """`Client.runs` for coroutines; between two reads `wait` leaves the thread to other calls."""

    get = _call(Runs.get)

    async def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """See `Runs.wait`."""
        polling = run_polling(run_id, timeout)
        while polling.goes_on(run := await self.get(run_id), run.state, run.finished_at):
            await asyncio.sleep(polling.pause())
        return run

    async def follow_logs(self, run_id: UUID, attempt: int | None = None) -> AsyncGenerator[LogPiece]:
        """See `Runs.follow_logs`."""
        following = self._part.follow_logs(run_id, attempt)
        while (page := await self._thread.call(following.page)) is not None:
            for piece in page:
                yield piece
            if not page:
                await asyncio.sleep(FOLLOW_SECONDS)


class AsyncBatches(_Part[Batches], of=Batches):
    """`Client.batches` for coroutines."""

    get = _call(Batches.get)

    async def wait(
        self, batch_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Batch], None] | None = None
    ) -> Batch:
        """See `Batches.wait`."""
        polling = Polling("batch", batch_id, timeout, on_progress)
        while polling.goes_on(found := await self.get(batch_id), found.summary.state, found.summary.finished_at):
            await asyncio.sleep(POLL_SECONDS)
        return found


class AsyncWorks(_Part[Works], of=Works):
    """`Client.works` for coroutines."""

    get = _call(Works.get)

    async def wait(
        self, work_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Work], None] | None = None
    ) -> Work:
        """See `Works.wait`."""
        polling = Polling("work", work_id, timeout, on_progress)
        while polling.goes_on(found := await self.get(work_id), found.state, found.finished_at):
            await asyncio.sleep(POLL_SECONDS)
        return found


_BY_HAND: Mapping[type[Noun], type[_Part[Any]]] = {Runs: AsyncRuns, Batches: AsyncBatches, Works: AsyncWorks}


@cache
def _class_of(noun: type[Noun]) -> type[_Part[Any]]:
    """Return the counterpart of a noun."""
    if (by_hand := _BY_HAND.get(noun)) is not None:
        return by_hand
    made = new_class(f"Async{noun.__name__}", (_Part,), {"of": noun}, lambda body: body.update(__doc__=noun.__doc__))
    return cast("type[_Part[Any]]", made)


class AsyncClient(_Part[Client], of=Client):
    """`Client` for coroutines: every method, with the same arguments.

    All calls run on one thread, one after another. A cancelled call still ends on its thread before the next one
    begins, so that the next call cannot commit half a transaction.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        tenant: str = "default",
        settings: Connections | None = None,
        actor: Actor | None = None,
    ) -> None:
        client = Client(database_url, tenant=tenant, settings=settings, actor=actor)
        super().__init__(client, _Thread())
        for name, part in vars(client).items():
            if isinstance(part, Noun):
                setattr(self, name, _class_of(type(part))(part, self._thread))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections and its thread."""
        await self._thread.call(self._part.close)
        self._thread.close()


class _Thread:
    """One thread that runs calls in order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidewheel-client")

    async def call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
