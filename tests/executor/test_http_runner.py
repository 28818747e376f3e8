"""HTTP targets: what is sent, how answers are judged; no redirect, no inside address, no endless body."""

import json
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pytest

from tests.executor.attempting import NOON, RUN
from tests.executor.http_target import Answer, answered, serving
from tests.executor.http_target import call as call_all
from tidewheel.clock import SystemClock
from tidewheel.executor.outcome import Outcome
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.codec import encode_json
from tidewheel.schemas.generated.records import Cause, Lane, RunCompleted, RunStatus


def call(url: str, **rest: Any) -> Outcome:  # noqa: ANN401 - passed on
    [outcome] = call_all(url, **rest)
    return outcome


def http_date(at: datetime) -> str:
    return f"{at:%a, %d %b %Y %H:%M:%S GMT}"


def completion(result: bytes | None) -> RunCompleted:
    return RunCompleted(
        event_id="e", run_id=str(RUN), job_id="j", job_key="job", job_version=1, tenant="default", lane=Lane.STANDARD,
        cause=Cause.TRIGGER, status=RunStatus.SUCCEEDED, scheduled_at=NOON, finished_at=NOON, attempt=1, max_attempts=4,
        labels={}, sequence=2, result=result,
    )  # fmt: skip


def test_http_request_has_the_payload_and_the_runs_identity() -> None:
    outcome, target = answered(
        Answer(201, b"made"), path="/a?b=c", job={"payload": {"to": "ann"}}, target={"headers": {"X-Team": "billing"}}
    )
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert outcome.result == b'{"status":201,"body":"made"}'
    [request] = target.received
    assert (request.method, request.path, request.body) == ("POST", "/a?b=c", b'{"to":"ann"}')
    wanted = {
        "content-type": "application/json",
        "idempotency-key": str(RUN),
        "tidewheel-run-id": str(RUN),
        "tidewheel-attempt": "1",
        "tidewheel-job-key": "job",
        "tidewheel-scheduled-at": NOON.isoformat(),
        "x-team": "billing",
        "host": f"127.0.0.1:{target.port}",
        "accept-encoding": "identity",
    }
    assert {name: request.headers.get(name) for name in wanted} == wanted


def test_request_uses_the_jobs_method() -> None:
    methods = ["GET", "PUT", "PATCH", "DELETE", "HEAD"]
    with serving() as target:
        for method in methods:
            assert call(target.url(), target={"method": method}).kind is AttemptOutcome.SUCCEEDED, method
    assert [request.method for request in target.received] == methods


def test_client_error_is_permanent_and_others_are_retried() -> None:
    cases = dict.fromkeys((400, 401, 403, 404, 409, 410, 422, 451), True)
    cases |= dict.fromkeys((408, 425, 429, 500, 502, 503, 504), False)
    with serving(*(Answer(status, b"no") for status in cases)) as target:
        outcomes = call_all(*[target.url()] * len(cases))
    for (status, permanent), outcome in zip(cases.items(), outcomes, strict=True):
        assert (outcome.kind, outcome.error_type) == (AttemptOutcome.FAILED, f"http_{status}")
        assert outcome.permanent is permanent, status
        assert f"answered {status}" in (outcome.error_message or "")
        assert (outcome.error_message or "").endswith("no"), status


@pytest.mark.parametrize(
    ("said", "waits"),
    [("7", 7.0), ("0", 0.0), ("999999", 86_400.0), ("9" * 5000, 86_400.0), ("1.5", 1.5), ("007", 7.0)],
)
def test_retry_after_in_seconds_is_honoured_within_a_day(said: str, waits: float) -> None:
    with serving(Answer(503, headers={"Retry-After": said})) as target:
        assert call(target.url()).retry_after == timedelta(seconds=waits)


def test_retry_after_date_is_read_on_the_servers_clock() -> None:
    theirs = SystemClock().now() + timedelta(days=7)  # this machine's clock is a week behind, or theirs ahead
    told = {"Date": http_date(theirs), "Retry-After": http_date(theirs + timedelta(seconds=90))}
    with serving(Answer(503, headers=told)) as target:
        assert call(target.url()).retry_after == timedelta(seconds=90)


