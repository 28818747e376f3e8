# `python -m tests.golden` writes this file.
# pyright: reportUnusedImport=false

from tidewheel.control.client.client import Client
from tidewheel.nouns.jobs.operations import Jobs
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.works.operations import Works
from tidewheel.control.client.client import TaskTokens
from tidewheel.nouns.workflows.operations import Workflows
from tidewheel.nouns.batches.operations import Batches
from tidewheel.control.client.client import Calendars
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.limits.operations import Limits
from tidewheel.nouns.limits.operations import OrderingKeys
from tidewheel.nouns.tenants.operations import Tenants
from tidewheel.nouns.api_keys.operations import ApiKeys
from tidewheel.nouns.audit_log.operations import AuditLog
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
P = ParamSpec('P')
S = TypeVar('S')
T = TypeVar('T')
class _Part(Generic[S]):
    """A part of a client, with the thread that runs its calls."""

    def __init__(self, part: S, thread: '_Thread') -> None:
        ...

    def __init_subclass__(cls, of: type[S]) -> None:
        ...
def _call(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Part[S], P], Coroutine[Any, Any, T]]:
    ...
class AsyncRuns(_Part[Runs], of=Runs):
    """`Client.runs` for coroutines; between two reads `wait` leaves the thread to other calls."""
    get = _call(Runs.get)

    async def wait(self, run_id: UUID, timeout: timedelta | float=60.0) -> Run:
        ...

    async def follow_logs(self, run_id: UUID, attempt: int | None=None) -> AsyncGenerator[LogPiece]:
        ...
    cancel = _call(Runs.cancel)
    cancel_matching = _call(Runs.cancel_matching)
    cancellation = _call(Runs.cancellation)
    cancellations = _call(Runs.cancellations)
    detail = _call(Runs.detail)
    list = _call(Runs.list)
    logs = _call(Runs.logs)
    retry = _call(Runs.retry)
    retry_failed = _call(Runs.retry_failed)
    retry_now = _call(Runs.retry_now)
class AsyncBatches(_Part[Batches], of=Batches):
    """`Client.batches` for coroutines."""
    get = _call(Batches.get)

    async def wait(self, batch_id: UUID, *, timeout: float | None=None, on_progress: Callable[[Batch], None] | None=None) -> Batch:
        ...
    add = _call(Batches.add)
    cancel = _call(Batches.cancel)
    close = _call(Batches.close)
    list = _call(Batches.list)
    resume = _call(Batches.resume)
    submit = _call(Batches.submit)
class AsyncWorks(_Part[Works], of=Works):
    """`Client.works` for coroutines."""
    get = _call(Works.get)

    async def wait(self, work_id: UUID, *, timeout: float | None=None, on_progress: Callable[[Work], None] | None=None) -> Work:
        ...
    cancel = _call(Works.cancel)
    list = _call(Works.list)
    pause = _call(Works.pause)
    resume = _call(Works.resume)
class AsyncClient(_Part[Client], of=Client):
    """`Client` for coroutines: every method, with the same arguments.

    All calls run on one thread, one after another. A cancelled call still ends on its thread before the next one
    begins, so that the next call cannot commit half a transaction.
    """

    def __init__(self, database_url: str | None=None, *, tenant: str='default', settings: Connections | None=None, actor: Actor | None=None) -> None:
        ...

    async def __aenter__(self) -> Self:
        ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ...

    async def close(self) -> None:
        ...
    audit = _call(Client.audit)
    backfill = _call(Client.backfill)
    delete = _call(Client.delete)
    diff = _call(Client.diff)
    explain = _call(Client.explain)
    move = _call(Client.move)
    next = _call(Client.next)
    patch = _call(Client.patch)
    pause = _call(Client.pause)
    preview = _call(Client.preview)
    release = _call(Client.release)
    reschedule = _call(Client.reschedule)
    resume = _call(Client.resume)
    rollback = _call(Client.rollback)
    run_later = _call(Client.run_later)
    skip = _call(Client.skip)
    statistics = _call(Client.statistics)
    submit = _call(Client.submit)
    trigger = _call(Client.trigger)
    trigger_deduped = _call(Client.trigger_deduped)
    unskip = _call(Client.unskip)
    versions = _call(Client.versions)
    jobs: AsyncJobs
    runs: AsyncRuns
    dead_letters: AsyncDeadLetters
    works: AsyncWorks
    task_tokens: AsyncTaskTokens
    workflows: AsyncWorkflows
    batches: AsyncBatches
    calendars: AsyncCalendars
    freezes: AsyncFreezes
    limits: AsyncLimits
    ordering_keys: AsyncOrderingKeys
    tenants: AsyncTenants
    api_keys: AsyncApiKeys
    audit_log: AsyncAuditLog
