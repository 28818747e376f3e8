"""The decision about the next attempt: every policy, every number of failed attempts."""

import doctest
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.jobs.retry import MAX_ATTEMPTS, RetryPolicy
from tidewheel.schemas.generated.records import Backoff, Retry
from tidewheel.transitions import retry as module
from tidewheel.transitions.retry import Failure, delay_before_next

ERROR = Failure("ValueError")
DAY_MS = 86_400_000


def policy(**fields: object) -> Retry:
    known: dict[str, object] = {
        "max_attempts": 4,
        "backoff": Backoff.EXPONENTIAL,
        "initial_ms": 2000,
        "factor": 2.0,
        "max_ms": 3_600_000,
        "jitter": 0.1,
        "intervals_ms": (),
        "non_retryable": (),
    }
    return Retry(**{**known, **fields})  # type: ignore[arg-type]


POLICIES = st.builds(
    policy,
    max_attempts=st.integers(1, MAX_ATTEMPTS),
    backoff=st.sampled_from([Backoff.EXPONENTIAL, Backoff.FIXED, Backoff.INTERVALS]),
    initial_ms=st.integers(1, 30 * DAY_MS),
    factor=st.floats(1, 1000),
    max_ms=st.integers(1, 30 * DAY_MS),
    jitter=st.floats(0, 1),
    intervals_ms=st.lists(st.integers(1, 30 * DAY_MS), min_size=1, max_size=5).map(tuple),
)
SPREADS = st.floats(-1, 1)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS + 5))
def test_max_attempts_is_exact(retry: Retry, failed_attempts: int) -> None:
    assert (delay_before_next(retry, ERROR, failed_attempts) is None) == (failed_attempts >= retry.max_attempts)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS), SPREADS)
def test_retry_delay_lies_within_its_bounds_and_jitter(retry: Retry, failed_attempts: int, spread: float) -> None:
    delay = delay_before_next(retry, ERROR, failed_attempts, spread=spread)
    if delay is None:
        return
    longest = {
        Backoff.INTERVALS: max(retry.intervals_ms),
        Backoff.FIXED: retry.initial_ms,
        Backoff.EXPONENTIAL: retry.max_ms,
    }[retry.backoff]
    assert timedelta(0) <= delay <= timedelta(milliseconds=longest * (1 + retry.jitter) + 1)
    middle = delay_before_next(retry, ERROR, failed_attempts, spread=0.0)
    assert middle is not None
    assert abs(delay - middle) <= middle * retry.jitter + timedelta(microseconds=2)


@given(POLICIES, st.integers(1, MAX_ATTEMPTS - 1))
def test_retry_delays_never_shrink(retry: Retry, failed_attempts: int) -> None:
    if retry.backoff is Backoff.INTERVALS:
        retry = policy(backoff=Backoff.INTERVALS, intervals_ms=tuple(sorted(retry.intervals_ms)), max_attempts=1000)
    first, second = (
        delay_before_next(retry, ERROR, number, spread=0.0) for number in (failed_attempts, failed_attempts + 1)
    )
    if first is not None and second is not None:
        assert first <= second


@given(POLICIES, st.integers(1, MAX_ATTEMPTS), st.timedeltas(timedelta(0), timedelta(days=1)), SPREADS)
def test_requested_retry_after_is_the_least_delay(
    retry: Retry, failed_attempts: int, after: timedelta, spread: float
) -> None:
    plain = delay_before_next(retry, ERROR, failed_attempts, spread=spread)
    delay = delay_before_next(retry, Failure("http_503", retry_after=after), failed_attempts, spread=spread)
    assert delay == (None if plain is None else max(plain, after))


@given(POLICIES, st.integers(1, MAX_ATTEMPTS))
def test_permanent_and_non_retryable_failures_are_not_retried(retry: Retry, failed_attempts: int) -> None:
    assert delay_before_next(retry, Failure("ValueError", permanent=True), failed_attempts) is None
    named = policy(non_retryable=("ValueError",), max_attempts=1000)
    assert delay_before_next(named, ERROR, failed_attempts) is None
    assert (delay_before_next(named, Failure("KeyError"), failed_attempts) is None) == (failed_attempts >= 1000)


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (policy(max_attempts=6, max_ms=10_000), [2, 4, 8, 10, 10, None]),
        (policy(max_attempts=4, backoff=Backoff.FIXED), [2, 2, 2, None]),
        (policy(max_attempts=3, backoff=Backoff.FIXED, initial_ms=7_200_000), [7200, 7200, None]),
        (policy(max_attempts=5, backoff=Backoff.INTERVALS, intervals_ms=(1000, 60_000)), [1, 60, 60, 60, None]),
        (policy(max_attempts=1), [None]),
    ],
)
def test_each_backoff_has_its_delays(retry: Retry, delays: list[int | None]) -> None:
    found = [
        delay_before_next(retry, ERROR, failed_attempts, spread=0.0) for failed_attempts in range(1, len(delays) + 1)
    ]
    assert found == [None if seconds is None else timedelta(seconds=seconds) for seconds in delays]


def test_thousand_attempts_do_not_overflow() -> None:
    steep = policy(max_attempts=1000, factor=1000.0, max_ms=DAY_MS)
    assert delay_before_next(steep, ERROR, 999, spread=0.0) == timedelta(days=1)


def test_default_retry_policy_matches_the_documentation() -> None:
    default = RetryPolicy()
    assert (default.attempts, default.kind, default.initial, default.factor) == (
        4,
        "exponential",
        timedelta(seconds=2),
        2,
    )
    assert (default.max, default.jitter) == (timedelta(hours=1), 0.1)


def test_docstring_examples_of_retry_run() -> None:
    assert doctest.testmod(module).failed == 0
