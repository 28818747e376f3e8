"""What people submit: everything documented is read, everything else refused under its path with a remedy."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewheel.errors import InvalidInput
from tidewheel.jobs.durations import format_duration, microseconds, parse_duration
from tidewheel.jobs.misfit import Misfit
from tidewheel.jobs.refusals import MOST_ERRORS
from tidewheel.jobs.requests import JobSubmit, JobTrigger, RequestRefused, RunCancel, parse_request, request_identity
from tidewheel.jobs.spec import JobSpec, canonical_spec, schedule_document
from tidewheel.jobs.timestamps import format_timestamp, parse_timestamp

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


def submitted(**job: object) -> JobSpec:
    document = {"key": "k", "schedule": "manual", "target": "send-email"} | job
    request = parse_request({"type": "job.submit", "job": document})
    assert isinstance(request, JobSubmit)
    return request.job


def refused(document: Mapping[str, object]) -> dict[str, str]:
    """Problem and remedy of each refused field by its path."""
    with pytest.raises(InvalidInput) as caught:
        parse_request(document)
    return {error.path: f"{error.problem}; {error.remedy}" for error in caught.value.errors}


def refused_job(**job: object) -> dict[str, str]:
    document = {"key": "k", "schedule": "manual", "target": "send-email"} | job
    return refused({"type": "job.submit", "job": document})


def test_the_documented_submit_is_read() -> None:
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


def test_the_documented_trigger_and_cancel_are_read() -> None:
    trigger = parse_request(
        {"type": "job.trigger", "request_id": "r-2", "key": "send-email", "payload": {"to": "a"}, "delay": "10s"}
    )
    assert isinstance(trigger, JobTrigger)
    assert trigger.delay == timedelta(seconds=10)
    cancel = parse_request({"type": "run.cancel", "request_id": "r-3", "run_id": RUN_ID.upper()})
    assert isinstance(cancel, RunCancel)
    assert cancel.run_id == RUN_ID


@pytest.mark.parametrize("kind", ["job.pause", "job.resume", "job.delete"])
def test_pause_resume_and_delete_name_a_job(kind: str) -> None:
    assert parse_request({"type": kind, "key": "k", "reason": "maintenance"}).type == kind
    assert refused({"type": kind})["key"].startswith("is missing")


def test_defaults_are_those_of_the_semantics() -> None:
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
    ("schedule", "policy"),
    [("manual", "allow_all"), ("2027-01-01T00:00:00Z", "allow_all"), ("@every 10s", "skip"), ("@daily", "skip")],
)
def test_overlap_is_skip_for_recurring_jobs_and_allow_all_for_the_others(schedule: str, policy: str) -> None:
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
        ("@every 10s", {"kind": "interval", "every_us": 10_000_000, "anchor": None, **BOUNDS}),
        ("PT1M", {"kind": "interval", "every_us": 60_000_000, "anchor": None, **BOUNDS}),
        (
            {"interval": 5, "anchor": "2027-01-01T00:00:00Z"},
            {"kind": "interval", "every_us": 5_000_000, "anchor": "2027-01-01T00:00:00.000000Z", **BOUNDS},
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
def test_schedules_in_every_form_become_one_document(schedule: object, document: dict[str, object]) -> None:
    assert schedule_document(submitted(schedule=schedule)) == document


@pytest.mark.parametrize(
    ("job", "path", "words"),
    [
        (
            {"schedule": {"fixed_delay": "10s"}},
            "job.schedule.fixed_delay",
            "not yet available in this release; use inter",
        ),
        ({"schedule": {"after": []}}, "job.schedule.after", "not yet available"),
        ({"max_runs": 3}, "job.max_runs", "not yet available in this release; bound the schedule with end_at"),
        ({"jitter": "10%"}, "job.jitter", "not yet available"),
        ({"jitter": "5s"}, "job.jitter", "not yet available"),
        ({"overlap": "buffer_one"}, "job.overlap", "not yet available in this release; write 'skip' or 'allow_all'"),
        ({"overlap": "cancel_other"}, "job.overlap", "not yet available"),
        ({"catch_up": "fire_all"}, "job.catch_up", "not yet available"),
        ({"on_resume": "fire_once"}, "job.on_resume", "not yet available"),
        ({"delivery": "at_most_once"}, "job.delivery", "not yet available"),
        ({"target": {"type": "shell"}}, "job.target.type", "not yet available"),
        ({"target": {"type": "kafka"}}, "job.target.type", "not yet available"),
        ({"target": {"type": "http", "url": "http://a", "async": True}}, "job.target.async", "not yet available"),
        ({"schedule_to_start": "1m"}, "job.schedule_to_start", "not yet available in this release; use start_to_close"),
        ({"heartbeat": "1m"}, "job.heartbeat", "not yet available"),
        ({"pause_on_failure": 3}, "job.pause_on_failure", "not yet available"),
        ({"on_failure": "k"}, "job.on_failure", "not yet available"),
        ({"concurrency_key": "k"}, "job.concurrency_key", "not yet available"),
        ({"priority": 3}, "job.priority", "not yet available in this release; use lane"),
    ],
)
def test_what_comes_later_is_refused_with_what_works_now(job: dict[str, object], path: str, words: str) -> None:
    assert words in refused_job(**job)[path]


def test_backfill_comes_later() -> None:
    assert "not yet available" in refused({"type": "job.backfill", "key": "k"})["type"]


def test_no_jitter_is_allowed_however_it_is_written() -> None:
    for nothing in ("0s", "0%", 0, "PT0S"):
        assert submitted(jitter=nothing).jitter == timedelta(0)


@pytest.mark.parametrize(
    ("job", "path", "words"),
    [
        ({"schedule": {"cron": "* * * * *", "timezon": "UTC"}}, "job.schedule.timezon", "did you mean 'timezone'?"),
        ({"retry": {"max_attemps": 3}}, "job.retry.max_attemps", "did you mean 'max_attempts'?"),
        ({"schedul": 1}, "job.schedul", "did you mean 'schedule'?"),
        ({"overlap": "skipp"}, "job.overlap", "did you mean 'skip'?"),
        ({"timezone": "UTC"}, "job.timezone", "write it inside schedule"),
        ({"schedule": {"cron": "@daily", "end_at": "x"}}, "job.schedule.end_at", "write it beside schedule"),
        ({"schedule": {"interval": "10s", "timezone": "UTC"}}, "job.schedule.timezone", "belongs to cron"),
        ({"timeout": "10s"}, "job.timeout", "write it as start_to_close"),
        ({"schedule": {"cron": "@daily", "once": "x"}}, "job.schedule", "it has once and cron"),
        ({"schedule": {}}, "job.schedule", "it says nothing"),
        ({"schedule": 7}, "job.schedule", "7 was read"),
        ({"schedule": "10s"}, "job.schedule", 'write "@every 10s"'),
        ({"schedule": "@every 500ms"}, "job.schedule.interval", "write 1s to 400d"),
        ({"schedule": "P1M"}, "job.schedule.interval", "months or years"),
        ({"schedule": {"once": "2027-01-01T00:00:00"}}, "job.schedule.once", "has no offset"),
        ({"schedule": {"cron": []}}, "job.schedule.cron", "write a cron expression"),
        ({"schedule": {"cron": ["@daily"] * 21}}, "job.schedule.cron", "at most 20"),
        ({"schedule": {"cron": "x" * 257}}, "job.schedule.cron", "at most 256"),
        ({"schedule": {"cron": [1]}}, "job.schedule.cron", "1 was read"),
        ({"start_at": "2027-01-01T00:00:00Z"}, "job.start_at", "does not recur"),
        (
            {"schedule": "@daily", "start_at": "2027-01-02T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"},
            "job.end_at",
            "can never fire",
        ),
        ({"key": ""}, "job.key", "empty"),
        ({"key": "x" * 256}, "job.key", "at most 255"),
        ({"key": "a\nb"}, "job.key", "which is no text"),
        ({"key": 7}, "job.key", "write a string"),
        ({"queue": "Big Queue"}, "job.queue", "no queue's name"),
        ({"lane": "fast"}, "job.lane", "write 'standard', 'critical' or 'batch'"),
        ({"target": 7}, "job.target", "write a handler's name"),
        ({"target": {}}, "job.target.type", "is missing"),
        ({"target": {"type": "ftp"}}, "job.target.type", "'ftp' was read"),
        ({"target": {"type": "handler"}}, "job.target.name", "is missing"),
        ({"target": {"type": "http"}}, "job.target.url", "is missing"),
        ({"target": {"type": "http", "url": "ftp://a"}}, "job.target.url", "no absolute http or https URL"),
        ({"target": {"type": "http", "url": "http://u:p@a"}}, "job.target.url", "Authorization header"),
        ({"target": {"type": "http", "url": "http://a:99999"}}, "job.target.url", "no URL"),
        ({"target": {"type": "http", "url": "http://a", "method": "BREW"}}, "job.target.method", "'BREW' was read"),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "a\r\nb: c"}}},
            "job.target.headers.X",
            "one line",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"Host": "b"}}},
            "job.target.headers.Host",
            "itself",
        ),
        (
            {"target": {"type": "http", "url": "http://a", "headers": {"X": "1", "x": "2"}}},
            "job.target.headers.x",
            "twice",
        ),
        ({"target": {"type": "http", "url": "http://a", "headers": {"a b": "1"}}}, "job.target.headers", "no header's"),
        ({"retry": {"max_attempts": 0}}, "job.retry.max_attempts", "0 was read; write at least 1"),
        ({"retry": {"max_attempts": "3"}}, "job.retry.max_attempts", "write a whole number"),
        ({"retry": {"factor": float("inf")}}, "job.retry.factor", "finite"),
        ({"retry": {"initial": "2h"}}, "job.retry.initial", "longer than max, 1h"),
        ({"retry": {"intervals": ["1s", "x"]}}, "job.retry.intervals.1", "no duration"),
        ({"retry": {"backoff": "fixed", "intervals": ["1s"]}}, "job.retry.intervals", "exclude each other"),
        ({"retry": {"backoff": "intervals"}}, "job.retry.intervals", "is missing"),
        ({"retry": {"jitter": 0.1}}, "job.retry.jitter", "percentage"),
        ({"retry": {"jitter": "101%"}}, "job.retry.jitter", "percentage"),
        ({"retry": 7}, "job.retry", "write an object"),
        ({"start_to_close": "25h"}, "job.start_to_close", "write 1ms to 1d"),
        ({"start_to_close": True}, "job.start_to_close", "true was read"),
        ({"start_to_close": float("nan")}, "job.start_to_close", "no duration"),
        ({"labels": {"a": 1}}, "job.labels.a", "write a string"),
        ({"labels": {"a": "x" * 256}}, "job.labels.a", "at most 255"),
        ({"labels": {str(n): "" for n in range(65)}}, "job.labels", "at most 64"),
        ({"labels": []}, "job.labels", "write an object"),
        ({"description": "\0"}, "job.description", "which is no text"),
        ({"paused": "yes"}, "job.paused", "write true or false"),
        ({"payload": 1, "payload_base64": ""}, "job.payload_base64", "exclude each other"),
        ({"payload_base64": "%%%"}, "job.payload_base64", "no base64"),
        ({"payload": "x" * 262_143}, "job.payload", "262145 bytes; at most 262144"),
        ({"payload": ["\ud800"]}, "job.payload", "surrogate"),
        ({"payload": ["\0"]}, "job.payload", "NUL"),
        ({"payload": float("nan")}, "job.payload", "NaN"),
        ({"payload": json.loads("[" * 33 + "]" * 33)}, "job.payload", "32 deep"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_write(job: dict[str, object], path: str, words: str) -> None:
    assert words in refused_job(**job)[path]


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({}, "type", "is missing; write one of job.submit"),
        ({"type": 7}, "type", "7 was read"),
        ({"type": "job.sumbit"}, "type", "did you mean 'job.submit'?"),
        ({"type": "job.submit"}, "job", "is missing"),
        ({"type": "job.submit", "job": "x"}, "job", "write an object"),
        ({"type": "job.submit", "schedule": "manual"}, "schedule", "write it inside job"),
        ({"type": "job.trigger", "key": "k", "delay": "1s", "run_at": "2027-01-01T00:00:00Z"}, "delay", "exclude"),
        ({"type": "job.trigger", "key": "k", "delay": "401d"}, "delay", "write 0s to 400d"),
        ({"type": "job.trigger", "key": "k", "run_at": 5}, "run_at", "RFC 3339"),
        ({"type": "job.trigger", "key": "k", "tenant": "../x"}, "tenant", "no tenant's name"),
        ({"type": "job.trigger", "key": "k", "traceparent": "x"}, "traceparent", "no traceparent"),
        ({"type": "job.pause", "key": "k", "until": "x"}, "until", "not yet available"),
        ({"type": "run.cancel", "run_id": "x"}, "run_id", "no run's id"),
        ({"type": "run.cancel"}, "run_id", "is missing"),
        ({"type": "job.delete", "key": "k", "\n" * 99: 1}, "\\n" * 64 + "...", "there is no field"),
    ],
)
def test_requests_that_do_not_fit_are_refused_by_path(document: dict[str, object], path: str, words: str) -> None:
    assert words in refused(document)[path]


@pytest.mark.parametrize(
    "path", ["request_id", "job.key", "job.queue", "job.description", "job.labels.a", "job.target"]
)
def test_half_a_surrogate_pair_gets_in_nowhere(path: str) -> None:
    """No database and no UTF-8 could hold it: it would fail later, and with it the batch it came in."""
    document: dict[str, Any] = {"type": "job.submit", "job": {"key": "k", "schedule": "manual", "target": "h"}}
    inner = document if path == "request_id" else document["job"]
    names = path.removeprefix("job.").split(".")
    inner[names[0]] = {"a": "\ud800"} if len(names) == 2 else "\ud800"
    (found,) = refused(document).items()
    assert found[0].startswith(path)
    assert "".join(found).encode(), "the answer can be sent"
    assert "".join(*refused(document | {"\udc00": 1}).items()).encode(), "also when it is in a name"


def test_every_problem_is_said_at_once() -> None:
    found = refused(
        {"type": "job.submit", "foo": 1, "job": {"schedule": {"cron": ""}, "retry": {"factor": 0}, "lane": 1}}
    )
    assert set(found) == {"foo", "job.schedule.cron", "job.target", "job.retry.factor", "job.lane"}


def test_no_refusal_lists_more_than_can_be_read() -> None:
    found = refused_job(**{f"f{n}": 1 for n in range(90)})
    assert len(found) == MOST_ERRORS + 1
    assert "40 more problems" in found[""]


def test_who_is_to_be_answered_is_read_from_a_refused_request() -> None:
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


def test_a_null_payload_is_one_and_not_the_lack_of_one() -> None:
    assert submitted(payload=None).payload == b"null"
    assert submitted(payload_base64="").carried is not None
    assert submitted().carried is None


def test_bytes_come_as_base64() -> None:
    carried = submitted(payload_base64=base64.b64encode(b"\0\xff").decode()).carried
    assert carried is not None
    assert (carried.content, carried.content_type) == (b"\0\xff", "application/octet-stream")


def test_equal_specs_have_equal_canonical_forms_and_unequal_ones_have_not() -> None:
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


def test_retry_intervals_set_the_number_of_attempts_unless_it_is_given() -> None:
    assert submitted(retry={"intervals": ["1s", "5s"]}).retry.attempts == 3
    assert submitted(retry={"intervals": ["1s", "5s"], "max_attempts": 9}).retry.attempts == 9
    assert submitted(retry={"intervals": ["1s"]}).retry.kind == "intervals"


@settings(deadline=None)
@given(st.timedeltas(timedelta(0), timedelta(days=36_000)))
def test_a_duration_that_was_written_is_read_again(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span
    assert parse_duration(f"PT{microseconds(span) // 1_000_000}.{microseconds(span) % 1_000_000:06}S") == span


@given(st.text(max_size=30) | st.text("0123456789.wdhmsuPTYDWHMS -+", max_size=12))
def test_any_text_is_a_duration_or_refused_in_words(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except Misfit as misfit:
        assert misfit.errors[0].remedy  # noqa: PT017 - either outcome is right, silence is not


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("P1DT2H", 93_600), ("P2W", 1_209_600),
     (10, 10), (0.25, 0.25), ("0s", 0), ("1d", 86_400), ("7us", 0.000007)],
)  # fmt: skip
def test_durations_in_every_form(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "P", "PT", "P1DT", "1s1s", "1s1m", "-5s", "1 s", "٣s", "1e3s", "0.1us", "999999999999d", -1, 1e300],
)
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    with pytest.raises(Misfit):
        parse_duration(text)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001
def test_an_instant_that_was_written_is_read_again(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment.astimezone(UTC)
    assert parse_timestamp(moment.astimezone(UTC).isoformat()) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2027-01-01", "2027-01-01T00:00Z", "2027-02-30T00:00:00Z", "2027-01-01T24:00:01Z", "2027-01-01T00:00:60Z",
     "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "2027-01-01T00:00:00+24:00", "2027-01-01T00:00:00", "now",
     "٢027-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(Misfit):
        parse_timestamp(text)


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*JobSpec.model_fields, *JobSpec.later, *JobSpec.elsewhere})


@settings(max_examples=200, deadline=None)
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
