"""Log lines about the ends of attempts: the number of a failure, and what becomes of the run."""

import logging
from datetime import timedelta

import pytest

from tests.executor.attempting import attempt_of
from tidewheel.errors import Permanent, RetryAfter, Snooze
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.end_log import log_end
from tidewheel.executor.outcome import RELEASED, Outcome, from_exception, succeeded, timed_out, waiting

JOB = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial": "2s", "jitter": "0%"}}


def line(caplog: pytest.LogCaptureFixture, attempt: Attempt, outcome: Outcome, *, all_ends: bool = True) -> str:
    """Return the one line about an end; empty if there is none."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "tidewheel.executor"):
        log_end(attempt, outcome, all_ends=all_ends)
    assert all(record.__dict__["job_key"] == "job" for record in caplog.records)
    return "".join(record.getMessage() for record in caplog.records)


def test_failure_is_logged_with_its_number_and_what_becomes_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    error = from_exception(ValueError("no"))
    lines = [line(caplog, attempt_of(JOB, number=n + 4, failed_attempts=n), error, all_ends=False) for n in range(3)]
    assert lines == [
        "failure 1 of 3, the next attempt in 2 s: ValueError: no",
        "failure 2 of 3, the next attempt in 2 s: ValueError: no",
        "failure 3 of 3, the run fails: ValueError: no",
    ]
    assert "ValueError: no" in caplog.records[0].__dict__["trace"]
    never = line(caplog, attempt_of(JOB), from_exception(Permanent("no such address")))
    assert never == "failure 1 of 3, the run fails, without a retry: Permanent: no such address"
    later = line(caplog, attempt_of(JOB), from_exception(RetryAfter(timedelta(minutes=10))))
    assert later.startswith("failure 1 of 3, the next attempt in 600 s: ")
    assert line(caplog, attempt_of(JOB, failed_attempts=2), timed_out("start_to_close", 1)).startswith(
        "failure 3 of 3, the run times out: timeout_start_to_close: "
    )


def test_failure_of_a_cancelled_attempt_promises_no_retry(caplog: pytest.LogCaptureFixture) -> None:
    attempt = attempt_of(JOB)
    attempt.cancelled.set()
    told = line(caplog, attempt, from_exception(ValueError("no")))
    assert told == "failed while it is being cancelled: ValueError: no"


def test_other_ends_are_logged_only_on_request(caplog: pytest.LogCaptureFixture) -> None:
    attempt = attempt_of(JOB)
    attempt.start()
    attempt.report(succeeded(None))
    assert line(caplog, attempt, succeeded(None)).startswith("succeeded in ")
    assert line(caplog, attempt, from_exception(Snooze(5))) == "snoozed for 5 s"
    assert "from outside, for 60 s at most" in line(caplog, attempt, waiting(timedelta(minutes=1)))
    assert line(caplog, attempt, RELEASED) == "", "it has a line of its own"
    assert line(caplog, attempt, succeeded(None), all_ends=False) == ""
