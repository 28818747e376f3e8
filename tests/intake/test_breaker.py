"""Requests that fail alike are counted across their types and partitions."""

import pytest

from tidewheel.intake.breaker import RequestBreaker
from tidewheel.postgres.faults import MAX_ALIKE
from tidewheel.schemas.generated.records import RequestType

pytestmark = pytest.mark.unit
SUBMIT, TRIGGER, PAUSE = RequestType.JOB_SUBMIT, RequestType.JOB_TRIGGER, RequestType.JOB_PAUSE


def rejects(breaker: RequestBreaker, error: Exception, offset: int, kind: RequestType) -> bool:
    return breaker.rejects(error, (("requests", 0), offset), kind, allowed=MAX_ALIKE)


def test_types_that_fail_alike_share_one_count_that_either_restarts() -> None:
    """A count that kept the other type's failures would repeat the request for ever."""
    breaker = RequestBreaker()
    assert all(rejects(breaker, KeyError(), offset, TRIGGER) for offset in range(MAX_ALIKE))
    assert not rejects(breaker, KeyError(), 10, SUBMIT)
    assert rejects(breaker, ValueError(), 11, SUBMIT)
    breaker.restart({PAUSE})
    assert not rejects(breaker, KeyError(), 10, SUBMIT)
    breaker.restart({SUBMIT})
    assert rejects(breaker, KeyError(), 10, SUBMIT)


def test_request_that_is_tried_again_counts_once() -> None:
    breaker = RequestBreaker()
    assert all(rejects(breaker, KeyError(), 1, SUBMIT) for _ in range(2 * MAX_ALIKE))
