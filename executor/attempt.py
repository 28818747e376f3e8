"""One attempt in this process: what it works on, and who is told when it ends."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tidewheel.executor.context import Flag
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.output import Output
from tidewheel.schemas.records import JobDefinition, RunRequest
from tidewheel.transitions.start import Started


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
        struck: The timeout that has struck, while its task is being cancelled for it.
        last_beat: Monotonic seconds of its last heartbeat, or of its start.
        output: What it writes, once it writes anything.
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
    struck: Outcome | None = None
    last_beat: float = 0.0
    output: Output | None = None
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
    def schedule_to_close_seconds(self) -> float | None:
        """What is left of the run's whole time at the claim; None where that has no bound."""
        if self.started.close_at is None:
            return None
        return (self.started.close_at - self.started.started_at).total_seconds()

    def write(self, data: bytes) -> None:
        """Keep what the attempt has written."""
        with self._lock:
            output = self.output = self.output or Output()
        output.write(data)

    def report(self, outcome: Outcome) -> bool:
        """Say how it ended; only the first report counts. Returns whether this was it."""
        with self._lock:
            if self._reported:
                return False
            self._reported = True
        self.on_report(self, outcome)
        return True

    def release(self) -> None:
        """Its code has ended; only the first call counts."""
        with self._lock:
            if self._released:
                return
            self._released = True
        self.on_release(self)
