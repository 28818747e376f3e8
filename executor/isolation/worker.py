"""A process for handlers that must harm nobody, started by a guardian (`guardian.py`) for an executor.

It runs one attempt at a time, told by frames over two pipes of their own; what is written to standard output and error
goes to the executor by another. It never outlives its executor, nor does what its handlers start: the guardian kills
their process group then.
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
from typing import NoReturn, cast

from tidewheel.errors import TidewheelError
from tidewheel.executor.complete_in import Completer, Completion, checked
from tidewheel.executor.context import Completing, Context, Flag, Previous
from tidewheel.executor.handlers import Handler, import_handlers, registered
from tidewheel.executor.invoke import call, call_async, read_payload, unfit
from tidewheel.executor.isolation.protocol import (
    Frame,
    Frames,
    Kind,
    context_of,
    outcome_frame,
    packed,
    previous_of,
    whose,
    whose_is,
)
from tidewheel.executor.outcome import CANCELLED, Outcome, failed, from_exception

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_READ_BYTES = 64 * 1024
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Worker:
    """The process, as long as it lives."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._setup: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._asking: dict[tuple[object, object], queue.SimpleQueue[Frame]] = {}  # by attempt, which asks one at a time
        self._task: _Task | None = None  # the newest that came
        self._completer: Completer | None = None

    def run(self) -> NoReturn:
        """Prepare as the first frame says, then run attempts until the executor has had enough."""
        threading.Thread(target=self._listen, name="pipe", daemon=True).start()
        try:
            self._prepare(self._setup.get())
        except (TidewheelError, OSError, ValueError) as error:
            self._send(Frame(Kind.UNREADY, {"error": str(error)}))
            sys.exit(1)
        self._send(Frame(Kind.READY, {}))
        with asyncio.Runner() as loop:
            while True:
                outcome = self._attempt(self._tasks.get(), loop)
                _flush()
                # What has once filled its memory has it in pieces: better a new process.
                self._send(outcome_frame(outcome, spent=outcome.error_type == "MemoryError"))

    def _prepare(self, setup: Frame) -> None:
        head = setup.head
        sys.path[:] = cast("list[str]", head["path"])
        _restore("PYTHONPATH", cast("str | None", head["pythonpath"]))
        logging.basicConfig(stream=sys.stderr, level=cast("int", head["level"]), format=_LINE)
        self._completer = pickle.loads(setup.parts[0]) if setup.parts[0] else None  # noqa: S301 - our own executor's
        import_handlers(str(head["modules"]))
        if head["memory_bytes"]:
            most = cast("int", head["memory_bytes"])
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def _attempt(self, task: "_Task", loop: asyncio.Runner) -> Outcome:
        frame = task.frame
        handler = registered().get(str(frame.head["handler"]))
        if handler is None:
            message = f"its worker process knows no handler {frame.head['handler']!r}; do its modules import elsewhere?"
            return failed("WorkerFailed", message, not_begun=True)
        try:
            payload = read_payload(frame.parts[0] or b"", str(frame.head["content_type"]), handler)
        except ValueError as error:
            return unfit(error)
        line = _Line(self, frame)
        context = context_of(frame, task.cancelled, line)
        try:
            if handler.is_async:
                outcome = loop.run(_on_loop(task, handler, context, payload), context=copy_context())
            else:
                outcome = call(handler, context, payload)
        except asyncio.CancelledError as error:
            outcome = CANCELLED if task.cancelled.is_set() else from_exception(error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
            outcome = from_exception(error)
        self._end_fork()
        return line.checked(outcome)

    def _end_fork(self) -> None:
        """A child that the handler forked and that came back from it would go on as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)

    def send(self, frame: Frame) -> None:
        """Tell the executor something, from any thread; a child that was forked tells nothing."""
        if os.getpid() == self._pid:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        data = memoryview(packed(frame))
        with self._sending:
            while data:
                data = data[os.write(self._outgoing, data) :]

    def ask(self, frame: Frame) -> Frame:
        """Ask the executor something and wait for the answer."""
        answer = self._asking[whose_is(frame)] = queue.SimpleQueue()
        self.send(frame)
        return answer.get()

    def completer(self) -> Completer:
        """What completions need.

        Raises:
            RuntimeError: The executor gave none.
        """
        if self._completer is None:
            message = "this executor cannot complete runs in a handler's transaction"
            raise RuntimeError(message)
        return self._completer

    def _listen(self) -> None:
        frames = Frames()
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
                if self._task is not None and whose_is(self._task.frame) == whose_is(frame):
                    self._task.cancel()
            case _:
                if (answer := self._asking.pop(whose_is(frame), None)) is not None:
                    answer.put(frame)


class _Task:
    """An attempt to be run, and the wish that it stops, which may come before it begins."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.cancelled = Flag()
        self.on_cancel: Callable[[], object] | None = None

    def cancel(self) -> None:
        self.cancelled.set()
        if self.on_cancel is not None:
            self.on_cancel()


async def _on_loop(work: _Task, handler: Handler, context: Context, payload: object) -> Outcome:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - a coroutine of a task
    work.on_cancel = lambda: loop.call_soon_threadsafe(task.cancel)
    if work.cancelled.is_set():
        return CANCELLED
    try:
        return await call_async(handler, context, payload)
    finally:
        work.on_cancel = None


class _Line:
    """The channel of one attempt: to the executor, over the pipe."""

    def __init__(self, worker: Worker, frame: Frame) -> None:
        self._worker, self._frame = worker, frame
        self._whose = whose(*whose_is(frame))
        self._asking = threading.Lock()
        self._completion: Completion | None = None

    def beat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        self._worker.send(Frame(Kind.BEAT, self._whose, [progress, checkpoint]))

    def previous(self) -> Previous:
        with self._asking:
            return previous_of(self._worker.ask(Frame(Kind.ASK, self._whose)))

    def completing(self) -> Completing:
        with self._asking:
            if self._completion is None:
                context = context_of(self._frame, Flag(), self)
                self._completion = Completion(self._worker.completer(), context.run_id, context.attempt)
            return self._completion

    def checked(self, outcome: Outcome) -> Outcome:
        return outcome if self._completion is None else checked(outcome, self._completion)


def main(incoming: int, outgoing: int, guardian: int) -> NoReturn:
    """Be a worker, with the pipes from the executor and to it, and the process that started it."""
    _die_with(guardian)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a segfault must not fill the disk
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    for pipe in (incoming, outgoing):
        os.set_inheritable(pipe, False)  # noqa: FBT003 - its only way
    Worker(incoming, outgoing).run()


def _die_with(guardian: int) -> None:
    """Be killed when the guardian is: nobody else would look after this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # it died before that
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
