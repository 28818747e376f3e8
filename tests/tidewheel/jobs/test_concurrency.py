"""Concurrency keys as submitted: one meaning for each spelling, and a refusal that names the field."""

import pytest

from tests.tidewheel.jobs.submitting import refused_job
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import ConcurrencyKey, fill_key, parse_rate
from tidewheel.jobs.payload import BYTES_CONTENT, JSON_CONTENT, Payload
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.validation import validate


def spec(key: object) -> JobSpec:
    return validate(JobSpec, {"key": "job", "schedule": "manual", "target": "send-email", "concurrency_key": key})


@pytest.mark.parametrize(
    ("given", "places", "every_us"),
    [
        ({}, 1, None),
        ({"at_once": 3}, 3, None),
        ({"rate": "100/min"}, None, 600_000),
        ({"rate": "1/s", "at_once": 2}, 2, 1_000_000),
    ],
)
def test_bounds_in_force(given: dict[str, object], places: int | None, every_us: int | None) -> None:
    key = validate(ConcurrencyKey, {"key": "acme", **given})
    assert (key.places, key.every_us) == (places, every_us)


@pytest.mark.parametrize(
    ("key", "path", "words"),
    [
        ("", "job.concurrency_key.key", ""),
        ("k" * 256, "job.concurrency_key.key", ""),
        ("k" * 10_000_000, "job.concurrency_key.key", ""),
        ("{payload}", "job.concurrency_key.key", "{payload.customer}"),
        ("{payload.a", "job.concurrency_key.key", "{payload.customer}"),
        ("{payload.a..b}", "job.concurrency_key.key", "{payload.customer}"),
        ("{labels.team}", "job.concurrency_key.key", "{payload.customer}"),
        (7, "job.concurrency_key", "not a key"),
        ({"at_once": 1}, "job.concurrency_key.key", "missing"),
        ({"key": "k", "at_once": 0}, "job.concurrency_key.at_once", ""),
        ({"key": "k", "at_once": 100_001}, "job.concurrency_key.at_once", ""),
        ({"key": "k", "rate": "5 a day"}, "job.concurrency_key.rate", "100/min"),
        ({"key": "k", "rate": "0/s"}, "job.concurrency_key.rate", "1/day"),
        ({"key": "k", "rate": "10001/s"}, "job.concurrency_key.rate", "10000/s"),
        ({"key": "k", "burst": 2}, "job.concurrency_key.burst", "rate"),
        ({"key": "k", "at_onec": 2}, "job.concurrency_key.at_onec", "at_once"),
    ],
)
def test_bad_key_is_refused_with_a_remedy(key: object, path: str, words: str) -> None:
    assert words in refused_job(concurrency_key=key)[path]


def test_bounds_of_a_rate_are_accepted() -> None:
    assert parse_rate("10000/s").microseconds == 100
    assert parse_rate("1/day").days == 1


@pytest.mark.parametrize(
    ("template", "payload", "key"),
    [
        ("{payload.customer}", b'{"customer": "acme"}', "acme"),
        ("api/{payload.customer.id}/{payload.region}", b'{"customer": {"id": -7}, "region": "eu"}', "api/-7/eu"),
        ("{payload.a}", b'{"a": "{payload.b}", "b": 1}', "{payload.b}"),
        ("plain", b"", "plain"),
    ],
)
def test_fields_of_the_payload_fill_a_key(template: str, payload: bytes, key: str) -> None:
    assert fill_key(template, Payload(payload, JSON_CONTENT)) == key


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b"", "payload"),
        (b"7", "payload.a"),
        (b"{}", "payload.a"),
        (b'{"a": 1.5}', "payload.a"),
        (b'{"a": true}', "payload.a"),
        (b'{"a": null}', "payload.a"),
        (b'{"a": ["x"]}', "payload.a"),
        (b'{"a": ""}', "payload"),
        (b'{"a": "x\\ny"}', "payload"),
        (b'{"a": "%b"}' % (b"x" * 256), "payload"),
    ],
)
def test_payload_that_does_not_fill_a_key_is_refused_with_a_remedy(payload: bytes, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        fill_key("{payload.a}", Payload(payload, JSON_CONTENT))
    [error] = caught.value.errors
    assert (error.path, bool(error.remedy)) == (path, True)


def test_bytes_fill_no_key() -> None:
    with pytest.raises(InvalidValue, match="no JSON payload"):
        fill_key("{payload.a}", Payload(b'{"a": 1}', BYTES_CONTENT))


def test_job_with_a_schedule_needs_the_field_in_its_own_payload() -> None:
    given = {"schedule": "@every 1m", "concurrency_key": "{payload.customer}"}
    assert "needs this field" in refused_job(**given, payload={})["job.payload.customer"]
    assert "no JSON payload" in refused_job(**given)["job.payload"]
