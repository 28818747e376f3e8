"""What an HTTP target's answer means; read up to a bound, whatever is sent."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx

from tidewheel.clock import SystemClock
from tidewheel.executor.outcome import RESULT_BYTES, Outcome, failed, succeeded

_BODY_BYTES = 48 * 1024  # of the answer kept; text stays below the 64 KiB of a result, what JSON escapes may not
_CUT_CHARACTERS = 8192  # each takes at most 6 bytes as JSON: 48 KiB together
_RETRIED_4XX = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_SHOWN_CHARACTERS = 1024  # of an answer or a location, in an error's message

_NAMES: Mapping[type[httpx.HTTPError], str] = {
    httpx.ConnectError: "http_connect",
    httpx.ConnectTimeout: "http_connect_timeout",
    httpx.ReadError: "http_reset",
    httpx.WriteError: "http_reset",
    httpx.RemoteProtocolError: "http_protocol",
}


async def read_bounded(response: httpx.Response) -> bytes:
    """The beginning of an answer's body; the rest is not read."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= _BODY_BYTES:
            break
    return bytes(body[:_BODY_BYTES])


def judge(response: httpx.Response, body: bytes) -> Outcome:
    """How the attempt ended that was answered so: 2xx succeeds."""
    text = body.decode("utf-8", "replace").replace("\0", "\ufffd")
    if response.is_success:
        # Cut again as JSON: escapes and replacements can make text several times as long.
        result = _result({"status": response.status_code, "body": text})
        if len(result) > RESULT_BYTES:
            result = _result({"status": response.status_code, "body": text[:_CUT_CHARACTERS], "cut": True})
        return succeeded(result)
    permanent = response.status_code < 500 and response.status_code not in _RETRIED_4XX
    url = response.request.url.copy_with(query=None, username=None, password=None)
    said = f"{url} answered {response.status_code} {response.reason_phrase}"
    if response.has_redirect_location:
        said += f", a redirect to {response.headers['location'][:_SHOWN_CHARACTERS]}, which is not followed"
    message = f"{said}: {text[:_SHOWN_CHARACTERS]}"
    after = _retry_after(response.headers)
    return failed(f"http_{response.status_code}", message, permanent=permanent, retry_after=after)


def unanswered(error: httpx.HTTPError) -> Outcome:
    """How the attempt ended that had no answer, or a broken one."""
    name = _NAMES.get(type(error), f"http_{type(error).__name__}")
    # Nothing was sent before there was a connection: that is certain, and matters to a run that may begin once.
    not_begun = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return failed(name, str(error) or type(error).__name__, not_begun=not_begun)


def _result(document: dict[str, object]) -> bytes:
    """A result in the compact form in which JSON events carry it as a value, not as base64."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _retry_after(headers: httpx.Headers) -> timedelta | None:
    """Seconds, or an HTTP date, which is read against the server's own clock. Source: RFC 9110 section 10.2.3."""
    value = headers.get("retry-after")
    if value is None:
        return None
    with suppress(ValueError):
        return timedelta(seconds=min(max(float(value), 0.0), 86_400.0))
    with suppress(ValueError, TypeError):
        wait = parsedate_to_datetime(value).astimezone(UTC) - _served_at(headers)
        return min(max(wait, timedelta(0)), timedelta(days=1))
    return None


def _served_at(headers: httpx.Headers) -> datetime:
    """When the server said so by its own clock; ours stands in where it has none. Source: RFC 9110 section 6.6.1."""
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(headers.get("date")).astimezone(UTC)
    return SystemClock().now()
