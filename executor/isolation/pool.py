"""Runs handlers in worker processes that are kept warm: they can be killed, and what they break is their own.

A thread for each process: it starts one, tells it an attempt, reads what it says until it has ended, and starts another
where it dies. The loop waits for none of that.
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

from tidewheel.errors import Unavailable
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.context import Previous
from tidewheel.executor.isolation.process import Died, Setup, WorkerProcess
from tidewheel.executor.isolation.protocol import Frame, Kind, outcome_of, previous_frame, whose, whose_is
from tidewheel.executor.outcome import Outcome, failed
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.executor")

DIED = "ProcessDied"
UNUSABLE = "WorkerFailed"

_LOOK_SECONDS = 0.05
_WARM_SECONDS = 5.0
_START_SECONDS = 60.0  # importing handlers on a busy machine; longer, and it hangs
_DYING_SECONDS = 2.0  # SIGTERM, half a second, SIGKILL, and a busy machine
_CLOSE_SECONDS = 5.0
_SAID_BYTES = 2048  # of what a process wrote that did not become ready


@dataclass(eq=False)
class _Job:
    """An attempt that is to run in a worker process.

    Args:
        attempt: It.
        on_begin: Called when a process is ready for it.
        future: How it ended; cancelled where it was taken back before it began.
        asked_to_stop: It is to be told that it should stop.
        given_up: Nobody waits for it any more.
        ring: Makes the thread that serves it look at these.
    """

    attempt: Attempt
    on_begin: Callable[[], None]
    future: Future[Outcome] = field(default_factory=Future[Outcome])
    asked_to_stop: bool = False
    given_up: bool = False
    ring: Callable[[], None] = lambda: None

    def ask_to_stop(self) -> None:
        self.asked_to_stop = True
        self.ring()

    def give_up(self) -> None:
        self.given_up = True
        self.ring()


class Isolated:
    """The worker processes of one executor.

    Args:
        setup: How they are made.
        processes: How many there may be; they are started when they are first needed.
    """

    def __init__(self, setup: Setup, *, processes: int) -> None:
        self._setup, self._most = setup, processes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._slots: list[_Slot] = []
        self._open = 0  # jobs that are not over
        self._lock = threading.Lock()
        self._warming = threading.Timer(_WARM_SECONDS, self._warm)
        self._warming.daemon = True

    def warm(self) -> None:
        """Start one process before it is needed, but not at once: an executor that starts has other things to do."""
        self._warming.start()

    async def run(self, attempt: Attempt) -> Outcome:
        """Run an attempt in a process that runs nothing else meanwhile.

        Cancelled because the attempt was asked to stop, it lets it go on until somebody reports its end, which is when
        its grace is over; cancelled because its time is over, it kills it.
        """
        loop, restart = asyncio.get_running_loop(), attempt.restart_clock

        def on_begin() -> None:
            if restart is not None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(restart)

        job = _Job(attempt, on_begin)
        if attempt.stop_clock is not None:
            attempt.stop_clock()
        attempt.withdraw = job.future.cancel
        self._submit(job)
        ended = asyncio.wrap_future(job.future)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not job.future.cancel():
                await _stop(job, ended)
            raise

    def close(self) -> None:
        """Kill the processes."""
        self._warming.cancel()
        with self._lock:
            slots, self._slots, self._most = self._slots, [], 0
        for slot in slots:
            self._jobs.put(None)
            slot.close()
        for slot in slots:
            slot.join(_CLOSE_SECONDS)

    def _warm(self) -> None:
        with self._lock:
            if not self._slots and self._most:
                self._add_slot()

    def _submit(self, job: _Job) -> None:
        with self._lock:
            self._open += 1
            if self._open > len(self._slots) and len(self._slots) < self._most:
                self._add_slot()
        self._jobs.put(job)

    def _add_slot(self) -> None:
        self._slots.append(_Slot(self._setup, self._jobs, self._over, number=len(self._slots)))

    def _over(self) -> None:
        with self._lock:
            self._open -= 1


async def _stop(job: _Job, ended: "asyncio.Future[Outcome]") -> None:
    """End a job that runs: let it stop by itself as long as somebody may wait for that, then kill it."""
    attempt = job.attempt
    try:
        if attempt.struck is None and attempt.cancelled.is_set():
            job.ask_to_stop()
            while not ended.done() and not attempt.reported:
                await asyncio.wait({ended}, timeout=_LOOK_SECONDS)
    finally:
        job.give_up()
    await asyncio.wait({ended}, timeout=_DYING_SECONDS)


class _Slot:
    """A thread with a worker process, or between two."""

    def __init__(
        self, setup: Setup, jobs: "queue.SimpleQueue[_Job | None]", over: Callable[[], None], *, number: int
    ) -> None:
        self._setup, self._jobs, self._over = setup, jobs, over
        self._rings, self._bell = socket.socketpair()
        for end in (self._rings, self._bell):
            end.settimeout(0)
        self._closing = False
        self._process: WorkerProcess | None = None
        self._answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"isolated-{number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._ring()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _ring(self) -> None:
        with suppress(OSError):  # full, so that it rings anyway; or closed
            self._rings.send(b"!")

    def _run(self) -> None:
        self._refresh()
        while (job := self._jobs.get()) is not None:
            self._serve(job)
            self._over()
            self._refresh()
        self._drop()
        self._rings.close()
        self._bell.close()

    def _refresh(self) -> None:
        """Have a process ready; where that fails, the next attempt tries again and tells."""
        if not self._closing:
            problem = self._start()
            if problem:
                _LOG.warning("%s", problem)

    def _serve(self, job: _Job) -> None:
        job.ring = self._ring
        problem = self._start()
        if not job.future.set_running_or_notify_cancel():
            return
        if problem:
            job.future.set_result(failed(UNUSABLE, problem, not_begun=True))
            return
        job.on_begin()
        try:
            outcome = self._converse(job)
        except Exception as error:  # noqa: BLE001 - this thread must not end
            _LOG.exception("a worker process cannot be talked to")
            self._drop()
            outcome = failed(UNUSABLE, f"the worker process cannot be talked to: {error}")
        job.future.set_result(outcome)

    def _start(self) -> str | None:
        """See that there is a process that can be used; returns why there is none."""
        if self._process is not None and self._process.alive():
            return None
        self._drop()
        said = bytearray()

        def hear(data: bytes) -> None:
            said.extend(data)
            del said[:-_SAID_BYTES]

        try:
            self._process = WorkerProcess(self._setup, self._bell)
            self._process.limit(_START_SECONDS)
            frame = self._process.receive(hear, self._on_ring)
        except (OSError, Died) as error:
            problem = str(error)
        else:
            self._process.limit(None)
            if frame.kind is Kind.READY:
                return None
            problem = str(frame.head.get("error"))
        self._drop()
        text = said.decode("utf-8", "replace").strip()
        return f"a worker process did not get ready: {problem}" + (f"; it wrote: {text}" if text else "")

    def _converse(self, job: _Job) -> Outcome:
        process, attempt = self._process, job.attempt
        assert process is not None  # noqa: S101 - it has been seen to
        process.discard_output()
        process.send(_attempt_frame(attempt))
        told = False

        def on_ring() -> None:
            nonlocal told
            self._on_ring()
            if job.given_up:
                process.interrupt()
            elif job.asked_to_stop and not told:
                told = True
                process.send(Frame(Kind.CANCEL, whose(*attempt.key)))
            while not self._answers.empty():
                process.send(self._answers.get())

        while True:
            try:
                frame = process.receive(attempt.write, on_ring)
            except Died as died:
                metrics.count("worker_processes_lost")
                self._drop()
                return failed(DIED, died.words)
            match frame.kind:
                case Kind.OUTCOME:
                    if frame.head["spent"] or process.interrupted:
                        self._drop()
                    return outcome_of(frame)
                case Kind.BEAT if _is_of(frame, attempt):
                    attempt.beat(frame.parts[0], frame.parts[1])
                case Kind.ASK if _is_of(frame, attempt):
                    threading.Thread(target=self._answer, args=(frame, attempt), daemon=True).start()
                case Kind.ASK:
                    process.send(previous_frame(frame, _over))
                case _:
                    pass

    def _answer(self, asked: Frame, attempt: Attempt) -> None:
        self._answers.put(previous_frame(asked, attempt.previous))
        self._ring()

    def _on_ring(self) -> None:
        if self._closing and self._process is not None:
            self._process.interrupt()

    def _drop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
        while not self._answers.empty():
            self._answers.get()


def _is_of(frame: Frame, attempt: Attempt) -> bool:
    """Whether the attempt itself says it, and not something that an earlier one has left running."""
    return whose_is(frame) == (str(attempt.run_id), attempt.started.attempt)


def _over() -> Previous:
    message = "the attempt that asks is over"
    raise Unavailable(message)


def _attempt_frame(attempt: Attempt) -> Frame:
    definition, request = attempt.definition, attempt.request
    head: dict[str, object] = {
        "handler": definition.target.handler,
        "content_type": attempt.payload_content_type,
        **whose(*attempt.key),
        "job_key": definition.job_key,
        "tenant": definition.tenant,
        "scheduled_at": request.scheduled_at.isoformat(),
        "deadline_seconds": attempt.left_seconds,
        "labels": {**definition.labels, **(request.labels or {})},
        "traceparent": request.traceparent,
    }
    return Frame(Kind.ATTEMPT, head, [attempt.payload, request.checkpoint])
