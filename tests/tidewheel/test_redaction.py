"""Text that leaves a process: without the secrets that it has read, nor those that their form shows."""

import json
import logging
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.process.json_logging import JsonLines
from tidewheel.redaction import REDACTED, Redactor, protect, redact

SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@db.example:5432/jobs cannot be reached",
        f"host=db user=ann password={SECRET} dbname=jobs",
        f"host=db password='{SECRET} and a \\' quote' dbname=jobs",
        f"TIDEWHEEL_KAFKA_CONFIG_SASL_PASSWORD={SECRET}",
        f"sasl.password={SECRET}",
        f"GET https://example.org/report?day=1&signature={SECRET} failed",
        f"the setting is api.example.org=whsec_{SECRET}",
        f"{{'Authorization': 'Bearer {SECRET}', 'Accept': '*/*'}}",
        f"{{b'X-Api-Key': b'{SECRET}'}}",
        f'{{"Proxy-Authorization": "Basic {SECRET}"}}',
        f"Cookie: first=1; session={SECRET}",
        f"Set-Cookie: session={SECRET}; Path=/",
        f"webhook-signature: v1:{SECRET}",
        f"tidewheel-task-token={SECRET}",
    ],
)
def test_secret_of_a_known_form_is_redacted(text: str) -> None:
    assert SECRET not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "job.target.headers.Authorization: it is a credential; write it otherwise",
        "TIDEWHEEL_DATABASE_URL: write postgresql://user:password@host:5432/name",
        "http_500: https://example.org/report answered 500 Internal Server Error: no token",
        "the message tidewheel.runs.default/3/17 may be forged: it has no signature",
        "authorization failed for ann@example.org",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


def test_log_lines_have_no_secret_that_the_process_has_read() -> None:
    """Neither in the message, nor in other fields, nor in a traceback."""
    protect(text := "a value that was read once")
    known: dict[str, int] = {}
    line = None
    try:
        known[text] += 1
    except KeyError:
        line = logging.getLogger("test").makeRecord(
            "test",
            logging.ERROR,
            __file__,
            1,
            "%s",
            (f"failed: {text}",),
            sys.exc_info(),
            extra={
                "run_id": "r",
                "attempt": 3,
                "stack": [text, {"in": text}],
            },
        )
    assert line is not None
    formatted = JsonLines().format(line)
    assert text not in formatted
    shown = json.loads(formatted)
    assert (shown["message"], shown["run_id"], shown["attempt"]) == (f"failed: {REDACTED}", "r", 3)
    assert shown["stack"] == [REDACTED, {"in": REDACTED}]
    assert f"KeyError: '{REDACTED}'" in shown["error"]


def test_short_values_are_left_for_logs_stay_readable() -> None:
    protect("relay")
    assert redact("relay started") == "relay started"


SECRETS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=8, max_size=40)


@given(SECRETS, st.text(max_size=20), st.text(max_size=20), st.sampled_from(["plain", "json", "url", "credential"]))
def test_sent_secret_is_found_in_each_spelling(secret: str, before: str, after: str, spelling: str) -> None:
    value = f"Bearer {secret}"
    echoed = {"plain": value, "json": json.dumps(value), "url": quote(value), "credential": secret}[spelling]
    cleaned = Redactor({value: "[secret CRM]"}).redact(f"{before}{echoed}{after}")
    assert "[secret CRM]" in cleaned
    assert secret not in cleaned.replace("[secret CRM]", "")


@given(SECRETS, st.integers(min_value=8, max_value=40))
def test_beginning_of_a_secret_at_a_cut_is_redacted(secret: str, kept: int) -> None:
    cleaned = Redactor({secret: "[secret CRM]"}).redact_cut(f"{{ {secret[:kept]}")
    assert cleaned == "{ [secret CRM]"
