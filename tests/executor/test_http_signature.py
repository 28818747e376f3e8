"""Headers of requests: the signature, and the token for reporting the end."""

import hmac
from base64 import b64decode
from hashlib import sha256

import pytest

from tests.executor.attempting import RUN
from tests.executor.http_target import Answer, Received, answered, call, serving
from tidewheel.clock import SystemClock
from tidewheel.runs import AttemptOutcome
from tidewheel.task_tokens import read_task_token

OLD, NEW = b"the old secret, 24 bytes", b"the new secret, of more than 24 bytes"


def verifies(secret: bytes, request: Received) -> bool:
    """Verify as a receiver does. Source: Standard Webhooks, "Verifying webhook authenticity"."""
    headers = request.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    wanted = hmac.digest(secret, signed, sha256)
    given = [each.partition(",") for each in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(b64decode(text), wanted) for version, _, text in given)


def test_request_is_signed_with_its_id_time_and_body() -> None:
    _, target = answered(job={"payload": {"to": "ann"}}, secrets=(NEW,))
    [request] = target.received
    assert request.headers["webhook-id"] == str(RUN)
    assert abs(int(request.headers["webhook-timestamp"]) - SystemClock().now().timestamp()) < 300
    assert verifies(NEW, request)
    request.body += b" "
    assert not verifies(NEW, request)


def test_during_a_rotation_each_secret_signs() -> None:
    _, target = answered(secrets=(NEW, OLD))
    [request] = target.received
    assert verifies(OLD, request)
    assert verifies(NEW, request)
    assert not verifies(b"another secret altogether", request)


@pytest.mark.parametrize(
    ("host", "secrets"), [*((host, (NEW,)) for host in ("localhost", "127.0.0.2", "example.org", "0.0.1")), ("", ())]
)
def test_without_a_secret_of_its_host_nothing_is_signed(host: str, secrets: tuple[bytes, ...]) -> None:
    """Or each receiver could sign requests to all the others."""
    outcome, target = answered(secrets=secrets, host=host)
    assert outcome.kind == AttemptOutcome.SUCCEEDED
    assert not [name for name in target.received[0].headers if name.startswith("webhook-")]


def test_secret_signs_however_the_url_writes_its_host() -> None:
    with serving() as target:
        call(target.url().replace("127.0.0.1", "0x7f000001"), secrets=(NEW,))
        call(target.url().replace("127.0.0.1", "LocalHost"), secrets=(NEW,), host="localhost")
    assert [verifies(NEW, request) for request in target.received] == [True, True]


def test_task_token_is_sent_to_asynchronous_targets_only() -> None:
    with serving() as target:
        call(target.url(), target={"async": True})
        call(target.url())
    asynchronous, other = target.received
    assert read_task_token(b"of tests", asynchronous.headers["tidewheel-task-token"]) == (RUN, 1)
    assert "tidewheel-task-token" not in other.headers


@pytest.mark.parametrize(("status", "given"), [(202, {}), (200, {"async": True}), (201, {"async": True})])
def test_other_success_status_ends_an_asynchronous_run(status: int, given: dict[str, object]) -> None:
    outcome, _ = answered(Answer(status, b"done"), target=given)
    assert (outcome.kind, outcome.waits) == (AttemptOutcome.SUCCEEDED, None)
    assert outcome.result == f'{{"status":{status},"body":"done"}}'.encode()


def test_immediate_failure_of_an_asynchronous_target_is_a_failure() -> None:
    outcome, _ = answered(Answer(503), target={"async": True})
    assert (outcome.error_type, outcome.waits) == ("http_503", None)