@pytest.mark.parametrize("form", ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"])
def test_retry_after_in_the_old_forms_of_a_date_is_in_greenwichs_time(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third form has no zone; Python's reader takes it for a time of the machine."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        theirs = SystemClock().now().replace(microsecond=0)
        told = {"Date": http_date(theirs), "Retry-After": (theirs + timedelta(seconds=90)).strftime(form)}
        with serving(Answer(503, headers=told)) as target:
            assert call(target.url()).retry_after == timedelta(seconds=90)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "said",
    [
        "soon", "", "-5", "+5", "inf", "nan", "1e9", "1_000", "0x10", "5.", ".5", "\u00b2", "5 s",
        "Fri, 99 Foo 2026", "Fri, 31 Feb 2026 08:00:00 GMT", "Fri, 27 Nov 2026 25:00:00 GMT", "27 Nov 2099 08:00:00",
        "Fri, 27 Nov 2099 08:00:00 +0900", "2099-11-27T08:00:00Z",
    ],
)  # fmt: skip
def test_invalid_retry_after_is_ignored(said: str) -> None:
    with serving(Answer(503, headers={"Retry-After": said})) as target:
        assert call(target.url()).retry_after is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_refused_and_not_followed(status: int) -> None:
    with serving() as elsewhere:
        outcome, _ = answered(Answer(status, headers={"Location": elsewhere.url()}))
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, f"http_{status}", True)
    assert f"a redirect to {elsewhere.url()}, which is not followed" in (outcome.error_message or "")
    assert elsewhere.received == []


@pytest.mark.parametrize(("url", "private"), [("http://nowhere.invalid/", False), ("http://127.0.0.1:1/", True)])
def test_unknown_host_or_refused_connection_is_retried(url: str, private: bool) -> None:  # noqa: FBT001
    outcome = call(url, allow_private=private)
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, "http_connect", False)
    assert outcome.not_started


def test_response_that_grows_by_escapes_is_cut_again() -> None:
    outcome, _ = answered(Answer(body=b"\x01" * 60_000))
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert json.loads(outcome.result or b"") == {"status": 200, "body": "\x01" * 8192, "cut": True}


@pytest.mark.parametrize("body", [b"ok", "Bücher\U0001f4da".encode(), b'{"a": "\\u0000"}', b"\xff\x00\x1b[0m", b""])
def test_json_completion_contains_the_response_as_a_value(body: bytes) -> None:
    outcome, _ = answered(Answer(body=body))
    document = json.loads(encode_json(completion(outcome.result)))
    assert "result_base64" not in document
    assert document["result"] == {"status": 200, "body": body.decode("utf-8", "replace").replace("\0", "\ufffd")}


@pytest.mark.parametrize("each", [b"\xff", b"\0", b"\x01", b'"', "€".encode(), "\U0001f4da".encode(), b"\xff\x01"])
def test_result_of_any_response_is_at_most_64_kib(each: bytes) -> None:
    outcome, _ = answered(Answer(body=each * 60_000))
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert len(outcome.result or b"") <= 64 * 1024


def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy, serving() as target:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(""))
        assert call(target.url()).kind is AttemptOutcome.SUCCEEDED
    assert proxy.received == []
    assert len(target.received) == 1


def test_each_job_key_is_sent_as_a_text_of_its_own() -> None:
    cases = {
        "Bücher\U0001f4da": "B%C3%BCcher%F0%9F%93%9A",
        r"B\xfccher": r"B\xfccher",
        "B%C3%BCcher": "B%25C3%25BCcher",
        "a daily/report+1": "a daily/report+1",
    }
    for key, sent in cases.items():
        _, target = answered(job={"key": key})
        assert target.received[0].headers["tidewheel-job-key"] == sent
        assert unquote(sent) == key


def test_gzipped_response_is_not_unpacked() -> None:
    """An answer that unpacks to a gigabyte is not unpacked."""
    import gzip

    packed = gzip.compress(b"x" * 10_000_000)
    outcome, _ = answered(Answer(body=packed, headers={"Content-Encoding": "gzip"}))
    assert len(outcome.result or b"") < 64 * 1024
    assert json.loads(outcome.result or b"")["body"][:1] == packed.decode("utf-8", "replace")[:1]
