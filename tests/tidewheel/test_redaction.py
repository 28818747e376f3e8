"""Text that leaves a process: without the secrets that it has read, nor those that their form shows."""

import html
import json
import logging
import re
import sys
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidewheel.process.logs import JsonLines
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
        f'"webhook-signature": "v1,{SECRET}="',
        f'"webhook-signature": "v1,abc= v1,{SECRET}="',
        f"webhook-signature: v1,abc= v1a,{SECRET}=",
        f'"authorization": "Digest username=\\"ann\\", response=\\"{SECRET}\\""',
        f'{{"body": "{{\\"authorization\\": \\"Bearer {SECRET}\\"}}"}}',
        f"{{&quot;authorization&quot;: &quot;Bearer {SECRET}&quot;}}",
        f"http://[secret CRM]/?[secret CRM]&a={SECRET}",
        f"https://a.example/http://b.example/http/?a={SECRET}",
        f"https://a.example/xhttps://b.example?a={SECRET}",
    ],
)
def test_secret_of_a_known_form_is_redacted(text: str) -> None:
    assert SECRET not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "job.target.headers.Authorization: is a credential; write it otherwise",
        "TIDEWHEEL_DATABASE_URL: write postgresql://user:password@host:5432/name",
        "http_500: https://example.org/report answered 500 Internal Server Error: no token",
        "message tidewheel.runs.default/3/17 may be forged: it has no signature",
        "authorization failed for ann@example.org",
        '"authorization": "[secret BILLING]"',
        "authorization: Bearer [secret BILLING]",
        "{b'x-api-key': b'[redacted]'}",
        "http://x/?[secret BILLING] answered 302",
        "password='[secret BILLING]' password=[redacted]",
        "https://[secret BILLING]@example.org/",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


PIECES = st.sampled_from(
    [
        *("authorization", "Bearer ", "webhook-signature", "v1,", "http://", "whsec_", "password=", "user:password@"),
        *("[redacted]", "[secret CRM]", "[secret CRM", "redacted]", "&quot;", "a-value-that-was-read", "[redacted"),
        *":=?@/#;,'\"\\ &b\n",
    ]
)
MARK = "[secret CRM]"


@given(st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join))
def test_redacting_again_changes_nothing_and_names_of_secrets_stay(text: str) -> None:
    protect("a-value-that-was-read", "[redacted")
    once = redact(text)
    assert redact(once) == once
    assert once.count(MARK) >= text.count(MARK)


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


def test_log_line_has_its_time_once() -> None:
    """Also after a formatter that sets its own on the record."""
    record = logging.makeLogRecord({"msg": "text"})
    logging.Formatter("%(asctime)s %(message)s").format(record)
    assert json.loads(JsonLines().format(record)).keys() == {"time", "level", "logger", "message"}


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json for html": lambda value: re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value)),
    "url": quote,
    "url in lower case": lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value)),
    "credential": lambda value: value.removeprefix("Bearer "),
    "html": html.escape,
    "html text": lambda value: html.escape(value, quote=False),
    "html apos": lambda value: html.escape(value).replace("&#x27;", "&apos;"),
    "html decimal": lambda value: re.sub(r"\W", lambda found: f"&#{ord(found[0]):03};", value),
    "html hexadecimal": lambda value: re.sub(r"\W", lambda found: f"&#X{ord(found[0]):X};", value),
    "json in html": lambda value: html.escape(json.dumps(value)),
    "html in json": lambda value: json.dumps(html.escape(value)),
}
SECRETS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=8, max_size=40)


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(SECRETS, st.text(max_size=20), st.text(max_size=20))
def test_sent_secret_is_found_in_each_spelling(spelling: str, secret: str, before: str, after: str) -> None:
    assume(secret not in REDACTED)  # which is part of no secret that was sent
    spell = SPELLINGS[spelling]
    redactor = Redactor({f"Bearer {secret}": MARK})
    cleaned = redactor.redact(f"{before}{spell(f'Bearer {secret}')}{after}")
    assert MARK in cleaned
    assert secret not in cleaned.replace(MARK, "")
    assert redactor.redact(cleaned) == cleaned


@given(SECRETS, st.integers(min_value=8, max_value=40))
def test_beginning_of_a_secret_at_a_cut_is_redacted(secret: str, kept: int) -> None:
    cleaned = Redactor({secret: "[secret CRM]"}).redact_cut(f"{{ {secret[:kept]}")
    assert cleaned == "{ [secret CRM]"


def test_secret_that_ends_within_an_escape_is_redacted() -> None:
    redactor = Redactor({"Bearer canary&more": MARK})
    for cut in (
        "Bearer canary&am",
        "Bearer canary&#x2",
        "Bearer canary%2",
        "Bearer canary\\u00",
        "Bearer canary&amp;mo",
    ):
        assert redactor.redact_cut(f"{{ {cut}") == f"{{ {MARK}"
