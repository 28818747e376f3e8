"""Outcomes are bounded and storable, whatever a handler returns or raises."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.errors import Cancel, Permanent, RetryAfter, Snooze
from tidewheel.executor.outcome import CANCELLED, failed, from_exception, succeeded, timed_out, trace_text
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.runs import AttemptOutcome


def test_handlers_exception_selects_the_outcome() -> None:
    snoozed = from_exception(Snooze(5))
    assert (snoozed.kind, snoozed.snooze) == (AttemptOutcome.SNOOZED, timedelta(seconds=5))
    assert from_exception(Cancel()) == CANCELLED
    later = from_exception(RetryAfter(timedelta(minutes=1)))
    assert (later.kind, later.retry_after, later.permanent) == (AttemptOutcome.FAILED, timedelta(minutes=1), False)
    never = from_exception(Permanent("no such address"))
    assert (never.kind, never.permanent, never.error_message) == (AttemptOutcome.FAILED, True, "no such address")


def test_unknown_exception_is_a_failure_with_its_trace() -> None:
    def breaks() -> None:
        _ = {"there": 1}["missing"]

    with pytest.raises(KeyError) as caught:
        breaks()
    outcome = from_exception(caught.value)
    assert (outcome.kind, outcome.error_type, outcome.error_message) == (AttemptOutcome.FAILED, "KeyError", "'missing'")
    assert "in breaks" in (outcome.trace or "")


def test_long_messages_push_no_frame_out_of_the_trace() -> None:
    def breaks(size: int) -> None:
        try:
            _ = {"there": 1}["line of text\n" * size]
        except KeyError as error:
            message = "y" * size
            raise ValueError(message) from error

    with pytest.raises(ValueError, match="y") as caught:
        breaks(200_000)
    trace = from_exception(caught.value).trace or ""
    assert len(trace) <= 32 * 1024
    assert trace.count(__file__) == trace.count("in breaks") + 1 == 3
    assert "KeyError: 'line of text" in trace
    assert trace.endswith("y…\n")
    deep = trace_text(
        "Traceback (most recent call last):\n" + '  File "a.py", line 7, in f\n    f()\n' * 5000 + "E: " + "z" * 200_000
    )
    assert '  File "a.py", line 7, in f\n    f()\nE: zzz' in (deep or "")


def test_too_large_result_is_a_permanent_failure() -> None:
    assert succeeded(b"x" * MAX_RESULT_BYTES).kind is AttemptOutcome.SUCCEEDED
    outcome = succeeded(b"x" * (MAX_RESULT_BYTES + 1))
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, "ResultTooLarge", True)
    assert "65537 bytes, more than 65536" in (outcome.error_message or "")


@given(st.text(), st.text())
def test_texts_are_storable_and_bounded(kind: str, message: str) -> None:
    outcome = failed(kind, message + "\x00" + "\udcff", trace="t" * 100_000)
    for text in (outcome.error_type or "", outcome.error_message or "", outcome.trace or ""):
        assert "\x00" not in text
        text.encode()
    assert len(failed("x" * 1000, "y" * 10_000).error_type or "") == 255
    assert len(failed("x", "y" * 10_000).error_message or "") == 4096
    assert len(outcome.trace or "") == 32 * 1024


def test_timeout_names_its_kind() -> None:
    outcome = timed_out("start_to_close", 1.5)
    assert (outcome.error_type, outcome.error_message) == (
        "timeout_start_to_close",
        "start_to_close of 1.5 s has passed",
    )
    assert outcome.timeout == "start_to_close"
    assert failed("timeout_of_its_own", "no").timeout is None
    assert succeeded(None).timeout is None
