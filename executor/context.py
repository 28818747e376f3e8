"""What a handler is given beside its payload."""

import logging
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


class Flag:
    """Set once, seen by every thread; an Event costs twenty times as much to make, and nobody waits on it."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """From now on it is set."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set


@dataclass(frozen=True, slots=True)
class Context:
    """One attempt, as its handler sees it.

    Args:
        run_id: The run; the same for all its attempts.
        attempt: Which attempt this is, from 1; never given twice for a run.
        job_key: The job's key.
        tenant: The job's tenant.
        scheduled_at: The nominal instant, in UTC.
        deadline_seconds: How long the attempt may take.
        labels: The run's labels.
        idempotency_key: Send this with every effect: it is the same for all attempts of a run.
        traceparent: W3C trace context of the request, if it had one.
        logger: A logger that carries run_id and attempt.
    """

    run_id: UUID
    attempt: int
    job_key: str
    tenant: str
    scheduled_at: datetime
    deadline_seconds: float
    labels: dict[str, str]
    idempotency_key: str
    traceparent: str | None
    logger: "logging.LoggerAdapter[logging.Logger]"
    _cancelled: Flag

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was asked to stop, or its time is over: a long handler looks at this now and then."""
        return self._cancelled.is_set()
