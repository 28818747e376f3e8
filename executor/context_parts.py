"""Parts of a handler's context: the channel to its executor, its steps, the batch of its run.

A step that has finished and is saved is not repeated by a later attempt: it gets the saved result. A checkpoint that
holds steps is a JSON object whose first name is `tidewheel.steps`. Its `tidewheel.times` are for the page of the run.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_json

from tidewheel.clock import SystemClock
from tidewheel.errors import AttemptOver, Permanent, refuse
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, strict_json
from tidewheel.jobs.values import MAX_RESULT_BYTES, MAX_TEXT
from tidewheel.turns import SharedThreads

if TYPE_CHECKING:
    from tidewheel.executor.complete_in import Completion

T = TypeVar("T")

ADDERS = 4
"""Calls of one executor that add at the same time; further ones wait."""

# Not the loop's own threads, which have no shares. Each of these may wait seconds: for a locked batch, or a locked run.
_ADDS = SharedThreads(ADDERS, "batch-add")
CALLS = SharedThreads(32, "handler-call")

NEXT_IN_FIRST = "complete_in comes last: call next_in before it"

OWN = "checkpoint"
"""The member of a checkpoint with steps that is the handler's own checkpoint."""

_STEPS, _TIMES = "tidewheel.steps", "tidewheel.times"
_TIMED = 100  # steps of a run whose times are kept, the newest: at most 10 KiB of names and errors
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEAD = f'{{"{_STEPS}":'.encode()


@dataclass(frozen=True, slots=True)
class Previous:
    """A job's runs before this one.

    Args:
        scheduled_at: The job's last earlier instant that became a run; None if there is none.
        result: Return value of the last earlier run that succeeded, as plain values. None if it returned nothing, or
            its result has expired.
        result_at: That run's nominal instant; None if no earlier run has succeeded.
    """

    scheduled_at: datetime | None = None
    result: object = None
    result_at: datetime | None = None


class Parent:
    """The latest run of a parent in the occurrence of a child.

    Args:
        run_id: The run; None if it is no longer stored.
        status: Its state, such as `succeeded` or `skipped`; None likewise.
        result: Its return value, as plain values.
        expired: True if the run or its result is no longer stored; the result is None then.
        left_out_bytes: The size of a result that is left out, because all together are larger than 64 KiB.
    """

    __slots__ = ("_result", "expired", "left_out_bytes", "run_id", "status")

    def __init__(
        self,
        run_id: UUID | None,
        status: str | None,
        result: object = None,
        *,
        expired: bool = False,
        left_out_bytes: int = 0,
    ) -> None:
        self.run_id, self.status, self.expired = run_id, status, expired
        self._result, self.left_out_bytes = result, left_out_bytes

    @property
    def result(self) -> object:
        """Its return value, as plain values; None if it returned nothing, or has expired.

        Raises:
            LookupError: All results together are larger than 64 KiB: read this one by `ctx.parent(key)`.
        """
        if self.left_out_bytes:
            raise LookupError(
                f"the parents' results have more than 64 KiB together, and this one of {self.left_out_bytes} bytes is"
                " left out; read it by ctx.parent(key), or await ctx.parent_async(key)"
            )
        return self._result

    def __repr__(self) -> str:
        return f"Parent({self.run_id!r}, {self.status!r})"


class HandlerChannel(Protocol):
    """The connection from a handler to its executor: calls, or a pipe from the handler's own process."""

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Record a heartbeat with JSON texts to be saved; never waits."""
        ...

    def wait_saved(self) -> None:
        """Wait until what was recorded is saved."""
        ...

    def previous(self) -> Previous:
        """Look up the job's earlier runs; waits for the database."""
        ...

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        """Look up the parents' runs in the occurrence, or that of one parent; waits for the database."""
        ...

    def add_runs(self, document: bytes) -> bool:
        """Add runs to the batch of the run; return False if it has them already; waits for the database."""
        ...

    def set_next(self, delay: timedelta) -> None:
        """Keep the time from the run's end to the job's next run."""
        ...

    def completing(self) -> "Completion":
        """Return the completion of the attempt's run inside a transaction of its handler."""
        ...


