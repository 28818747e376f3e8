"""Whether a failed attempt is followed by another, and when: pure.

The budget is `charged`, compared with `max_attempts`; hand-back, snooze and loss leave it alone.

The names of timeouts: what reason, error type, completion and dead letter say when one has struck.

Who keeps which is told in docs/adr/0018-timeout-enforcement.md.
"""

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from tidewheel.schemas.generated.records import Backoff, JobDefinition, Retry

UNKNOWN_OUTCOME = "unknown_outcome"  # error type and reason: of a run that may be attempted once, nobody knows the end


@dataclass(frozen=True, slots=True)
class Failure:
    """What matters of a failed attempt.

    Args:
        error_type: Compared with `non_retryable`.
        permanent: The handler or the answer said that trying again is no use.
        retry_after: The earliest next try that was asked for.
        not_begun: It is certain that the attempt had no effect, such as a refused connection.
    """

    error_type: str
    permanent: bool = False
    retry_after: timedelta | None = None
    not_begun: bool = False


def next_attempt(
    definition: JobDefinition, failure: Failure, *, run_id: UUID, attempt: int, failed_attempts: int
) -> timedelta | None:
    """How long a failed attempt's run waits for the next; None where there is no next.

    The jitter is fixed per attempt, so that asking twice gives the same answer.

    Args:
        definition: The job's version.
        failure: What happened.
        run_id: The run.
        attempt: The attempt that failed.
        failed_attempts: Attempts charged before it.
    """
    if definition.at_most_once and not failure.not_begun:
        return None
    spread = (run_id.int + attempt * 7919) % 2001 / 1000 - 1
    return delay_before_next(definition.retry, failure, failed_attempts + 1, spread=spread)


def delay_before_next(
    retry: Retry, failure: Failure, failed_attempts: int, *, spread: float | None = None
) -> timedelta | None:
    """How long to wait before the next attempt.

    Args:
        retry: The job's policy.
        failure: What happened.
        failed_attempts: Attempts charged, this one included.
        spread: -1 to 1, where in the jitter the delay falls, earlier or later; drawn when absent.

    Returns:
        None where there is no next attempt.

    >>> from tidewheel.schemas.generated.records import Backoff, Retry
    >>> policy = Retry(max_attempts=4, backoff=Backoff.EXPONENTIAL, initial_ms=2000, factor=2.0, max_ms=3_600_000,
    ...                jitter=0.1, intervals_ms=(), non_retryable=())
    >>> [delay_before_next(policy, Failure("ValueError"), n, spread=0.0) for n in (1, 2, 3, 4)]
    [datetime.timedelta(seconds=2), datetime.timedelta(seconds=4), datetime.timedelta(seconds=8), None]
    """
    if failure.permanent or failure.error_type in retry.non_retryable or failed_attempts >= retry.max_attempts:
        return None
    backoff = _backoff_ms(retry, failed_attempts)
    drawn = random.uniform(-1.0, 1.0) if spread is None else spread  # noqa: S311 - spreads load, guards nothing
    delay = timedelta(milliseconds=backoff * (1.0 + retry.jitter * drawn))
    return max(delay, failure.retry_after or timedelta(0))


def _backoff_ms(retry: Retry, failed_attempts: int) -> float:
    if retry.backoff is Backoff.INTERVALS and retry.intervals_ms:
        return float(retry.intervals_ms[min(failed_attempts, len(retry.intervals_ms)) - 1])
    if retry.backoff is Backoff.FIXED:
        return float(retry.initial_ms)  # `max` bounds what grows
    # The exponent is bounded, so that a policy of a thousand attempts does not overflow a float.
    return min(retry.initial_ms * retry.factor ** min(failed_attempts - 1, 64), float(retry.max_ms))


class Timeout(StrEnum):
    """A timeout, by the name of the field that sets it."""

    START_TO_CLOSE = "start_to_close"  # one attempt took too long
    HEARTBEAT = "heartbeat"  # an attempt said nothing for too long
    SCHEDULE_TO_START = "schedule_to_start"  # no attempt began in time
    SCHEDULE_TO_CLOSE = "schedule_to_close"  # all attempts together took too long
    ASYNC_TIMEOUT = "async_timeout"  # nobody completed an http target's run that had answered 202
    REPLY_TIMEOUT = "reply_timeout"  # no reply came to a kafka target's message


FINAL_TIMEOUTS = frozenset({Timeout.SCHEDULE_TO_START, Timeout.SCHEDULE_TO_CLOSE})  # no attempt follows

_PREFIX = "timeout_"


def timeout_type(which: str) -> str:
    """The error type of a timeout, as `non_retryable` would name it.

    >>> timeout_type(Timeout.HEARTBEAT)
    'timeout_heartbeat'
    """
    return f"{_PREFIX}{which}"


def timeout_of(error_type: str) -> str:
    """The timeout that an error type names."""
    return error_type.removeprefix(_PREFIX)


def timeout_message(which: str, seconds: float) -> str:
    """What its error says.

    >>> timeout_message(Timeout.SCHEDULE_TO_START, 1.5)
    'schedule_to_start of 1.5 s has passed'
    """
    return f"{which} of {seconds:g} s has passed"
