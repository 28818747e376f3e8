"""One claimed attempt in this process: its state, and the report of its end.

An attempt starts, is reported once and releases its slot once. Each of these moves is a method; the first call counts.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import AttemptOver
from tidewheel.executor.complete_in import Completion, verify_completion
from tidewheel.executor.context import Flag
from tidewheel.executor.context_parts import NEXT_IN_FIRST, Parent, Previous
from tidewheel.executor.handler_services import NO_SERVICES, HandlerServices
from tidewheel.executor.lease import ENDLESS, Lease
from tidewheel.executor.outcome import LogForwarder, Outcome, Output
from tidewheel.process.tracing import trace_id_of
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Started

OVER = (
    "attempt {attempt} of run {run_id} is over: this executor was stopped for longer than its lease,"
    " and another executor may already execute the run"
)
_SAVED_CHECK_SECONDS = 0.5
LOSSES = 2  # lost executors of a run, after which it runs in a worker process, away from other attempts
SHUTDOWN_GRACE_SECONDS = 1.0  # for attempts to stop when the executor shuts down; then they are released


class AttemptClock(Protocol):
    """The start_to_close clock of an attempt; used on the event loop."""

    def pause(self) -> None:
        """Stop it while the attempt waits for a thread or a process."""
        ...

    def restart(self) -> None:
        """Give the attempt its full time from now on."""
        ...


@dataclass(slots=True, eq=False)
class Attempt:
    """A claimed attempt; its times are monotonic seconds.

    `on_report` gets the first outcome reported. `on_release` is called once, when its code has ended and the slot is
    free. Once its lease is over, nothing of it is sent any more.
    """

    started: Started
    request: RunRequest
    definition: JobDefinition
    on_report: Callable[["Attempt", Outcome], None]
    on_release: Callable[["Attempt"], None]
    services: HandlerServices = NO_SERVICES
    lease: Lease = ENDLESS  # under which it was claimed
    cancelled: Flag = field(default_factory=Flag)
    stop_outcome: Outcome | None = field(default=None, init=False)  # while its task is cancelled: timeout or shutdown
    on_thread: bool = field(default=False, init=False)  # the slot waits for a thread and not for the task
    has_started: bool = field(default=False, init=False)  # its target may have started
    claimed_at: float = field(default_factory=monotonic_seconds, init=False)
    began_at: float = field(default=0.0, init=False)  # when its target may have started
    ended_at: float = field(default=0.0, init=False)
    span: str | None = field(default=None, init=False)
    last_heartbeat: float | None = field(default=None, init=False)  # or start; None while it waits for a thread
    closes_at: float | None = field(default=None, init=False)  # when schedule_to_close expires
    next_in: timedelta | None = field(default=None, init=False)  # as its handler has set it
    output: Output | None = field(default=None, init=False)
    _cancel_task: Callable[[], object] | None = field(default=None, init=False)
    _cancel_queued: Callable[[], bool] | None = field(default=None, init=False)
    _clock: AttemptClock | None = field(default=None, init=False)
    _forwarder: LogForwarder | None = field(default=None, init=False)
    _completion: Completion | None = field(default=None, init=False)
    _output_sealed: bool = field(default=False, init=False)
    _reported: bool = field(default=False, init=False)
    _lost: bool = field(default=False, init=False)
    _released: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def run_id(self) -> UUID:
        """The run."""
        return self.started.run_id

    @property
    def key(self) -> tuple[UUID, int]:
        """The fence: no two attempts share it."""
        return self.started.run_id, self.started.attempt

    @property
    def payload(self) -> bytes:
        """The run's own payload, or its job's."""
        return self.definition.payload if self.request.payload is None else self.request.payload

    @property
    def payload_content_type(self) -> str:
        """MIME type of the payload."""
        if self.request.payload is not None and self.request.payload_content_type:
            return self.request.payload_content_type
        return self.definition.payload_content_type

    @property
    def start_to_close_seconds(self) -> float:
        """The attempt's own time limit."""
        return self.definition.start_to_close_ms / 1000

    @property
    def heartbeat_seconds(self) -> float | None:
        """The longest time between two heartbeats; None without that timeout."""
        return None if self.definition.heartbeat_ms is None else self.definition.heartbeat_ms / 1000

    @property
    def left_seconds(self) -> float:
        """The time limit of an attempt that starts now."""
        if self.closes_at is None:
            return self.start_to_close_seconds
        return max(min(self.start_to_close_seconds, self.closes_at - monotonic_seconds()), 0.0)

    @property
    def reported(self) -> bool:
        """True if its end was reported; whatever its code still does is ignored."""
        return self._reported

    @property
    def traceparent(self) -> str | None:
        """The trace context that its target gets: its own span, else its request's."""
        return self.span or self.request.traceparent

    @property
    def about(self) -> dict[str, object]:
        """The fields that log lines carry about it."""
        known: dict[str, object] = {
            "run_id": str(self.run_id),
            "attempt": self.started.attempt,
            "job_key": self.definition.job_key,
        }
        if self.traceparent is not None:
            known["trace_id"] = trace_id_of(self.run_id, self.traceparent)
        return known

    # How it runs, called by the code that runs it.

    def start(self) -> bool:
        """Record that its target starts; return False if its end was reported before."""
        with self._lock:
            if self._reported:
                return False
            self.has_started = True
            self.began_at = monotonic_seconds()
            return True

    def attach(self, cancel_task: Callable[[], object], clock: AttemptClock | None = None) -> None:
        """Record what stops its code, and the clock of its own timeouts."""
        self._cancel_task, self._clock = cancel_task, clock

    def detach(self) -> None:
        """Drop the task and the clock, or they and the attempt would keep each other in memory."""
        self._cancel_task = self._clock = None

    def note_start(self, at: float) -> None:
        """Count schedule_to_close from this moment on, in monotonic seconds."""
        if self.started.schedule_to_close_at is not None and self.closes_at is None:
            self.closes_at = at + (self.started.schedule_to_close_at - self.started.started_at).total_seconds()

    def wait_for_worker(self, cancel_queued: Callable[[], bool]) -> None:
        """Pause its clock while it is queued for a worker; `cancel_queued` returns True if it had not begun."""
        self._cancel_queued = cancel_queued
        if self._clock is not None:
            self._clock.pause()

    def restart_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give it its full time from now on; called by the thread that starts its code."""
        clock = self._clock
        if clock is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(clock.restart)

    def release_with(self, future: "Future[Outcome]") -> None:
        """Release the slot when this thread's future is done, not with the task: a thread cannot be stopped."""
        self.on_thread = True
        future.add_done_callback(lambda _: self.release())

    # How it is stopped, called on the event loop.

    def cancel_queued(self) -> bool:
        """Take it out of the queue for a thread or a process; return True if that came before its start."""
        return self._cancel_queued is not None and self._cancel_queued()

    def stop(self) -> None:
        """Request that its code stops."""
        self.cancelled.set()
        if self.cancel_queued():
            return  # it has not started and never will: its task sees that
        # A thread only sees the flag. Cancelling its task would report its end before its grace is over.
        if self._cancel_task is not None and not self.on_thread:
            self._cancel_task()

    def stop_as(self, outcome: Outcome) -> bool:
        """Set the outcome with which it is stopped; return False if another one was set before."""
        if self.stop_outcome is not None:
            return False
        self.stop_outcome = outcome
        return True

    def lose(self) -> None:
        """Record that the attempt is over: its lease was, and its run is no longer this executor's."""
        self._lost = True
        self.cancelled.set()

    def expire(self, outcome: Outcome) -> bool:
        """Cancel its task because a timeout has expired; return False if it is being stopped already."""
        if not self.stop_as(outcome):
            return False
        self.cancelled.set()
        if self._cancel_task is not None:
            self._cancel_task()
        return True

    # What its handler does, called from any thread.

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Record a heartbeat; one after its end is ignored."""
        self._require_owned()
        if self._reported:
            return
        self.last_heartbeat = monotonic_seconds()
        if self.services.progress is not None:
            self.services.progress.put(self.key, progress, checkpoint)

    def wait_saved(self) -> None:
        """Wait until the newest progress and checkpoint are saved, or the attempt's end was reported.

        Raises:
            AttemptOver: Another executor may run its run by now.
            RuntimeError: The run's row is locked by the handler's own transaction.
        """
        if self._completion is not None:
            raise RuntimeError("complete_in comes last: no step can be saved after it")
        if self.services.progress is None:
            return
        saved = self.services.progress.save_now(self.key)
        while not saved.wait(_SAVED_CHECK_SECONDS):
            self._require_owned()
            if self._reported:
                return

    def previous(self) -> Previous:
        """Return the job's runs before this one; waits for the database."""
        if self.services.earlier_runs is None:
            return Previous()
        return self.services.earlier_runs.before(UUID(self.definition.job_id), self.request.scheduled_at)

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        """Return its parents' runs in the occurrence, or that of one parent; waits for the database."""
        if self.services.earlier_runs is None:
            return {}
        return self.services.earlier_runs.parents(self.run_id, key)

    def add_runs(self, document: bytes) -> bool:
        """Add runs to the batch of its run; return False if it has them already; waits for the database."""
        self._require_owned()
        if self._completion is not None:
            raise RuntimeError("complete_in comes last: no run can be added after it")
        adds = self.services.batch_adds
        if adds is None:
            raise RuntimeError("this attempt has no executor")
        return adds.add(self.definition.tenant, self.run_id, self.started.attempt, document, self.traceparent)

    def set_next(self, delay: timedelta) -> None:
        """Keep the time from the run's end to the job's next run."""
        if self._completion is not None:
            raise RuntimeError(NEXT_IN_FIRST)
        self.next_in = delay

    def completing(self) -> Completion:
        """Return the completion of its run inside a transaction of its handler."""
        self._require_owned()
        config = self.services.completion
        if config is None:
            raise RuntimeError("this attempt has no executor")
        with self._lock:
            if self._completion is None:
                self._completion = Completion(
                    config, self.run_id, self.started.attempt, self.request, self.definition, self._output_so_far,
                    self.next_in,
                )  # fmt: skip
        return self._completion

    def write(self, data: bytes) -> None:
        """Keep output of the attempt, and forward it to this process's log within the log's limit."""
        self.keep(data).write(data)

    def keep(self, data: bytes) -> LogForwarder:
        """Keep output of the attempt; return its log forwarder, for a caller that forwards in another way."""
        with self._lock:
            if self.output is None:
                self.output = Output(streamed=self.services.stream_output, closed=self._output_sealed)
            if self._forwarder is None:
                self._forwarder = LogForwarder(self.about)
            output, forwarder = self.output, self._forwarder
        output.write(data)
        return forwarder

    def _require_owned(self) -> None:
        if self._lost:
            raise AttemptOver(OVER.format(attempt=self.started.attempt, run_id=self.run_id))

    # How it ends, called from any thread.

    def report(self, outcome: Outcome) -> bool:
        """Report its end; return True for the first report, the only one that counts."""
        with self._lock:
            if self._reported:
                return False
            self._reported = True
        self.ended_at = monotonic_seconds()
        self._report_first(outcome)
        return True

    def report_not_started(self, outcome: Outcome) -> bool:
        """Report its end unless its target may have started; return True if this was the first report."""
        with self._lock:
            if self._reported or self.has_started:
                return False
            self._reported = True
        self._report_first(outcome)
        return True

    def release(self) -> None:
        """Release its slot: its code has ended. Only the first call counts."""
        with self._lock:
            if self._released:
                return
            self._released = True
        self.on_release(self)

    def seal_output(self) -> bool:
        """Stop flushing its output: its end is being recorded. Return True if none was ever flushed."""
        with self._lock:
            if self.output is None:
                self._output_sealed = True
                return True
        return self.output.close()

    def _output_so_far(self) -> tuple[bytes | None, int | None]:
        return (self.output.tail(), self.output.written) if self.output else (None, None)

    def _report_first(self, outcome: Outcome) -> None:
        if self._forwarder is not None:
            self._forwarder.close()
        if outcome.completes or (self._completion is not None and self._completion.called):
            outcome = verify_completion(outcome)
        if self.next_in is not None:
            outcome = replace(outcome, next_in=self.next_in)
        self.on_report(self, outcome)
