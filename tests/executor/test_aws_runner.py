"""Lambda functions, invoked in a local AWS or answered by a test server for AWS's own errors."""

import asyncio
import base64
import io
import json
import logging
import math
import threading
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from types import FrameType
from typing import Any

import httpx
import pytest
from moto.server import ThreadedMotoServer

from tests.executor.attempting import RUN, Reports, attempt_of, run_attempt
from tests.executor.http_target import Answer, HttpTarget, pretend_aws, serving
from tests.fixtures.services import until
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.lease import Lease
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners import aws as aws_runner
from tidewheel.executor.runners.aws import LambdaRunner
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.runs import AttemptOutcome

REGION = "eu-west-1"


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """A local AWS with a function `echo`, which returns its event; returns its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.post(f"{url}/moto-api/config", json={"lambda": {"use_docker": False}}).raise_for_status()
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as file:
        file.writestr("echo.py", "")
    known = {"endpoint_url": url, "region_name": REGION, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    boto: Any = import_module("boto3")
    role = boto.client("iam", **known).create_role(RoleName="echo", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    boto.client("lambda", **known).create_function(
        FunctionName="echo", Runtime="python3.12", Role=role, Handler="echo.run", Code={"ZipFile": code.getvalue()}
    )
    yield url
    server.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    pretend_aws(monkeypatch)
    return monkeypatch


@pytest.fixture
def target(environment: pytest.MonkeyPatch) -> Iterator[HttpTarget]:
    """A server of the test's own in place of AWS."""
    with serving() as made:
        environment.setenv("AWS_ENDPOINT_URL", made.url(""))
        yield made


def job(function: str = "echo", **fields: object) -> dict[str, Any]:
    return {"target": {"type": "lambda", "function": function}} | fields


def run(attempt: Attempt, allow_lists: AllowLists | None = None) -> Outcome:
    return run_attempt(lambda: LambdaRunner(allow_lists or AllowLists(enforces=True, functions=("*",))), attempt)


def test_lambda_gets_the_payload_and_returns_the_result(aws: str, environment: pytest.MonkeyPatch) -> None:
    """The result is kept as it was returned; a binary payload arrives as base64."""
    environment.setenv("AWS_ENDPOINT_URL", aws)
    outcome = run(attempt_of(job(payload={"to": "ann"})))
    assert outcome == Outcome(AttemptOutcome.SUCCEEDED, result=b'{"to":"ann"}')
    assert run(attempt_of(job(payload_base64="AAH/"))).result == b'{"payload_base64": "AAH/"}'
    answers = {"results": ['{"sum": 5}'], "region": REGION}
    httpx.post(f"{aws}/moto-api/static/lambda-simple/response", json=answers).raise_for_status()
    arn = f"arn:aws:lambda:{REGION}:123456789012:function:echo"
    assert run(attempt_of(job(arn, payload=1))).result == b'{"sum": 5}'


def test_invocation_identifies_the_run_and_requests_the_log(target: HttpTarget) -> None:
    log = base64.b64encode(b"START\nEND\n").decode()
    target.answers = [Answer(200, b"null", {"x-amz-log-result": log})]
    attempt = attempt_of(job("echo:live", payload=1))
    assert run(attempt).result == b"null"
    [received] = target.received
    assert (received.method, received.path) == ("POST", "/2015-03-31/functions/echo%3Alive/invocations")
    assert received.headers["x-amz-invocation-type"] == "RequestResponse"
    told = json.loads(base64.b64decode(received.headers["x-amz-client-context"]))["custom"]
    assert (told["run_id"], told["idempotency_key"], told["attempt"]) == (str(RUN), str(RUN), "1")
    assert attempt.output is not None
    assert attempt.output.tail() == b"START\nEND\n"


def test_region_comes_from_target_arn_or_executor(target: HttpTarget) -> None:
    cases = {
        "eu-west-1": {"function": "echo"},
        "us-east-2": {"function": "arn:aws:lambda:us-east-2:123456789012:function:echo"},
        "ap-south-1": {"function": "echo", "region": "ap-south-1", "qualifier": "7"},
    }
    for region, given in cases.items():
        run(attempt_of({"target": {"type": "lambda"} | given}))
        received = target.received[-1]
        assert f"/{region}/lambda/aws4_request" in received.headers["authorization"]
        assert received.path.endswith("?Qualifier=7") is ("qualifier" in given), region


def test_lambda_error_is_the_attempts_failure(target: HttpTarget) -> None:
    """Also one that is no JSON."""
    error = {"errorMessage": "no such order", "errorType": "LookupError", "stackTrace": ["line 1", "line 2"]}
    headers = {"x-amz-function-error": "Unhandled"}
    target.answers = [Answer(200, json.dumps(error).encode(), headers), Answer(200, b"\xff[1", headers)]
    outcome = run(attempt_of(job()))
    assert (outcome.error_type, outcome.error_message, outcome.trace) == (
        "LookupError", "no such order", "line 1\nline 2",
    )  # fmt: skip
    assert (outcome.permanent, outcome.not_started) == (False, False)
    assert run(attempt_of(job())).error_type == "FunctionError"


@pytest.mark.parametrize("log", ["a", "%%%", "\u00e9"])
def test_log_that_cannot_be_read_changes_no_outcome(target: HttpTarget, log: str) -> None:
    """The function has run: a failure here would repeat it."""
    target.answers = [Answer(200, b"1", {"x-amz-log-result": log})]
    assert run(attempt_of(job())) == Outcome(AttemptOutcome.SUCCEEDED, result=b"1")


