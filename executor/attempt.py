"""One attempt in this process: what it works on, and who is told when it ends."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt_output import Echo, Output
from tidewheel.executor.complete_in import Completer, Completion, checked
from tidewheel.executor.context import Flag, Previous
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.previous_run import Past
from tidewheel.executor.progress_buffer import Beats
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.claim import Started

LET_GO_SECONDS = 1.0  # from asking attempts to stop, for the executor does, to handing back those that have not


@dataclass(slots=True, eq=False)
class Attempt:
    """A claimed attempt.

    Args:
        started: The claim.
        request: The message.
        definition: The static part of it, decoded.
        on_report: Told once, with the first outcome reported.
        on_release: Told once, when its code has really ended and the slot is free.
        cancelled: Set when the attempt is asked to stop; handlers see it.
        cancel_cooperatively: Cancels its task.
        restart_clock: Gives it its whole time from now on; called on the loop.
        stop_clock: Lets it wait for a thread without that being its time; called on the loop.
        on_thread: Whether a thread, and not the task, is what the slot waits for.
        begun: Whether its target may have begun.
        withdraw: Takes it back from where it waits for a thread or a process; True where that came before its start.
        struck: What its task is being cancelled for: a timeout that has struck, or the executor's own end.
        last_beat: Monotonic seconds of its last heartbeat, or of its start; None while it waits for a thread.
        closes_at: Monotonic seconds at which schedule_to_close strikes; None where it does not.
        beats: Where its heartbeats are kept until they are written.
        past: Where earlier runs are looked up.
        completer: What its handler may complete its run with.
        output: What it writes, once it writes anything.
        stream_output: Whether everything it writes goes to a topic too.
    """

    started: Started
    request: RunRequest
    definition: JobDefinition
    on_report: Callable[["Attempt", Outcome], None]
    on_release: Callable[["Attempt"], None]
    cancelled: Flag = field(default_factory=Flag)
    cancel_cooperatively: Callable[[], object] | None = None
    restart_clock: Callable[[], None] | None = None
    stop_clock: Callable[[], None] | None = None
    on_thread: bool = False
    begun: bool = False
    withdraw: Callable[[], bool] | None = None
    struck: Outcome | None = None
    last_beat: float | None = None
    closes_at: float | None = None
    beats: Beats | None = None
    past: Past | None = None
    completer: Completer | None = None
    output: Output | None = None
    stream_output: bool = False
    _echo: Echo | None = None
    _completion: Completion | None = None
    _sealed: bool = False
    _reported: bool = False
    _released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
        """How long the attempt may take."""
        return self.definition.start_to_close_ms / 1000

    @property
    def heartbeat_seconds(self) -> float | None:
        """How long it may go without a heartbeat; None where it needs none."""
        return None if self.definition.heartbeat_ms is None else self.definition.heartbeat_ms / 1000

    @property
    def reported(self) -> bool:
        """Whether somebody has said how it ended: what its code still does is no longer waited for."""
        return self._reported

    @property
    def unflushed(self) -> bool:
        """Whether nothing of its output is in the database, nor will be but by its end; from now on."""
        with self._lock:
            if self.output is None:
                self._sealed = True
                return True
        return self.output.close()

    @property
    def left_seconds(self) -> float:
        """How long the attempt may take from now on, if it begins now."""
        if self.closes_at is None:
            return self.start_to_close_seconds
        return max(min(self.start_to_close_seconds, self.closes_at - monotonic_seconds()), 0.0)

    def note_start(self, at: float) -> None:
        """Its time runs from this moment on, in monotonic seconds."""
        if self.started.schedule_to_close_at is not None and self.closes_at is None:
            self.closes_at = at + (self.started.schedule_to_close_at - self.started.started_at).total_seconds()

    def beat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Take a sign of life from its handler; what is told after its end counts for nothing."""
        if self._reported:
            return
        self.last_beat = monotonic_seconds()
        if self.beats is not None:
            self.beats.tell(self.key, progress, checkpoint)

    def previous(self) -> Previous:
        """What came before its run; waits for the database.

        Raises:
            Unavailable: The database does not answer.
        """
        if self.past is None:
            return Previous()
        return self.past.before(UUID(self.definition.job_id), self.request.scheduled_at)

    def completing(self) -> Completion:
        """What completes its run in a transaction of its handler's."""
        if self.completer is None:
            message = "this attempt is of no executor"
            raise RuntimeError(message)
        with self._lock:
            if self._completion is None:
                self._completion = Completion(
                    self.completer, self.run_id, self.started.attempt, self.request, self.definition, self._written
                )
        return self._completion

    def write(self, data: bytes) -> None:
        """Keep what the attempt writes, and pass it on to this process's log as long as that is not too much."""
        self.keep(data).write(data)

    def keep(self, data: bytes) -> Echo:
        """Keep what the attempt writes; returns its share of the log, for who passes it on in another way."""
        with self._lock:
            output = self.output = self.output or Output(streamed=self.stream_output, closed=self._sealed)
            echo = self._echo = self._echo or Echo(self.about)
        output.write(data)
        return echo

    @property
    def about(self) -> dict[str, object]:
        """What log lines say of it."""
        return {
            "run_id": str(self.run_id),
            "attempt": self.started.attempt,
            "job_key": self.definition.job_key,
        }

    def begin(self) -> bool:
        """Its target is about to begin; returns False where its end has been told before that."""
        with self._lock:
            if self._reported:
                return False
            self.begun = True
            return True

    def report(self, outcome: Outcome) -> bool:
        """Say how it ended; only the first report counts. Returns whether this was it."""
        with self._lock:
            if self._reported:
                return False
            self._reported = True
        self._tell(outcome)
        return True

    def report_unbegun(self, outcome: Outcome) -> bool:
        """The same, unless its target may have begun."""
        with self._lock:
            if self._reported or self.begun:
                return False
            self._reported = True
        self._tell(outcome)
        return True

    def release(self) -> None:
        """Its code has ended; only the first call counts."""
        with self._lock:
            if self._released:
                return
            self._released = True
        self.on_release(self)

    def _written(self) -> tuple[bytes | None, int | None]:
        return (self.output.tail(), self.output.written) if self.output else (None, None)

    def _tell(self, outcome: Outcome) -> None:
        if self._echo is not None:
            self._echo.close()
        if self._completion is not None:
            outcome = checked(outcome, self._completion)
        self.on_report(self, outcome)
