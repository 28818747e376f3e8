"""Concurrency keys as submitted: one meaning for each spelling, and a refusal that names the field."""

import pytest

from tests.tidewheel.jobs.submitting import refused_job
from tidewheel.jobs.concurrency import ConcurrencyKey, parse_rate
from tidewheel.jobs.spec import JobSpec, canonical_spec
from tidewheel.jobs.validation import validate


def spec(key: object) -> JobSpec:
    return validate(JobSpec, {"key": "job", "schedule": "manual", "target": "send-email", "concurrency_key": key})


def test_text_and_object_are_one_spec() -> None:
    assert canonical_spec(spec("acme")) == canonical_spec(spec({"key": "acme"}))


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
        ("{payload.customer}", "job.concurrency_key.key", "not yet available"),
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
