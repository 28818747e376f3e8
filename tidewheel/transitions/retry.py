"""Decide if a failed attempt is followed by another, and when: pure. Also the names of the timeouts.

Failed attempts count against `max_attempts`; released, snoozed and lost ones do not. Reason, error type, completion and
dead letter contain a timeout's name. ADR 0018 (docs/adr) lists the process that enforces each timeout.
"""

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from tidewheel.schemas.generated.records import Backoff, JobDefinition, Retry

UNKNOWN_OUTCOME = "unknown_outcome"  # error type and reason of an at-most-once run whose executor was lost


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of a failed attempt that decide about the next.

    Args:
        error_type: Compared with `non_retryable`.
        not_started: True if it is certain that the attempt had no effect, as with a refused connection.
    """

    error_type: str
    permanent: bool = False
    retry_after: timedelta | None = None
    not_started: bool = False


def next_attempt(
    definition: JobDefinition, failure: Failure, *, run_id: UUID, attempt: int, failed_attempts: int
) -> timedelta | None:
    """Return the delay before the next attempt; None if there is none.

    The jitter is derived from run and attempt, so that a repeated call returns the same delay.

    Args:
        failed_attempts: Earlier attempts that count against `max_attempts`.
    """
    if definition.at_most_once and not failure.not_started:
        return None
    spread = (run_id.int + attempt * 7919) % 2001 / 1000 - 1
    return delay_before_next(definition.retry, failure, failed_attempts + 1, spread=spread)


def delay_before_next(
    retry: Retry, failure: Failure, failed_attempts: int, *, spread: float | None = None
) -> timedelta | None:
    """Return the delay before the next attempt; None if there is none.

    Args:
        failed_attempts: Attempts that count against `max_attempts`, with this one.
        spread: -1 to 1, the position of the delay within the jitter; random if None.

    >>> from tidewheel.schemas.generated.records import Backoff, Retry
    >>> policy = Retry(max_attempts=4, backoff=Backoff.EXPONENTIAL, initial_ms=2000, factor=2.0, max_ms=3_600_000,
    ...                jitter=0.1, intervals_ms=(), non_retryable=())
    >>> [delay_before_next(policy, Failure("ValueError"), n, spread=0.0) for n in (1, 2, 3, 4)]
    [datetime.timedelta(seconds=2), datetime.timedelta(seconds=4), datetime.timedelta(seconds=8), None]
    """
    if failure.permanent or failure.error_type in retry.non_retryable or failed_attempts >= retry.max_attempts:
        return None
    backoff = _backoff_ms(retry, failed_attempts)
    drawn = random.uniform(-1.0, 1.0) if spread is None else spread  # noqa: S311 - spreads load, protects no secret
    delay = timedelta(milliseconds=backoff * (1.0 + retry.jitter * drawn))
    return max(delay, failure.retry_after or timedelta(0))


def _backoff_ms(retry: Retry, failed_attempts: int) -> float:
    if retry.backoff is Backoff.INTERVALS and retry.intervals_ms:
        return float(retry.intervals_ms[min(failed_attempts, len(retry.intervals_ms)) - 1])
    if retry.backoff is Backoff.FIXED:
        return float(retry.initial_ms)  # `max` applies only to a backoff that grows
    # The exponent is bounded, so that a policy of a thousand attempts does not overflow a float.
    return min(retry.initial_ms * retry.factor ** min(failed_attempts - 1, 64), float(retry.max_ms))


class Timeout(StrEnum):
    """A timeout, named after the field that sets it."""

    START_TO_CLOSE = "start_to_close"  # one attempt took too long
    HEARTBEAT = "heartbeat"  # an attempt sent no heartbeat for too long
    SCHEDULE_TO_START = "schedule_to_start"  # no attempt started in time
    SCHEDULE_TO_CLOSE = "schedule_to_close"  # all attempts together took too long
    ASYNC_TIMEOUT = "async_timeout"  # no completion came after an http target responded 202
    REPLY_TIMEOUT = "reply_timeout"  # no reply came to a kafka target's message


FINAL_TIMEOUTS = frozenset({Timeout.SCHEDULE_TO_START, Timeout.SCHEDULE_TO_CLOSE})  # no attempt follows

_PREFIX = "timeout_"


def timeout_type(which: str) -> str:
    """Return the error type of a timeout, as `non_retryable` lists it.

    >>> timeout_type(Timeout.HEARTBEAT)
    'timeout_heartbeat'
    """
    return f"{_PREFIX}{which}"


def timeout_of(error_type: str) -> str:
    """Return the timeout in an error type."""
    return error_type.removeprefix(_PREFIX)


def timeout_message(which: str, seconds: float) -> str:
    """Return the error message of a timeout.

    >>> timeout_message(Timeout.SCHEDULE_TO_START, 1.5)
    'schedule_to_start of 1.5 s has passed'
    """
    return f"{which} of {seconds:g} s has passed"
