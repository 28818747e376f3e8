"""Log lines about ends, by their record; `test_ends_agree.py` has each kind of end as a whole."""

import logging
from datetime import timedelta

import pytest

from tests.executor.attempting import RUN, attempt_of
from tidewheel.errors import RetryAfter
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.end_log import EndLog
from tidewheel.executor.outcome import RELEASED, Outcome, from_exception, succeeded
from tidewheel.executor.record_outcomes import Recorded
from tidewheel.runs import AttemptOutcome

JOB = {"retry": {"max_attempts": 3, "backoff": "fixed", "initial": "2s", "jitter": "0%"}}
ERROR = from_exception(ValueError("the order of ann@example.com"))


def line(
    caplog: pytest.LogCaptureFixture, attempt: Attempt, outcome: Outcome, recorded: Recorded, **settings: bool
) -> str:
    """Return the one line about an end; empty if there is none."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "tidewheel.executor"):
        EndLog(**settings).ends([(attempt, outcome)], recorded)
    assert all(record.__dict__["job_key"] == "job" for record in caplog.records)
    return "".join(record.getMessage() for record in caplog.records)


def test_failure_is_logged_with_its_number_and_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    told = line(caplog, attempt_of(JOB, number=7, failed_attempts=1), ERROR, Recorded(requeued=1))
    assert told == "failure 2 of 3, retrying in 2 s: ValueError: the order of ann@example.com"
    assert "ValueError: the order" in caplog.records[0].__dict__["trace"]
    later = line(caplog, attempt_of(JOB), from_exception(RetryAfter(timedelta(minutes=10))), Recorded(requeued=1))
    assert later.startswith("failure 1 of 3, retrying in 600 s: ")


def test_log_without_errors_has_no_text_of_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """A handler's exception may contain its payload: personal data, in a log that others read."""
    for recorded in (Recorded(requeued=1), Recorded(superseded={RUN}), Recorded(completed={RUN})):
        told = line(caplog, attempt_of(JOB), ERROR, recorded, errors=False)
        assert told.endswith(": ValueError")
        assert "ann@example.com" not in str(caplog.records[0].__dict__)


def test_superseded_end_promises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = line(caplog, attempt_of(JOB), ERROR, Recorded(superseded={RUN}))
    assert told.startswith("a superseded report changes nothing: ValueError: ")
    assert line(caplog, attempt_of(JOB), RELEASED, Recorded(superseded={RUN})) == "a superseded report changes nothing"


def test_end_that_is_tried_again_is_not_logged_yet(caplog: pytest.LogCaptureFixture) -> None:
    assert line(caplog, attempt_of(JOB), ERROR, Recorded(busy={RUN})) == ""


def test_failures_and_releases_alone_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    attempt, cancelled = attempt_of(JOB), Outcome(AttemptOutcome.CANCELLED)
    assert line(caplog, attempt, succeeded(None), Recorded()) == ""
    assert line(caplog, attempt, cancelled, Recorded()) == ""
    assert line(caplog, attempt, RELEASED, Recorded(requeued=1)) == "released"


def test_end_that_is_never_recorded_is_logged_when_its_executor_ends(caplog: pytest.LogCaptureFixture) -> None:
    EndLog().unrecorded([(attempt_of(JOB), ERROR)])
    assert "is not recorded; the run goes back when this executor's lease is over: ValueError: the order" in caplog.text
