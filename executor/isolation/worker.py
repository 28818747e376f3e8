"""The worker process: runs isolated handlers for an executor, started by `supervisor.py`.

It runs one attempt at a time. Frames come and go over two pipes of their own, and standard output and error over a
third. Neither the worker nor any process its handlers start outlives the executor: the supervisor then kills their
process group.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import pickle
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn, cast

from tidewheel.clock import boot_seconds
from tidewheel.errors import AttemptOver, TidewheelError
from tidewheel.executor.complete_in import Completion, CompletionConfig
from tidewheel.executor.context import Context, Flag
from tidewheel.executor.context_parts import NEXT_IN_FIRST, Parent, Previous
from tidewheel.executor.handlers import Handler, import_handlers, invalid_payload, registered
from tidewheel.executor.isolation.protocol import (
    Frame,
    FrameReader,
    Kind,
    attempt_head,
    attempt_key,
    context_of,
    encode_frame,
    outcome_frame,
    parents_of,
    previous_of,
    result_of,
)
from tidewheel.executor.log_lines import LogFormat
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, Outcome, failed, from_exception, leave_cuts_to_executor
from tidewheel.process import tracing

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_READ_BYTES = 64 * 1024


class Worker:
    """The process."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._setup: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._replies: dict[tuple[object, object], queue.SimpleQueue[Frame]] = {}  # by attempt, one request at a time
        self._task: _Task | None = None  # the newest that arrived
        self._completion: CompletionConfig | None = None

    def run(self) -> NoReturn:
        """Prepare as the first frame requires, then run attempts until the executor closes the pipe."""
        threading.Thread(target=self._listen, name="pipe", daemon=True).start()
        try:
            self._prepare(self._setup.get())
        except (TidewheelError, OSError, ValueError) as error:
            self._send(Frame(Kind.UNREADY, {"error": str(error)}))
            sys.exit(1)
        leave_cuts_to_executor()
        self._send(Frame(Kind.READY, {}))
        with asyncio.Runner() as loop:
            while True:
                outcome = self._attempt(self._tasks.get(), loop)
                _flush()
                # A process that has filled its memory keeps it fragmented, so a new one replaces it.
                self._send(outcome_frame(outcome, spent=outcome.error_type == "MemoryError"))

    def _prepare(self, setup: Frame) -> None:
        head = setup.head
        sys.path[:] = cast("list[str]", head["path"])
        _restore("PYTHONPATH", cast("str | None", head["pythonpath"]))
        records = logging.StreamHandler(sys.stderr)
        records.setFormatter(LogFormat())
        logging.basicConfig(handlers=[records], level=cast("int", head["level"]))
        self._completion = pickle.loads(setup.parts[0]) if setup.parts[0] else None  # noqa: S301 - our own executor's
        import_handlers(str(head["modules"]))
        if head["traces"]:
            tracing.start("worker")
        if head["memory_bytes"]:
            limit = cast("int", head["memory_bytes"])
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def _attempt(self, task: "_Task", loop: asyncio.Runner) -> Outcome:
        frame = task.frame
        handler = registered().get(str(frame.head["handler"]))
        if handler is None:
            name = frame.head["handler"]
            message = f"the worker process has no handler {name!r}; check that its modules import in a new process"
            return failed("WorkerFailed", message, not_started=True)
        try:
            payload = handler.read_payload(frame.parts[0] or b"", str(frame.head["content_type"]))
        except ValueError as error:
            return invalid_payload(error)
        if boot_seconds() > cast("float", frame.head["not_after"]):
            return NOT_STARTED
        channel = _PipeChannel(self, frame, task)
        context = context_of(frame, task.cancelled, channel)
        try:
            with tracing.entered(context.traceparent):
                if handler.is_async:
                    outcome = loop.run(_on_loop(task, handler, context, payload), context=copy_context())
                else:
                    outcome = handler.call(context, payload)
        except asyncio.CancelledError as error:
            outcome = CANCELLED if task.cancelled.is_set() else from_exception(error)
        except BaseException as error:  # noqa: BLE001 - any exception of a handler is its attempt's outcome
            outcome = from_exception(error)
        self._end_fork()
        return replace(outcome, completes=True) if channel.completes else outcome

    def _end_fork(self) -> None:
        """End a child that the handler forked and that returned from it: it would continue as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)

    def send(self, frame: Frame) -> None:
        """Send a frame to the executor, from any thread; a forked child sends nothing."""
        if os.getpid() == self._pid:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        data = memoryview(encode_frame(frame))
        with self._sending:
            while data:
                data = data[os.write(self._outgoing, data) :]

    def request(self, frame: Frame) -> Frame:
        """Send a request to the executor and wait for the reply."""
        reply = self._replies[attempt_key(frame)] = queue.SimpleQueue()
        self.send(frame)
        return reply.get()

    def completion_config(self) -> CompletionConfig:
        """Return the executor's settings of completions."""
        if self._completion is None:
            raise RuntimeError("this executor cannot complete runs in a handler's transaction")
        return self._completion

    def _listen(self) -> None:
        frames = FrameReader()
        with suppress(OSError):
            while data := os.read(self._incoming, _READ_BYTES):
                for frame in frames.feed(data):
                    self._take(frame)

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.SETUP:
                self._setup.put(frame)
            case Kind.ATTEMPT:
                self._task = _Task(frame)
                self._tasks.put(self._task)
            case Kind.CANCEL:
                if self._task is not None and attempt_key(self._task.frame) == attempt_key(frame):
                    self._task.over = cast("str | None", frame.head.get("over"))
                    self._task.cancel()
            case _:
                if (reply := self._replies.pop(attempt_key(frame), None)) is not None:
                    reply.put(frame)


