"""`tidewheel.AsyncClient`: the client for coroutines, its calls on one thread of its own, one after another."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS, Client
from tidewheel.control.client.results import Job, Run
from tidewheel.ids import RunId
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import RunState

Answer = TypeVar("Answer")


class AsyncClient:
    """`Client` for coroutines: submit, trigger, run, cancel, wait, and what a task token allows, awaited.

    All on one thread, one after another. A call that is cancelled ends on its thread all the same, before the next one
    begins: half a transaction is never left for the next call to commit.
    """

    def __init__(self, database_url: str | None = None, *, tenant: str = "default") -> None:
        self._client = Client(database_url, tenant=tenant)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidewheel-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._on_thread(self._client.close)
        self._thread.shutdown(wait=False)

    async def submit(
        self, job: Mapping[str, object] | JobSpec, *, if_version: int | None = None, request_id: str | None = None
    ) -> Job:
        """See `Client.submit`."""
        return await self._on_thread(lambda: self._client.submit(job, if_version=if_version, request_id=request_id))

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
        return await self._on_thread(
            lambda: self._client.trigger(
                key, payload, delay=delay, run_at=run_at, labels=labels, overlap=overlap, request_id=request_id
            )
        )

    async def run(self, run_id: UUID) -> Run:
        """See `Client.run`."""
        return await self._on_thread(lambda: self._client.run(run_id))

    async def cancel(self, run_id: UUID, *, reason: str | None = None) -> RunState:
        """See `Client.cancel`."""
        return await self._on_thread(lambda: self._client.cancel(run_id, reason=reason))

    async def complete(self, token: str, result: object = None, *, request_id: str | None = None) -> RunState:
        """See `Client.complete`."""
        return await self._on_thread(lambda: self._client.complete(token, result, request_id=request_id))

    async def fail(
        self,
        token: str,
        error_type: str | None = None,
        error_message: str | None = None,
        *,
        permanent: bool = False,
        request_id: str | None = None,
    ) -> RunState:
        """See `Client.fail`."""
        return await self._on_thread(
            lambda: self._client.fail(token, error_type, error_message, permanent=permanent, request_id=request_id)
        )

    async def heartbeat(self, token: str, progress: object = None, checkpoint: object = None) -> RunState:
        """See `Client.heartbeat`."""
        return await self._on_thread(lambda: self._client.heartbeat(token, progress, checkpoint))

    async def wait(self, run_id: UUID, timeout: timedelta | float = 60.0) -> Run:
        """See `Client.wait`."""
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline, pause = monotonic_seconds() + seconds, FIRST_LOOK_SECONDS
        while not (run := await self.run(run_id)).final:
            if monotonic_seconds() >= deadline:
                message = f"run {run_id} is {run.state} after {seconds:g} s"
                raise TimeoutError(message)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
        return run

    async def _on_thread(self, call: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
