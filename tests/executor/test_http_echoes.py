"""Receivers that repeat the credentials of a call: neither results nor errors have them."""

import html

import pytest

from tests.executor.http_target import Answer, call, serving
from tests.executor.http_target import HttpTarget as Receiver
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import redactor_of
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.http_secrets import read_entry
from tidewheel.redaction import REDACTED
from tidewheel.schemas.generated.records import HttpTarget

CANARY = 'canary-3f1"c9/a'
STORE = SecretStore({"CRM": read_entry(f"127.0.0.1=Bearer {CANARY}")})
MARK = "[secret CRM]"


def outcome_of(answer: Answer) -> tuple[Outcome, Receiver]:
    with serving(answer) as receiver:
        [outcome] = call(
            receiver.url(), target={"headers": {"Authorization": {"secret": "CRM"}}}, allow_private=True, store=STORE
        )
    assert receiver.received[0].headers["authorization"] == f"Bearer {CANARY}"
    return outcome, receiver


@pytest.mark.parametrize(
    "echo",
    [
        f"it is Bearer {CANARY}",
        CANARY,
        '{"token":"canary-3f1\\"c9/a"}',
        "canary-3f1%22c9/a",
        "canary-3f1%22c9%2Fa",
        html.escape(CANARY),
        '{"authorization": "Bearer canary-3f1\\"c9/a"}',
        f"webhook-signature: v1,c2ln, authorization: Bearer {CANARY}",
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_secret_in_a_body_is_replaced_by_its_name(status: int, echo: str) -> None:
    outcome, _ = outcome_of(Answer(status, echo.encode()))
    kept = (outcome.result or b"").decode() + (outcome.error_message or "")
    assert "canary" not in kept
    assert MARK in kept
    assert kept.replace(MARK, "").count("]") == kept.replace(MARK, "").count("[redacted]")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (f"https://example.org/{CANARY}", f"/{MARK}"),
        (f"http://x/?Bearer {CANARY}", f"a redirect to http://x/?{MARK}, which"),
    ],
)
def test_secret_in_a_location_is_replaced_by_its_name(location: str, said: str) -> None:
    outcome, _ = outcome_of(Answer(302, headers={"Location": location}))
    assert outcome.error_message is not None
    assert "canary" not in outcome.error_message
    assert said in outcome.error_message


def test_secret_that_the_limit_of_a_body_cuts_is_replaced() -> None:
    secret = f"Bearer {CANARY}"
    outcome, _ = outcome_of(Answer(200, b"x" * (48 * 1024 - len(secret) + 1) + secret.encode()))
    assert outcome.result is not None
    assert b"canary" not in outcome.result
    assert outcome.result.endswith(f'{MARK}"}}'.encode())


def test_body_without_the_secret_stays() -> None:
    outcome, _ = outcome_of(Answer(200, b'{"a":"Bearer of news"}'))
    assert outcome.result == b'{"status":200,"body":"{\\"a\\":\\"Bearer of news\\"}"}'


def test_literal_credential_of_an_older_job_is_redacted() -> None:
    """Other headers are no credentials, and stay."""
    headers = {"X-Api-Key": CANARY, "X-Day": "monday"}
    old = HttpTarget(method="POST", url="http://a.example", headers=headers)
    assert redactor_of(old, headers).redact(f"monday {CANARY}") == f"monday {REDACTED}"


@pytest.mark.parametrize("kept", [5, 12, 20])
def test_secret_of_a_known_form_at_the_cut_of_a_message_is_redacted(kept: int) -> None:
    """Its form ends behind the cut: `user:password` is none without the `@` and the host."""
    url = "https://ann:canary-of-a-url@example.org/"
    outcome, _ = outcome_of(Answer(500, f"{'x' * (1023 - len('https://ann:') - kept)} {url}".encode()))
    assert outcome.error_message is not None
    assert "canary"[:5] not in outcome.error_message