def test_aws_refusals_are_retried_unless_permanent(target: HttpTarget) -> None:
    cases = [
        (404, "ResourceNotFoundException", True, True),
        (403, "AccessDeniedException", True, True),
        (400, "InvalidRequestContentException", True, True),
        (409, "ResourceConflictException", False, True),
        (500, "ServiceException", False, False),
        (502, "ResourceNotReadyException", False, False),
    ]
    for status, code, permanent, not_started in cases:
        target.answers = [Answer(status, b'{"Message": "no"}', {"x-amzn-errortype": code})]
        outcome = run(attempt_of(job()))
        assert (outcome.error_type, outcome.permanent, outcome.not_started) == (code, permanent, not_started)
    assert len(target.received) == len(cases)  # boto tries nothing again by itself


def test_throttling_delays_the_retry(target: HttpTarget) -> None:
    for said, seconds in (({"retry-after": "7"}, 7), (dict[str, str](), 1), ({"retry-after": "soon"}, 1)):
        told = {"x-amzn-errortype": "TooManyRequestsException", **said}
        target.answers = [Answer(429, b'{"Message": "slow down"}', told)]
        outcome = run(attempt_of(job()))
        expected = ("TooManyRequestsException", timedelta(seconds=seconds), False, True)
        found = (outcome.error_type, outcome.retry_after, outcome.permanent, outcome.not_started)
        assert found == expected, said


def test_unreachable_endpoint_is_a_non_start(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    outcome = run(attempt_of(job()))
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("EndpointConnectionError", False, True)


def test_missing_region_is_reported(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("AWS_DEFAULT_REGION")
    outcome = run(attempt_of(job()))
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("NoRegionError", True, True)


def test_too_large_lambda_result_is_cut_while_reading(target: HttpTarget) -> None:
    target.answers = [Answer(200, b'"' + b"x" * MAX_RESULT_BYTES + b'"')]
    outcome = run(attempt_of(job()))
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert len(outcome.result or b"") < MAX_RESULT_BYTES
    assert json.loads(outcome.result or b"")["cut"] is True


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b"NaN", b"\x00"])
def test_non_json_lambda_result_is_stored_as_text(target: HttpTarget, body: bytes) -> None:
    target.answers = [Answer(200, body)]
    assert "body" in json.loads(run(attempt_of(job())).result or b"")


def test_function_that_is_not_named_is_not_invoked(target: HttpTarget) -> None:
    outcome = run(attempt_of(job("delete-all")), AllowLists(enforces=True, functions=("report*",)))
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("FunctionRefused", True, True)
    assert "TIDEWHEEL_LAMBDA_FUNCTIONS" in (outcome.error_message or "")
    assert target.received == []


async def test_abandoned_invocation_keeps_its_slot_until_it_returns(target: HttpTarget) -> None:
    answered = threading.Event()
    target.answers = [Answer(200, b"1", hold=answered)]
    reports = Reports()
    attempt = attempt_of(job(), reports=reports)
    runner = LambdaRunner(AllowLists(enforces=True, functions=("*",)))
    task = asyncio.ensure_future(runner.run(attempt))
    while not target.received:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attempt.on_thread
    assert reports.released == 0
    answered.set()
    until(lambda: reports.released == 1, "its slot is free")
    await runner.close()


async def test_invocations_of_one_tenant_leave_threads_to_others(
    target: HttpTarget, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(aws_runner, "_THREADS", 4)
    answered = threading.Event()
    target.answers = [Answer(200, b"1", hold=answered)]
    runner = LambdaRunner(AllowLists(enforces=True, functions=("*",)))
    slow = [asyncio.ensure_future(runner.run(attempt_of(job(), tenant="slow"))) for _ in range(8)]
    while len(target.received) < 2:
        await asyncio.sleep(0.01)
    with serving(Answer(200, b"2")) as other:
        environment.setenv("AWS_ENDPOINT_URL", other.url(""))
        elsewhere = {"target": {"type": "lambda", "function": "echo", "region": "us-east-2"}}  # a client of its own
        async with asyncio.timeout(30):
            outcome = await runner.run(attempt_of(elsewhere, tenant="other"))
    answered.set()
    await asyncio.gather(*slow)
    await runner.close()
    assert outcome.result == b"2"


@pytest.mark.parametrize("size", [10, 40_000])
def test_event_is_in_the_kernel_right_after_the_look_at_the_lease(target: HttpTarget, size: int) -> None:
    """No other Python function runs in between: under load a stop, or another thread, would meet it there."""
    since: list[str] = []  # the functions called since the last look
    at_sends: list[list[str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if not threading.current_thread().name.startswith("lambda"):
            return
        if event == "return" and frame.f_code is Lease.is_over.__code__:
            since.clear()
        elif event == "call":
            since.append(frame.f_code.co_name)
        elif event == "c_call" and getattr(argument, "__name__", "") == "sendall":
            at_sends.append(since[:])

    attempt = attempt_of(job(payload="x" * size), lease=Lease(math.inf))
    threading.setprofile(note)
    try:
        assert run(attempt).kind is AttemptOutcome.SUCCEEDED
    finally:
        threading.setprofile(None)
    _headers, *pieces = at_sends
    assert pieces == [[]] * (size // (16 * 1024) + 1)
    assert len(target.received[-1].body) == size + 2
