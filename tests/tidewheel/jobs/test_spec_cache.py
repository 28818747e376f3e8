"""The spec cache reads a job as the model does: the same job, the same hash, the same errors."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.control import every_field
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.parsing import RequestRefused, parse_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec, canonical_spec
from tidewheel.jobs.validation import validate

TEXTS = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
SCHEDULES: st.SearchStrategy[Any] = st.sampled_from(
    [
        "manual", {"manual": True}, "@every 10s", "PT5M", {"interval": 60}, {"interval": "1m"}, {"interval": True},
        {"interval": "1h", "anchor": "2027-01-01T00:00:00+01:00"}, {"fixed_delay": "5s"}, "2027-01-01T00:00:00Z",
        {"once": "2027-01-01T00:00:00Z"}, {"cron": "0 8 * * *", "timezone": "Europe/Berlin"}, {"cron": ["H H * * *"]},
        {"cron": ["0 8 * * *", "@daily"], "dst_gap": "skip"}, {"cron": "nonsense"}, "10s", {}, None, 5, {"after": []},
    ]
)  # fmt: skip
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "target": st.sampled_from(
        [
            "send-email",
            {"type": "handler", "name": "a"},
            {"type": "http", "url": "https://example.org", "async": True},
            {"type": "shell", "argv": ["/bin/true"]},
            {"type": "kafka", "topic": "t"},
            "",
            "tidewheel.shell",
            1,
            None,
        ]
    ),
    "labels": st.sampled_from([{}, {"team": "billing"}, {"é": "ü"}, {"a": 1}, None, {"": "x"}]),
    "retry": st.sampled_from(
        [{}, {"max_attempts": 5}, {"intervals": ["1s", 2]}, {"max_attempts": 0}, {"jitter": "5%"}]
    ),
    "overlap": st.sampled_from(["skip", "allow_all", None, "sikp"]),
    "jitter": st.sampled_from(["10s", "10%", 1.5, True]),
    "start_at": st.sampled_from(["2027-01-01T00:00:00Z", None]),
    "max_runs": st.sampled_from([3, 0, None]),
    "exclude_calendars": st.sampled_from([[], ["holidays"]]),
    "paused": st.booleans(),
    "catch_up": st.sampled_from(["skip", "fire_all"]),
    "heartbeat": st.sampled_from(["5s", None]),
    "schedule_to_start": st.sampled_from(["5s", None]),
    "description": TEXTS,
    "payload_base64": st.sampled_from(["AAEC", "?"]),
    "on_failure": TEXTS,
    "priority": st.sampled_from([0, 9, 10, None, "1", True]),
    "payloda": JSON,
}
# Every further field of a job, with a value that most jobs may have beside it.
FURTHER = [(name, value) for job in every_field.JOBS.values() for name, value in job.items() if name not in OTHERS]


def with_further(further: list[tuple[str, object]], job: dict[str, Any]) -> dict[str, Any]:
    return {**dict(further), **job}


JOBS: st.SearchStrategy[dict[str, Any]] = st.builds(
    with_further,
    st.lists(st.sampled_from(FURTHER), max_size=2),
    st.fixed_dictionaries(
        {"schedule": SCHEDULES, "target": OTHERS["target"]},
        optional={
            "key": TEXTS | st.none(),
            "payload": JSON,
            **{name: how for name, how in OTHERS.items() if name != "target"},
        },
    ),
)
SUBMITS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.just("job.submit"), "job": JOBS},
    optional={
        "request_id": TEXTS | st.none() | st.just("r-1"),
        "tenant": TEXTS | st.sampled_from(["default", "acme", "Acme"]),
        "traceparent": st.sampled_from(["00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x", None]),
        "if_version": st.sampled_from([0, None]),
        "priority": st.just(1),
    },
)


def outcome(read: Callable[[], object]) -> object:
    """Return the parsed request, or every error of it."""
    try:
        return read()
    except (InvalidValue, RequestRefused) as refused:
        return tuple(refused.errors)


@given(SUBMITS)
def test_cached_and_full_reading_of_a_submit_agree(document: dict[str, Any]) -> None:
    wanted, read = outcome(lambda: validate(JobSubmit, document)), outcome(lambda: parse_request(document))
    if not isinstance(wanted, JobSubmit) or not isinstance(read, JobSubmit):
        assert read == wanted
        return
    assert read == wanted
    assert read.model_fields_set == wanted.model_fields_set
    assert read.job.model_fields_set == wanted.job.model_fields_set
    assert read.model_dump(exclude_unset=True) == wanted.model_dump(exclude_unset=True)
    assert canonical_spec(read.job) == canonical_spec(wanted.job)


@given(JOBS)
def test_hash_of_a_cached_spec_equals_the_canonical_hash(job: dict[str, Any]) -> None:
    try:
        read = parse_request({"type": "job.submit", "job": job})
    except RequestRefused:
        return
    assert isinstance(read, JobSubmit)
    if read.cached is None:
        return
    (pattern, timing), spec = read.cached, read.job
    assert pattern.spec_hash(timing, spec.key, spec.payload) == sha256(canonical_spec(spec)).digest()
    without = spec.model_copy(update={"payload": None, "payload_base64": None})
    assert json.loads(pattern.shown(timing, spec.key)) == json.loads(canonical_spec(without))


def test_common_specs_are_cached_and_schedule_dependent_ones_are_not() -> None:
    job: dict[str, Any] = {"key": "a", "schedule": "@every 10s", "target": "send-email", "payload": {"a": [1, None]}}
    for more, known in [({}, True), ({"labels": {"a": "b"}}, True), ({"max_runs": 3}, False)]:
        read = parse_request({"type": "job.submit", "job": job | more})
        assert isinstance(read, JobSubmit)
        assert (read.cached is not None) is known


def test_job_given_as_a_spec_is_unchanged() -> None:
    spec = JobSpec.model_validate({"key": "a", "schedule": "manual", "target": "send-email"})
    read = parse_request({"type": "job.submit", "job": spec})
    assert isinstance(read, JobSubmit)
    assert (read.job, read.cached) == (spec, None)