class _Task:
    """An attempt to run, and its cancellation, which may arrive before it starts."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.cancelled = Flag()
        self.on_cancel: Callable[[], object] | None = None
        self.over: str | None = None  # the reason for which its run is no longer the executor's

    def cancel(self) -> None:
        self.cancelled.set()
        if self.on_cancel is not None and self.over is None:
            self.on_cancel()


async def _on_loop(work: _Task, handler: Handler, context: Context, payload: object) -> Outcome:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - a coroutine of a task
    work.on_cancel = lambda: loop.call_soon_threadsafe(task.cancel)
    if work.cancelled.is_set():
        return CANCELLED
    try:
        return await handler.call_async(context, payload)
    finally:
        work.on_cancel = None


class _PipeChannel:
    """The channel of one attempt to the executor, over the pipe."""

    def __init__(self, worker: Worker, frame: Frame, task: _Task) -> None:
        self._worker, self._frame, self._task = worker, frame, task
        self._head = attempt_head(*attempt_key(frame))
        self._lock = threading.Lock()
        self._completion: Completion | None = None
        self._next_in: timedelta | None = None

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self._require_owned()
        self._worker.send(Frame(Kind.HEARTBEAT, self._head, [progress, checkpoint]))

    def wait_saved(self) -> None:
        if self._completion is not None:
            raise RuntimeError("complete_in comes last: no step can be saved after it")
        with self._lock:
            result_of(self._worker.request(Frame(Kind.SAVE, self._head)))

    def previous(self) -> Previous:
        with self._lock:
            return previous_of(self._worker.request(Frame(Kind.READ_PREVIOUS, self._head)))

    def parents(self, key: str | None) -> dict[str, Parent]:
        with self._lock:
            return parents_of(self._worker.request(Frame(Kind.READ_PARENTS, {**self._head, "key": key})))

    def add_runs(self, document: bytes) -> bool:
        if self._completion is not None:
            raise RuntimeError("complete_in comes last: no run can be added after it")
        with self._lock:
            return bool(result_of(self._worker.request(Frame(Kind.ADD_RUNS, self._head, [document]))))

    def set_next(self, delay: timedelta) -> None:
        if self._completion is not None:
            raise RuntimeError(NEXT_IN_FIRST)
        self._next_in = delay
        self._worker.send(Frame(Kind.NEXT_IN, {**self._head, "seconds": delay.total_seconds()}))

    def completing(self) -> Completion:
        self._require_owned()
        with self._lock:
            if self._completion is None:
                config, context = self._worker.completion_config(), context_of(self._frame, Flag(), self)
                self._completion = Completion(config, context.run_id, context.attempt, next_in=self._next_in)
            return self._completion

    def _require_owned(self) -> None:
        if self._task.over is not None:
            raise AttemptOver(self._task.over)

    @property
    def completes(self) -> bool:
        return self._completion is not None and self._completion.called


def main(incoming: int, outgoing: int, supervisor: int) -> NoReturn:
    """Run the worker, with the pipes from and to the executor, and the process id of its supervisor."""
    _die_with(supervisor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a segfault must not fill the disk
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    for pipe in (incoming, outgoing):
        os.set_inheritable(pipe, False)  # noqa: FBT003 - its only way
    Worker(incoming, outgoing).run()


def _die_with(supervisor: int) -> None:
    """Die with the supervisor: no other process would end this one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before that
        sys.exit(1)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a handler may have closed it
            stream.flush()
