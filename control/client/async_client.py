"""`tidewheel.AsyncClient`: the client for coroutines, with its calls in order on one thread."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast
from uuid import UUID

from tidewheel.audit import Actor
from tidewheel.control.client.client import Calendars, Client, TaskTokens
from tidewheel.nouns.api_keys.operations import ApiKeys
from tidewheel.nouns.audit_log.operations import AuditLog
from tidewheel.nouns.batches.operations import Batch, Batches
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.jobs.operations import Jobs
from tidewheel.nouns.limits.operations import Limits, OrderingKeys
from tidewheel.nouns.runs.detail import FOLLOW_SECONDS
from tidewheel.nouns.runs.model import LogPiece, Run
from tidewheel.nouns.runs.operations import Runs, run_polling
from tidewheel.nouns.tenants.operations import Tenants
from tidewheel.nouns.workflows.operations import Workflows
from tidewheel.nouns.works.operations import POLL_SECONDS, Polling, Work, Works
from tidewheel.settings.connections import Connections

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Part(Generic[S]):
    """A part of a client, with the thread that runs its calls."""

    def __init__(self, part: S, thread: "_Thread") -> None:
        self._part, self._thread = part, thread


def _call(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Part[S], P], Coroutine[Any, Any, T]]:
    """Return the method for coroutines: same arguments, the call on the client's thread."""

    @wraps(method)
    async def call(self: _Part[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.call(lambda: method(self._part, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return cast("Callable[Concatenate[_Part[S], P], Coroutine[Any, Any, T]]", call)


class AsyncJobs(_Part[Jobs]):
    """`Client.jobs` for coroutines."""

    list = _call(Jobs.list)
    get = _call(Jobs.get)


class AsyncRuns(_Part[Runs]):
    """`Client.runs` for coroutines; between two reads `wait` leaves the thread to other calls."""

    list = _call(Runs.list)
    get = _call(Runs.get)
    detail = _call(Runs.detail)
    cancel = _call(Runs.cancel)
    retry = _call(Runs.retry)
    retry_now = _call(Runs.retry_now)
    retry_failed = _call(Runs.retry_failed)
    cancel_matching = _call(Runs.cancel_matching)
    cancellations = _call(Runs.cancellations)
    cancellation = _call(Runs.cancellation)
    logs = _call(Runs.logs)

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


class AsyncDeadLetters(_Part[DeadLetters]):
    """`Client.dead_letters` for coroutines."""

    list = _call(DeadLetters.list)
    get = _call(DeadLetters.get)
    groups = _call(DeadLetters.groups)
    redrive = _call(DeadLetters.redrive)
    purge = _call(DeadLetters.purge)


class AsyncTaskTokens(_Part[TaskTokens]):
    """`Client.task_tokens` for coroutines."""

    complete = _call(TaskTokens.complete)
    fail = _call(TaskTokens.fail)
    heartbeat = _call(TaskTokens.heartbeat)


class AsyncWorkflows(_Part[Workflows]):
    """`Client.workflows` for coroutines."""

    list = _call(Workflows.list)
    parents = _call(Workflows.parents)
    get = _call(Workflows.get)
    pause = _call(Workflows.pause)
    resume = _call(Workflows.resume)
    cancel = _call(Workflows.cancel)


class AsyncBatches(_Part[Batches]):
    """`Client.batches` for coroutines."""

    submit = _call(Batches.submit)
    add = _call(Batches.add)
    close = _call(Batches.close)
    resume = _call(Batches.resume)
    cancel = _call(Batches.cancel)
    get = _call(Batches.get)
    list = _call(Batches.list)

    async def wait(
        self, batch_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Batch], None] | None = None
    ) -> Batch:
        """See `Batches.wait`."""
        polling = Polling("batch", batch_id, timeout, on_progress)
        while polling.goes_on(found := await self.get(batch_id), found.summary.state, found.summary.finished_at):
            await asyncio.sleep(POLL_SECONDS)
        return found


class AsyncWorks(_Part[Works]):
    """`Client.works` for coroutines."""

    list = _call(Works.list)
    get = _call(Works.get)
    pause = _call(Works.pause)
    resume = _call(Works.resume)
    cancel = _call(Works.cancel)

    async def wait(
        self, work_id: UUID, *, timeout: float | None = None, on_progress: Callable[[Work], None] | None = None
    ) -> Work:
        """See `Works.wait`."""
        polling = Polling("work", work_id, timeout, on_progress)
        while polling.goes_on(found := await self.get(work_id), found.state, found.finished_at):
            await asyncio.sleep(POLL_SECONDS)
        return found


class AsyncCalendars(_Part[Calendars]):
    """`Client.calendars` for coroutines."""

    put = _call(Calendars.put)
    delete = _call(Calendars.delete)
    list = _call(Calendars.list)
    get = _call(Calendars.get)


class AsyncFreezes(_Part[Freezes]):
    """`Client.freezes` for coroutines."""

    freeze = _call(Freezes.freeze)
    thaw = _call(Freezes.thaw)
    preview_thaw = _call(Freezes.preview_thaw)
    list = _call(Freezes.list)


class AsyncLimits(_Part[Limits]):
    """`Client.limits` for coroutines."""

    set = _call(Limits.set)
    remove = _call(Limits.remove)
    list = _call(Limits.list)
    keys = _call(Limits.keys)


class AsyncOrderingKeys(_Part[OrderingKeys]):
    """`Client.ordering_keys` for coroutines."""

    blocked = _call(OrderingKeys.blocked)
    unblock = _call(OrderingKeys.unblock)


class AsyncTenants(_Part[Tenants]):
    """`Client.tenants` for coroutines."""

    create = _call(Tenants.create)
    list = _call(Tenants.list)
    get = _call(Tenants.get)
    limit = _call(Tenants.limit)
    pause = _call(Tenants.pause)
    resume = _call(Tenants.resume)
    delete = _call(Tenants.delete)
    undelete = _call(Tenants.undelete)
    grant_role = _call(Tenants.grant_role)
    revoke_role = _call(Tenants.revoke_role)
    usage = _call(Tenants.usage)
    keep = _call(Tenants.keep)
    retention = _call(Tenants.retention)


class AsyncApiKeys(_Part[ApiKeys]):
    """`Client.api_keys` for coroutines."""

    create = _call(ApiKeys.create)
    list = _call(ApiKeys.list)
    revoke = _call(ApiKeys.revoke)


class AsyncAuditLog(_Part[AuditLog]):
    """`Client.audit_log` for coroutines."""

    list = _call(AuditLog.list)


class AsyncClient(_Part[Client]):
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
        self.jobs = AsyncJobs(client.jobs, self._thread)
        self.runs = AsyncRuns(client.runs, self._thread)
        self.dead_letters = AsyncDeadLetters(client.dead_letters, self._thread)
        self.works = AsyncWorks(client.works, self._thread)
        self.task_tokens = AsyncTaskTokens(client.task_tokens, self._thread)
        self.workflows = AsyncWorkflows(client.workflows, self._thread)
        self.batches = AsyncBatches(client.batches, self._thread)
        self.calendars = AsyncCalendars(client.calendars, self._thread)
        self.freezes = AsyncFreezes(client.freezes, self._thread)
        self.limits = AsyncLimits(client.limits, self._thread)
        self.ordering_keys = AsyncOrderingKeys(client.ordering_keys, self._thread)
        self.tenants = AsyncTenants(client.tenants, self._thread)
        self.api_keys = AsyncApiKeys(client.api_keys, self._thread)
        self.audit_log = AsyncAuditLog(client.audit_log, self._thread)

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

    submit = _call(Client.submit)
    patch = _call(Client.patch)
    trigger = _call(Client.trigger)
    trigger_deduped = _call(Client.trigger_deduped)
    run_later = _call(Client.run_later)
    pause = _call(Client.pause)
    resume = _call(Client.resume)
    delete = _call(Client.delete)
    release = _call(Client.release)
    rollback = _call(Client.rollback)
    skip = _call(Client.skip)
    move = _call(Client.move)
    unskip = _call(Client.unskip)
    reschedule = _call(Client.reschedule)
    backfill = _call(Client.backfill)
    audit = _call(Client.audit)
    explain = _call(Client.explain)
    next = _call(Client.next)
    statistics = _call(Client.statistics)
    preview = _call(Client.preview)
    versions = _call(Client.versions)
    diff = _call(Client.diff)


class _Thread:
    """One thread that runs calls in order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidewheel-client")

    async def call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
