"""Jobs as people submit them: everything documented is read, with the defaults that are documented."""

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.tidewheel.jobs.submitting import submitted
from tidewheel.errors import InvalidInput
from tidewheel.jobs.spec import Jitter, JobSpec, canonical_spec, schedule_document
from tidewheel.jobs.strict_json import read_object
from tidewheel.jobs.targets import HttpTargetSpec


def test_defaults_match_the_documentation() -> None:
    job = submitted()
    assert (job.lane, job.queue, job.catch_up, job.on_resume, job.delivery) == (
        "standard", "default", "fire_once", "skip", "at_least_once",
    )  # fmt: skip
    assert (job.retry.kind, job.retry.attempts, job.retry.initial, job.retry.factor) == (
        "exponential", 4, timedelta(seconds=2), 2,
    )  # fmt: skip
    assert (job.retry.max, job.retry.jitter) == (timedelta(hours=1), 0.1)
    assert job.start_to_close == timedelta(seconds=300)
    assert job.carried is None
    assert not job.paused


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"payload": {1: 2, "1": 3}}, "payload"),
        ({"payload": [{"a": {None: 1}}]}, "payload.0.a"),
        ({"labels": {1: "a"}}, "labels"),
        ({"target": {"type": "http", "url": "https://example.org/", "headers": {1: "a"}}}, "target.headers"),
    ],
)
def test_spec_made_in_python_refuses_names_that_are_not_text(given: dict[str, Any], path: str) -> None:
    """Issue 39: in JSON 1 and "1" are one name, and one of the two values was lost."""
    made = cast("Callable[..., JobSpec]", JobSpec)  # the types of its parameters are those of the fields
    with pytest.raises(InvalidInput) as caught:
        made(**{"schedule": "manual", "target": "x"} | given)
    assert [error.path for error in caught.value.errors] == [path]


@pytest.mark.parametrize(
    ("schedule", "policy"),
    [("manual", "allow_all"), ("2027-01-01T00:00:00Z", "allow_all"), ("@every 10s", "skip"), ("@daily", "skip")],
)
def test_overlap_defaults_to_skip_for_recurring_jobs_only(schedule: str, policy: str) -> None:
    assert submitted(schedule=schedule).overlap_policy == policy
    assert submitted(schedule=schedule, overlap="allow_all").overlap_policy == "allow_all"


BOUNDS = {"start_at": None, "end_at": None}


@pytest.mark.parametrize(
    ("schedule", "document"),
    [
        ("manual", {"kind": "manual"}),
        ({"manual": True}, {"kind": "manual"}),
        ("2027-01-01T01:00:00+01:00", {"kind": "once", "at": "2027-01-01T00:00:00.000000Z"}),
        ({"once": "2027-01-01T00:00:00Z"}, {"kind": "once", "at": "2027-01-01T00:00:00.000000Z"}),
        ("@every 10s", {"kind": "interval", "interval_us": 10_000_000, "anchor": None, **BOUNDS}),
        ("PT1M", {"kind": "interval", "interval_us": 60_000_000, "anchor": None, **BOUNDS}),
        (
            {"interval": 5, "anchor": "2027-01-01T00:00:00Z"},
            {"kind": "interval", "interval_us": 5_000_000, "anchor": "2027-01-01T00:00:00.000000Z", **BOUNDS},
        ),
        (
            {"cron": ["@daily", "0 12 * * *"], "dst_gap": "skip", "dst_overlap": "both"},
            {
                "kind": "cron",
                "expressions": ["@daily", "0 12 * * *"],
                "timezone": "UTC",
                "dst_gap": "skip",
                "dst_overlap": "both",
                **BOUNDS,
            },
        ),
    ],
)
def test_equal_schedules_have_one_canonical_form(schedule: object, document: dict[str, object]) -> None:
    assert schedule_document(submitted(schedule=schedule)) == document


def test_jitter_is_a_duration_or_a_percentage() -> None:
    for nothing in ("0s", "0%", 0, "PT0S"):
        assert submitted(jitter=nothing).jitter == Jitter()
    assert submitted(jitter="5m").jitter == Jitter(longest=timedelta(minutes=5))
    assert submitted(jitter="12.5%").jitter == Jitter(percent=12.5)
    assert canonical_spec(submitted(jitter="60s")) == canonical_spec(submitted(jitter="1m"))


def test_null_payload_differs_from_no_payload() -> None:
    assert submitted(payload=None).payload == b"null"
    assert submitted(payload_base64="").carried is not None
    assert submitted().carried is None


def test_bytes_are_read_as_base64() -> None:
    carried = submitted(payload_base64=base64.b64encode(b"\0\xff").decode()).carried
    assert carried is not None
    assert (carried.content, carried.content_type) == (b"\0\xff", "application/octet-stream")


def test_specs_are_equal_exactly_if_their_canonical_forms_are() -> None:
    one = submitted(schedule="@every 60s", labels={"a": "1", "b": "2"}, start_to_close="60s", paused=True)
    two = submitted(schedule={"interval": "1m"}, labels={"b": "2", "a": "1"}, start_to_close=60, end_at=None)
    assert canonical_spec(one) == canonical_spec(two)
    others: list[dict[str, object]] = [
        {"payload": {"a": 1}},
        {"payload_base64": "e30="},
        {"payload": {}},
        {"payload": None},
        {"lane": "standard"},
        {"retry": {}},
        {"key": "other"},
    ]
    forms = {canonical_spec(submitted(**other)) for other in [*others, {}]}
    assert len(forms) == len(others) + 1, "before defaults"


def test_a_fixed_delay_may_be_longer_than_max() -> None:
    policy = submitted(retry={"backoff": "fixed", "initial": "6h"}).retry
    assert (policy.initial, policy.max) == (timedelta(hours=6), timedelta(hours=1))


def test_header_may_contain_any_printable_ascii() -> None:
    headers = {"X-All": "".join(map(chr, range(0x21, 0x7F))), "X-Between": "a \t b", "X-Empty": ""}
    target = submitted(target={"type": "http", "url": "http://a", "headers": headers}).target
    assert isinstance(target, HttpTargetSpec)
    assert target.headers == headers


def test_retry_intervals_set_max_attempts_unless_given() -> None:
    assert submitted(retry={"intervals": ["1s", "5s"]}).retry.attempts == 3
    assert submitted(retry={"intervals": ["1s", "5s"], "max_attempts": 9}).retry.attempts == 9
    assert submitted(retry={"intervals": ["1s"]}).retry.kind == "intervals"


def test_payload_keeps_the_values_of_its_numbers_and_not_their_text() -> None:
    document = read_object(
        b'{"payload": {"z": 1.10, "a": 1E2, "whole": 12345678901234567890123, "long": 0.12345678901234567890}}'
    )
    assert (
        submitted(**document).payload
        == b'{"z":1.1,"a":100.0,"whole":12345678901234567890123,"long":0.12345678901234568}'
    )
