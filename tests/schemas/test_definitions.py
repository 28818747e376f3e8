"""A definition has all fields that executors need, with every default."""

import pytest

from tidewheel.jobs.spec import JobSpec
from tidewheel.schemas.codec import decode, encode
from tidewheel.schemas.definitions import definition_record
from tidewheel.schemas.generated.records import JobDefinition, Lane, Overlap


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"key": "k", "schedule": "@every 10s", "target": "send-email"} | fields)


def definition(**fields: object) -> JobDefinition:
    return definition_record(spec(**fields), tenant="default", job_id="j", job_version=3)


def test_definition_contains_the_submitted_fields() -> None:
    made = definition(
        target={"type": "http", "url": "http://a", "headers": {"X-A": "1"}},
        payload={"a": "ü"},
        retry={"intervals": ["1s", "1500ms"], "non_retryable": ["ValueError"]},
        start_to_close=0.0015,
        labels={"team": "billing"},
        lane="critical",
        overlap="allow_all",
    )
    assert made.target.http is not None
    assert (made.target.http.method, made.target.http.headers) == ("POST", {"X-A": "1"})
    assert made.payload == '{"a":"ü"}'.encode()
    assert made.retry.intervals_ms == (1000, 1500)
    assert made.retry.max_attempts == 3
    assert made.retry.non_retryable == ("ValueError",)
    assert made.start_to_close_ms == 2, "rounded up"
    assert (made.lane, made.overlap) == (Lane.CRITICAL, Overlap.ALLOW_ALL)
    assert decode(encode(made), JobDefinition) == made


def test_job_without_a_key_takes_the_key_of_intake() -> None:
    without = JobSpec.model_validate({"schedule": "manual", "target": "h"})
    made = definition_record(without, tenant="t", job_id="j", job_version=1, job_key="r-1")
    assert made.job_key == "r-1"
    with pytest.raises(ValueError, match="without a key"):
        definition_record(without, tenant="t", job_id="j", job_version=1)
