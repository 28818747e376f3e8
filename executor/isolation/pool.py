"""Pool of warm worker processes for isolated handlers: killable, and harmless to other attempts.

Each process has a thread. The thread starts the process, sends it an attempt, receives its frames until the attempt has
ended, and starts another process if this one dies. The event loop waits for none of that.
"""

import asyncio
import logging
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import cast

from tidewheel.errors import AttemptOver
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.isolation.process import Died, Setup, WorkerProcess
from tidewheel.executor.isolation.protocol import (
    Frame,
    Kind,
    attempt_head,
    attempt_key,
    outcome_of,
    reply_to,
    reply_too_late,
)
from tidewheel.executor.outcome import NOT_STARTED, Outcome, failed
from tidewheel.process.metrics import metrics
from tidewheel.redaction import redact

_LOG = logging.getLogger("tidewheel.executor")

DIED = "ProcessDied"
UNUSABLE = "WorkerFailed"

_CHECK_SECONDS = 0.05
_WARM_SECONDS = 5.0
_START_SECONDS = 60.0  # for importing handlers on a busy machine; a process that takes longer hangs
_DYING_SECONDS = 2.0  # SIGTERM, half a second, SIGKILL, and a busy machine
_CLOSE_SECONDS = 5.0
_OUTPUT_CHARACTERS = 2048  # of the output of a process that did not become ready
_KEPT_BYTES = 16 * _OUTPUT_CHARACTERS  # a secret that was cut in half is not among the characters that are shown


@dataclass(eq=False)
class _QueuedAttempt:
    """An attempt to run in a worker process; taking it back before its start cancels its future."""

    attempt: Attempt
    on_start: Callable[[], None]
    future: Future[Outcome] = field(default_factory=Future[Outcome])
    stop_requested: bool = False
    abandoned: bool = False
    wake: Callable[[], None] = lambda: None

    def request_stop(self) -> None:
        self.stop_requested = True
        self.wake()

    def abandon(self) -> None:
        self.abandoned = True
        self.wake()