class NoChannel:
    """The channel of a context that no executor created, as in a unit test of a handler."""

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Do nothing."""

    def wait_saved(self) -> None:
        """Return at once."""

    def previous(self) -> Previous:
        """Return that there are no earlier runs."""
        return Previous()

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        """Return that there are no parents."""
        del key
        return {}

    def add_runs(self, document: bytes) -> bool:
        """Refuse: there is no run whose batch gets them."""
        del document
        message = "this context has no run; tidewheel.testing.run_handler creates one that accepts ctx.batch.add"
        raise RuntimeError(message)

    def set_next(self, delay: timedelta) -> None:
        """Do nothing."""

    def completing(self) -> "Completion":
        """Refuse: there is no run to complete."""
        message = "this context has no run; tidewheel.testing.run_handler creates one that accepts complete_in"
        raise RuntimeError(message)


def refuse_loop(method: str, arguments: str) -> None:
    """Refuse a call that blocks, on the event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = f"ctx.{method}({arguments}) would block the event loop; write `await ctx.{method}_async({arguments})`"
    raise RuntimeError(message)


class RunBatch:
    """The batch that a run belongs to."""

    __slots__ = ("_channel", "_tenant")

    def __init__(self, channel: HandlerChannel, tenant: str) -> None:
        self._channel, self._tenant = channel, tenant

    def add(self, runs: Sequence[Mapping[str, object]]) -> bool:
        """Add runs to the batch; return False if it has all of them already, as in a later attempt.

        The runs are there when this returns, whatever becomes of the attempt. A later attempt that adds the same refs
        adds nothing. It blocks, so a coroutine awaits `add_async` instead.

        Args:
            runs: Each with `ref`, `key`, and `payload`, `delay` or `after` if needed; at most 10,000. `after` may also
                name runs that the batch has, such as this one.

        Raises:
            InvalidInput: The run belongs to no batch, the batch is being cancelled, or a run does not fit. No run was
                added.
            Unavailable: The database does not answer. The runs may be there: add the same refs again.
            RuntimeError: It was called on the event loop, which it would block, or after `complete_in`.
        """
        refuse_loop("batch.add", "…")
        return self._channel.add_runs(_document(runs))

    async def add_async(self, runs: Sequence[Mapping[str, object]]) -> bool:
        """As `add`, without blocking the loop."""
        document = _document(runs)
        return await on_thread(_ADDS, self._tenant, lambda: self._channel.add_runs(document))


async def on_thread(threads: SharedThreads, tenant: str, call: Callable[[], T]) -> T:
    """Await a call on a thread of a tenant's share, with the context variables of its caller."""
    context = copy_context()
    return await asyncio.wrap_future(threads.submit(tenant, lambda: context.run(call)))


def _document(runs: Sequence[Mapping[str, object]]) -> bytes:
    try:
        text = strict_json({"runs": runs})
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        refuse("runs", f"cannot be serialized to JSON ({error})", "use plain values or pydantic models")
    if len(text) > MAX_DOCUMENT_BYTES:
        problem = f"have {len(text)} bytes as JSON, more than {MAX_DOCUMENT_BYTES}"
        refuse("runs", problem, "split them into several calls")
    return text


class StepTime(NamedTuple):
    """A step of an attempt that has ended, by the executor's clock; `error_type` if its function raised."""

    name: str
    attempt: int
    began_at: datetime
    ended_at: datetime
    error_type: str | None


def step_times(checkpoint: bytes | None) -> Sequence[StepTime]:
    """Return the recorded times of a run's steps in the order of their ends."""
    if not has_steps(checkpoint):
        return ()
    times = json.loads(checkpoint or b"").get(_TIMES, ())
    return [
        StepTime(name, attempt, _instant(since), _instant(until), error) for name, attempt, since, until, error in times
    ]


