"""One attempt in this process: what it works on, and who is told when it ends."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tidewheel.executor.context import Flag
from tidewheel.executor.outcome import Outcome
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