class WorkerPool:
    """The worker processes of one executor, at most `processes`; each is started when first needed."""

    def __init__(self, setup: Setup, *, processes: int) -> None:
        self._setup, self._most = setup, processes
        self._queue: queue.SimpleQueue[_QueuedAttempt | None] = queue.SimpleQueue()
        self._workers: list[_WorkerThread] = []
        self._open = 0  # queued attempts that have not ended
        self._lock = threading.Lock()
        self._warming = threading.Timer(_WARM_SECONDS, self._warm)
        self._warming.daemon = True

    def warm(self) -> None:
        """Start one process in advance, five seconds from now: a starting executor needs the processor itself."""
        self._warming.start()

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt in a process that runs nothing else meanwhile.

        If the task is cancelled because the attempt is requested to stop, the process continues until the attempt's end
        is reported, at the latest after its grace. If its time is over, the process is killed.
        """
        queued = _QueuedAttempt(attempt, partial(attempt.restart_clock, asyncio.get_running_loop()))
        attempt.wait_for_worker(queued.future.cancel)
        self._submit(queued)
        ended = asyncio.wrap_future(queued.future)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not queued.future.cancel():
                await _stop(queued, ended)
            raise

    def close(self) -> None:
        """Kill the processes."""
        self._warming.cancel()
        with self._lock:
            workers, self._workers, self._most = self._workers, [], 0
        for worker in workers:
            self._queue.put(None)
            worker.close()
        for worker in workers:
            worker.join(_CLOSE_SECONDS)

    def _warm(self) -> None:
        with self._lock:
            if not self._workers and self._most:
                self._add_thread()

    def _submit(self, queued: _QueuedAttempt) -> None:
        with self._lock:
            self._open += 1
            if self._open > len(self._workers) and len(self._workers) < self._most:
                self._add_thread()
        self._queue.put(queued)

    def _add_thread(self) -> None:
        self._workers.append(_WorkerThread(self._setup, self._queue, self._count_ended, number=len(self._workers)))

    def _count_ended(self) -> None:
        with self._lock:
            self._open -= 1


async def _stop(queued: _QueuedAttempt, ended: "asyncio.Future[Outcome]") -> None:
    """End a running attempt: let it stop by itself until its end is reported, then kill it."""
    attempt = queued.attempt
    try:
        if attempt.stop_outcome is None and attempt.cancelled.is_set():
            queued.request_stop()
            while not ended.done() and not attempt.reported:
                await asyncio.wait({ended}, timeout=_CHECK_SECONDS)
    finally:
        queued.abandon()
    await asyncio.wait({ended}, timeout=_DYING_SECONDS)


class _WorkerThread:
    """A thread and its worker process, if that is alive."""

    def __init__(
        self,
        setup: Setup,
        attempts: "queue.SimpleQueue[_QueuedAttempt | None]",
        on_end: Callable[[], None],
        *,
        number: int,
    ) -> None:
        self._setup, self._queue, self._on_end = setup, attempts, on_end
        self._wakes, self._wakeup = socket.socketpair()
        for end in (self._wakes, self._wakeup):
            end.settimeout(0)
        self._closing = False
        self._process: WorkerProcess | None = None
        self._replies: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"isolated-{number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._wake()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _wake(self) -> None:
        with suppress(OSError):  # full, so the thread wakes up anyway; or closed
            self._wakes.send(b"!")

    def _run(self) -> None:
        self._refresh()
        while (queued := self._queue.get()) is not None:
            self._serve(queued)
            self._on_end()
            self._refresh()
        self._drop()
        self._wakes.close()
        self._wakeup.close()

    def _refresh(self) -> None:
        if not self._closing:
            problem = self._start()
            if problem:
                _LOG.warning("%s; the executor tries again with the next attempt", problem)

    def _serve(self, queued: _QueuedAttempt) -> None:
        queued.wake = self._wake
        problem = self._start()
        if not queued.future.set_running_or_notify_cancel():
            return
        if problem:
            queued.future.set_result(failed(UNUSABLE, problem, not_started=True))
            return
        if queued.attempt.lease.is_over():
            queued.future.set_result(NOT_STARTED)
            return
        queued.on_start()
        try:
            outcome = self._converse(queued)
        except Exception as error:  # noqa: BLE001 - this thread must not end
            _LOG.exception("the exchange with a worker process failed; its attempt fails, and a new process starts")
            self._drop()
            outcome = failed(UNUSABLE, f"communication with the worker process failed: {error}")
        queued.future.set_result(outcome)

    def _start(self) -> str | None:
        """Start a process unless a usable one is running; return the problem if there is none."""
        if self._process is not None and self._process.alive():
            return None
        self._drop()
        output = bytearray()

        def keep(data: bytes) -> None:
            output.extend(data)
            del output[:-_KEPT_BYTES]

        try:
            self._process = WorkerProcess(self._setup, self._wakeup)
            self._process.limit(_START_SECONDS)
            frame = self._process.receive(keep, self._on_wakeup)
        except (OSError, Died) as error:
            problem = str(error)
        else:
            self._process.limit(None)
            if frame.kind is Kind.READY:
                return None
            problem = str(frame.head.get("error"))
        self._drop()
        text = redact(output.decode("utf-8", "replace").strip())[-_OUTPUT_CHARACTERS:]
        return f"a worker process did not become ready: {problem}" + (f"; its output: {text}" if text else "")

    def _converse(self, queued: _QueuedAttempt) -> Outcome:
        process, attempt = self._process, queued.attempt
        assert process is not None  # noqa: S101 - started by `_serve`
        process.discard_output()
        process.send(_attempt_frame(attempt))
        cancel_sent = False

        def on_wakeup() -> None:
            nonlocal cancel_sent
            self._on_wakeup()
            if queued.abandoned:
                process.interrupt()
            elif queued.stop_requested and not cancel_sent:
                cancel_sent = True
                process.send(Frame(Kind.CANCEL, attempt_head(*attempt.key)))
            while not self._replies.empty():
                process.send(self._replies.get())

        while True:
            try:
                frame = process.receive(attempt.write, on_wakeup)
            except Died as died:
                metrics.count("worker_processes_lost")
                self._drop()
                return failed(DIED, died.reason)
            match frame.kind:
                case Kind.OUTCOME:
                    if frame.head["spent"] or process.interrupted:
                        self._drop()
                    return outcome_of(frame)
                case Kind.HEARTBEAT if _is_of(frame, attempt):
                    try:
                        attempt.heartbeat(frame.parts[0], frame.parts[1])
                    except AttemptOver as error:
                        process.send(Frame(Kind.CANCEL, {**attempt_head(*attempt.key), "over": str(error)}))
                case Kind.NEXT_IN if _is_of(frame, attempt):
                    attempt.set_next(timedelta(seconds=cast("float", frame.head["seconds"])))
                case Kind.READ_PREVIOUS | Kind.READ_PARENTS | Kind.SAVE | Kind.ADD_RUNS if _is_of(frame, attempt):
                    threading.Thread(target=self._reply, args=(frame, attempt), daemon=True).start()
                case Kind.READ_PREVIOUS | Kind.READ_PARENTS | Kind.SAVE | Kind.ADD_RUNS:
                    process.send(reply_too_late(frame))
                case _:
                    pass

    def _reply(self, request: Frame, attempt: Attempt) -> None:
        self._replies.put(reply_to(request, attempt))
        self._wake()

    def _on_wakeup(self) -> None:
        if self._closing and self._process is not None:
            self._process.interrupt()

    def _drop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
        while not self._replies.empty():
            self._replies.get()


def _is_of(frame: Frame, attempt: Attempt) -> bool:
    """Return True if the attempt itself sent it, and not a leftover thread of an earlier one."""
    return attempt_key(frame) == (str(attempt.run_id), attempt.started.attempt)


def _attempt_frame(attempt: Attempt) -> Frame:
    definition, request = attempt.definition, attempt.request
    head: dict[str, object] = {
        "handler": definition.target.handler,
        "content_type": attempt.payload_content_type,
        **attempt_head(*attempt.key),
        "job_key": definition.job_key,
        "tenant": definition.tenant,
        "scheduled_at": request.scheduled_at.isoformat(),
        "deadline_seconds": attempt.left_seconds,
        "labels": {**definition.labels, **(request.labels or {})},
        "traceparent": attempt.traceparent,
        "not_after": attempt.lease.until,
    }
    return Frame(Kind.ATTEMPT, head, [attempt.payload, request.checkpoint])