def _instant(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


class Steps:
    """The finished steps of a run, and its handler's own checkpoint; safe from every thread."""

    def __init__(self, checkpoint: bytes | None, attempt: int) -> None:
        self._done, self._own, self._attempt = dict[str, bytes](), checkpoint, attempt
        self._times = list[object]()
        if has_steps(checkpoint):
            document = json.loads(checkpoint or b"")
            self._done = {name: to_json(result) for name, result in document[_STEPS].items()}
            self._own = to_json(document[OWN]) if OWN in document else None
            self._times = document.get(_TIMES, [])
        self._began = dict[str, datetime]()  # the steps of this attempt
        self._lock = threading.Lock()

    def begin(self, name: str) -> bytes | None:
        """Take a name; return the saved result of an earlier attempt as JSON, None if the step must run."""
        if not 1 <= len(name) <= MAX_TEXT:
            raise ValueError(f"a step's name must have 1 to {MAX_TEXT} characters, not {len(name)}")
        with self._lock:
            if name in self._began:
                raise ValueError(f"step {name!r} was already used in this attempt; give each step its own name")
            self._began[name] = SystemClock().now()
            return self._done.get(name)

    def finish(self, name: str, result: object, save: Callable[[bytes], None]) -> bytes:
        """Add a step's result and pass the checkpoint on; return the result as JSON, or raise Permanent."""
        try:
            text = strict_json(result)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            message = f"the result of step {name!r} cannot be serialized to JSON ({error}); return plain values"
            raise Permanent(message) from error
        with self._lock:
            checkpoint = self._checkpoint(self._done | {name: text}, self._own)
            if len(checkpoint) > MAX_RESULT_BYTES:
                raise Permanent(
                    f"the result of step {name!r} has {len(text)} bytes as JSON, and brings the run's checkpoint to"
                    f" {len(checkpoint)}, more than {MAX_RESULT_BYTES}; store it elsewhere and return its address"
                )
            self._done[name] = text
            self._add_time(name, None)
            save(self._checkpoint(self._done, self._own))
        return text

    @contextmanager
    def recording(self, name: str, save: Callable[[bytes], None]) -> Generator[None]:
        """Record the time of a step that raises; it is saved with the next save, and before the attempt's end."""
        try:
            yield
        except BaseException as error:
            with self._lock, suppress(AttemptOver):
                self._add_time(name, type(error).__name__)
                save(self._checkpoint(self._done, self._own))
            raise

    def _add_time(self, name: str, error_type: str | None) -> None:
        since, until = ((at - _EPOCH) // timedelta(milliseconds=1) for at in (self._began[name], SystemClock().now()))
        self._times = [*self._times[1 - _TIMED :], [name, self._attempt, since, until, error_type]]

    def keep(self, own: bytes, save: Callable[[bytes], None]) -> None:
        """Replace the handler's own checkpoint, and pass the whole on; change nothing if it is too large."""
        with self._lock:
            checkpoint = self._checkpoint(self._done, own)
            if len(checkpoint) > MAX_RESULT_BYTES:
                raise ValueError(
                    f"checkpoint and finished steps have {len(checkpoint)} bytes as JSON, more than"
                    f" {MAX_RESULT_BYTES}; store the data elsewhere and checkpoint its address"
                )
            self._own = own
            save(checkpoint)

    def _checkpoint(self, done: dict[str, bytes], own: bytes | None) -> bytes:
        """Return the checkpoint, without times if they do not fit beside the results."""
        steps = b",".join(to_json(name) + b":" + result for name, result in done.items())
        rest = b"" if own is None else b',"%b":%b' % (OWN.encode(), own)
        times = b',"%b":%b' % (_TIMES.encode(), to_json(self._times)) if self._times else b""
        with_times, without = b"%b{%b}%b%b}" % (_HEAD, steps, times, rest), b"%b{%b}%b}" % (_HEAD, steps, rest)
        return with_times if len(with_times) <= MAX_RESULT_BYTES else without


def has_steps(checkpoint: bytes | None) -> bool:
    """Return True for a checkpoint that holds steps."""
    return checkpoint is not None and checkpoint.startswith(_HEAD)


def own_checkpoint(checkpoint: bytes | None) -> object:
    """Return the handler's own checkpoint as plain values; None if there is none."""
    if checkpoint is None:
        return None
    value = json.loads(checkpoint)
    return value.get(OWN) if has_steps(checkpoint) else value
