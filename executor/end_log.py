"""Log the ends of attempts: each failure with what becomes of its run, other ends by `log_runs`."""

import logging

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.record_outcomes import next_delay
from tidewheel.runs import AttemptOutcome

_LOG = logging.getLogger("tidewheel.executor")

_MESSAGE_CHARACTERS = 300
_VERBS = {AttemptOutcome.SUCCEEDED: "succeeded in", AttemptOutcome.CANCELLED: "cancelled after"}


def log_end(attempt: Attempt, outcome: Outcome, *, all_ends: bool) -> None:
    """Log the reported end of an attempt, before it is recorded."""
    if outcome.error_type:
        about = {**attempt.about, "trace": outcome.trace}
        message = outcome.error_message or ""
        if outcome.trace:  # which ends with the whole message
            message = message.partition("\n")[0][:_MESSAGE_CHARACTERS]
        _LOG.warning("%s: %s: %s", effect(attempt, outcome), outcome.error_type, message, extra=about)
    elif all_ends and outcome.kind is not AttemptOutcome.RELEASED:  # `report_end` logs those
        _LOG.info("%s", _end(attempt, outcome), extra=attempt.about)


def effect(attempt: Attempt, outcome: Outcome) -> str:
    """Return the number of a failure, and what becomes of the run."""
    if attempt.cancelled.is_set() and outcome.kind is AttemptOutcome.FAILED:
        return "failed while it is being cancelled"
    number, allowed = attempt.started.failed_attempts + 1, attempt.definition.retry.max_attempts
    delay = next_delay(attempt, outcome)
    if delay is not None:
        return f"failure {number} of {allowed}, the next attempt in {_length(delay.total_seconds())}"
    state = "times out" if outcome.kind is AttemptOutcome.TIMED_OUT else "fails"
    return f"failure {number} of {allowed}, the run {state}" + (", without a retry" if number < allowed else "")


def _end(attempt: Attempt, outcome: Outcome) -> str:
    if outcome.waits is not None:
        return f"waits for its completion from outside, for {_length(outcome.waits.total_seconds())} at most"
    if outcome.kind is AttemptOutcome.SNOOZED:
        return f"snoozed for {_length(outcome.snooze.total_seconds())}"
    took = attempt.ended_at - attempt.began_at if attempt.has_started else 0.0
    return f"{_VERBS.get(outcome.kind, outcome.kind.value)} {_length(took)}"


def _length(seconds: float) -> str:
    """Return a duration in three digits.

    >>> _length(0.0123), _length(2.0981), _length(86400)
    ('12.3 ms', '2.1 s', '86400 s')
    """
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
