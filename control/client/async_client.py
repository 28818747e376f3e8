"""`tidewheel.AsyncClient`: the client for coroutines, with its calls in order on one thread."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.control.client.release import ReleaseResult
from tidewheel.control.client.results import Job, Run
from tidewheel.control.client.runs import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS
from tidewheel.ids import RunId
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import RunState
from tidewheel.settings.connections import Connections

T = TypeVar("T")


class AsyncClient:
    """`Client` for coroutines: submit, trigger, release, `runs` and `task_tokens`.

    All calls run on one thread, one after another. A cancelled call still ends on its thread before the next one
    begins, so that the next call cannot commit half a transaction.

    Attributes:
        runs: Read, wait for and cancel runs.
        task_tokens: Complete, fail and keep alive an attempt by its task token.
    """

    def __init__(
        self, database_url: str | None = None, *, tenant: str = "default", settings: Connections | None = None
    ) -> None:
        self._client = Client(database_url, tenant=tenant, settings=settings)
        self._thread = _Thread()
        self.runs = AsyncRuns(self._client, self._thread)
        self.task_tokens = AsyncTaskTokens(self._client, self._thread)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.call(self._client.close)
        self._thread.close()

    async def submit(
        self, job: Mapping[str, object] | JobSpec, *, if_version: int | None = None, request_id: str | None = None
    ) -> Job:
        """See `Client.submit`."""
        return await self._thread.call(lambda: self._client.submit(job, if_version=if_version, request_id=request_id))

    async def trigger(
        self,
        key: str,
        payload: object = None,
        *,
        delay: timedelta | float | None = None,
        run_at: datetime | None = None,
        labels: dict[str, str] | None = None,
        overlap: str | None = None,
        request_id: str | None = None,
    ) -> RunId:
        """See `Client.trigger`."""
        return await self._thread.call(
            lambda: self._client.trigger(
                key, payload, delay=delay, run_at=run_at, labels=labels, overlap=overlap, request_id=request_id
            )
        )

    async def release(
        self, *keys: str, error: str | None = None, everything: bool = False, dry_run: bool = False
    ) -> ReleaseResult:
        """See `Client.release`."""
        return await self._thread.call(
            lambda: self._client.release(*keys, error=error, everything=everything, dry_run=dry_run)
        )


class _Thread:
    """One thread that runs calls in order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidewheel-client")

    async def call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class AsyncRuns:
    """`Client.runs` for coroutines."""

    def __init__(self, client: Client, thread: _Thread) -> None:
        self._runs, self._thread = client.runs, thread

    async def get(self, run_id: UUID) -> Run:
        """See `Runs.get`."""
        return await self._thread.call(lambda: self._runs.get(run_id))

    async def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """See `Runs.cancel`."""
        return await self._thread.call(lambda: self._runs.cancel(run_id, reason=reason))

    async def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """See `Runs.wait`."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline, pause = monotonic_seconds() + seconds, FIRST_POLL_SECONDS
        while not (run := await self.get(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        return run


class AsyncTaskTokens:
    """`Client.task_tokens` for coroutines."""

    def __init__(self, client: Client, thread: _Thread) -> None:
        self._tokens, self._thread = client.task_tokens, thread

    async def complete(self, token: str, result: object = None, *, request_id: str | None = None) -> RunState:
        """See `TaskTokens.complete`."""
        return await self._thread.call(lambda: self._tokens.complete(token, result, request_id=request_id))

    async def fail(
        self,
        token: str,
        error_type: str | None = None,
        error_message: str | None = None,
        *,
        permanent: bool = False,
        request_id: str | None = None,
    ) -> RunState:
        """See `TaskTokens.fail`."""
        return await self._thread.call(
            lambda: self._tokens.fail(token, error_type, error_message, permanent=permanent, request_id=request_id)
        )

    async def heartbeat(self, token: str, progress: object = None, checkpoint: object = None) -> RunState:
        """See `TaskTokens.heartbeat`."""
        return await self._thread.call(lambda: self._tokens.heartbeat(token, progress, checkpoint))