class _Thread:
    """One thread that runs calls in order."""

    def __init__(self) -> None:
        ...

    async def call(self, call: Callable[[], T]) -> T:
        ...

    def close(self) -> None:
        ...
class AsyncJobs(_Part[Jobs], of=Jobs):
    get = _call(Jobs.get)
    list = _call(Jobs.list)
class AsyncDeadLetters(_Part[DeadLetters], of=DeadLetters):
    get = _call(DeadLetters.get)
    groups = _call(DeadLetters.groups)
    list = _call(DeadLetters.list)
    purge = _call(DeadLetters.purge)
    redrive = _call(DeadLetters.redrive)
class AsyncTaskTokens(_Part[TaskTokens], of=TaskTokens):
    complete = _call(TaskTokens.complete)
    fail = _call(TaskTokens.fail)
    heartbeat = _call(TaskTokens.heartbeat)
class AsyncWorkflows(_Part[Workflows], of=Workflows):
    cancel = _call(Workflows.cancel)
    get = _call(Workflows.get)
    list = _call(Workflows.list)
    parents = _call(Workflows.parents)
    pause = _call(Workflows.pause)
    resume = _call(Workflows.resume)
class AsyncCalendars(_Part[Calendars], of=Calendars):
    delete = _call(Calendars.delete)
    get = _call(Calendars.get)
    list = _call(Calendars.list)
    put = _call(Calendars.put)
class AsyncFreezes(_Part[Freezes], of=Freezes):
    freeze = _call(Freezes.freeze)
    list = _call(Freezes.list)
    preview_thaw = _call(Freezes.preview_thaw)
    thaw = _call(Freezes.thaw)
class AsyncLimits(_Part[Limits], of=Limits):
    keys = _call(Limits.keys)
    list = _call(Limits.list)
    remove = _call(Limits.remove)
    set = _call(Limits.set)
class AsyncOrderingKeys(_Part[OrderingKeys], of=OrderingKeys):
    blocked = _call(OrderingKeys.blocked)
    unblock = _call(OrderingKeys.unblock)
class AsyncTenants(_Part[Tenants], of=Tenants):
    create = _call(Tenants.create)
    delete = _call(Tenants.delete)
    get = _call(Tenants.get)
    grant_role = _call(Tenants.grant_role)
    keep = _call(Tenants.keep)
    limit = _call(Tenants.limit)
    list = _call(Tenants.list)
    pause = _call(Tenants.pause)
    resume = _call(Tenants.resume)
    retention = _call(Tenants.retention)
    revoke_role = _call(Tenants.revoke_role)
    undelete = _call(Tenants.undelete)
    usage = _call(Tenants.usage)
class AsyncApiKeys(_Part[ApiKeys], of=ApiKeys):
    create = _call(ApiKeys.create)
    list = _call(ApiKeys.list)
    revoke = _call(ApiKeys.revoke)
class AsyncAuditLog(_Part[AuditLog], of=AuditLog):
    list = _call(AuditLog.list)
