"""Requests: documented fields are read, all else is refused under its path with its identity."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.tidewheel.jobs.submitting import refused
from tidewheel.jobs.parsing import RequestRefused, parse_request, request_identity
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec import JobSpec, schedule_document

RUN_ID = "019d3a1c-7f00-8123-8456-789abcdef012"


SUBMIT: dict[str, Any] = {
    "type": "job.submit",
    "request_id": "r-1",
    "tenant": "default",
    "job": {
        "key": "daily-report",
        "schedule": {"cron": "0 8 * * MON-FRI", "timezone": "Europe/Berlin"},
        "target": {"type": "http", "url": "https://example.org/report"},
        "payload": {"format": "pdf"},
        "retry": {"max_attempts": 5},
        "overlap": "skip",
        "labels": {"team": "billing"},
    },
}


def test_documented_submit_is_read() -> None:
    request = parse_request(SUBMIT)
    assert isinstance(request, JobSubmit)
    assert request.job.carried is not None
    assert request.job.carried.content == b'{"format":"pdf"}'
    assert request.job.retry.attempts == 5
    assert schedule_document(request.job) == {
        "kind": "cron",
        "expressions": ["0 8 * * MON-FRI"],
        "timezone": "Europe/Berlin",
        "dst_gap": "shift_forward",
        "dst_overlap": "first",
        "start_at": None,
        "end_at": None,
    }


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({}, "type", "is missing; write one of job.submit"),
        ({"type": 7}, "type", "7 is not valid"),
        ({"type": "job.sumbit"}, "type", "did you mean 'job.submit'?"),
        ({"type": "job.submit"}, "job", "is missing"),
        ({"type": "job.submit", "job": "x"}, "job", "write an object"),
        ({"type": "job.submit", "schedule": "manual"}, "schedule", "write it inside job"),
        ({"type": "job.trigger", "key": "k", "delay": "1s", "run_at": "2027-01-01T00:00:00Z"}, "delay", "be combined"),
        ({"type": "job.trigger", "key": "k", "delay": "401d"}, "delay", "write 0s to 400d"),
        ({"type": "job.trigger", "key": "k", "run_at": 5}, "run_at", "RFC 3339"),
        ({"type": "job.trigger", "key": "k", "tenant": "../x"}, "tenant", "not a tenant name"),
        ({"type": "job.trigger", "key": "k", "traceparent": "x"}, "traceparent", "not a traceparent"),
        ({"type": "job.pause", "key": "k", "until": "x"}, "until", "not an RFC 3339 timestamp"),
        ({"type": "run.cancel", "run_id": "x"}, "run_id", "not a run id"),
        ({"type": "run.cancel"}, "run_id", "is missing"),
        ({"type": "job.delete", "key": "k", "\n" * 99: 1}, "\\n" * 64 + "...", "there is no field"),
    ],
)
def test_invalid_requests_are_refused_by_path(document: dict[str, object], path: str, words: str) -> None:
    assert words in refused(document)[path]


def test_reply_address_is_read_from_a_refused_request() -> None:
    document = SUBMIT | {"tenant": "acme", "nonsense": 1}
    with pytest.raises(RequestRefused) as caught:
        parse_request(document)
    identity = caught.value.identity
    assert (identity.type, identity.request_id, identity.tenant, identity.key) == (
        "job.submit", "r-1", "acme", "daily-report",
    )  # fmt: skip
    hostile = request_identity({"type": [], "request_id": "\0", "tenant": {}, "key": 7, "job": 5, "run_id": None})
    assert set(vars_of(hostile)) == {None}


def vars_of(identity: object) -> list[object]:
    return [getattr(identity, name) for name in ("type", "request_id", "tenant", "key", "run_id")]


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


FIELDS = sorted({*JobSpec.model_fields, *JobSpec.elsewhere})


@examples(200)
@given(
    document=st.dictionaries(st.sampled_from(["request_id", "tenant", "key", "payload", "delay", "x"]), json_values),
    kind=st.sampled_from(["job.submit", "job.trigger", "job.pause", "run.cancel", "x"]),
    job=json_values | st.dictionaries(st.sampled_from(FIELDS), json_values),
)
def test_any_document_is_a_request_or_refused_with_paths(document: dict[str, object], kind: str, job: object) -> None:
    whole = document | {"type": kind, "job": job}
    try:
        assert parse_request(whole).type == kind
    except RequestRefused as error:
        assert all(str(each).encode() for each in error.errors)  # noqa: PT017 - either outcome is right, another error is not
