"""Call HTTP targets over kept connections, with the run's id as idempotency key.

The attempt's time limit bounds the whole call, by cancelling its task; only connecting has a limit of its own. The
runner follows no redirect, uses no proxy of the environment, and keeps no cookie. It reads a response up to 48 KiB.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpcore
import httpx

from tidewheel.clock import SystemClock
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome, failed, succeeded, waiting
from tidewheel.executor.runners.addresses import CONNECT_SECONDS, AddressRefused, GuardedBackend, Resolve
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.schemas.generated.records import HttpTarget
from tidewheel.settings import ExecutorSettings
from tidewheel.task_tokens import TASK_TOKEN_HEADER, task_token
from tidewheel.transitions.installation import Installation
from tidewheel.webhooks import read_secrets, signature_headers

_BODY_BYTES = 48 * 1024  # of the response; as text below the 64 KiB of a result, unless JSON escapes it
_CUT_CHARACTERS = 8192  # each takes at most 6 bytes as JSON: 48 KiB together
_RETRIED_4XX = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_SHOWN_CHARACTERS = 1024  # of a response or a location, in an error's message

_NAMES: Mapping[type[httpx.HTTPError], str] = {
    httpx.ConnectError: "http_connect",
    httpx.ConnectTimeout: "http_connect_timeout",
    httpx.ReadError: "http_reset",
    httpx.WriteError: "http_reset",
    httpx.RemoteProtocolError: "http_protocol",
}


async def read_bounded(response: httpx.Response) -> bytes:
    """Read the beginning of a response's body."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= _BODY_BYTES:
            break
    return bytes(body[:_BODY_BYTES])


def outcome_of_response(response: httpx.Response, body: bytes) -> Outcome:
    """Return the outcome of a response: 2xx succeeds."""
    text = body.decode("utf-8", "replace").replace("\0", "\ufffd")
    if response.is_success:
        # Cut again as JSON: escapes and replacements can make the text several times as long.
        result = _result({"status": response.status_code, "body": text})
        if len(result) > MAX_RESULT_BYTES:
            result = _result({"status": response.status_code, "body": text[:_CUT_CHARACTERS], "cut": True})
        return succeeded(result)
    permanent = response.status_code < 500 and response.status_code not in _RETRIED_4XX
    url = response.request.url.copy_with(query=None, username=None, password=None)
    description = f"{url} answered {response.status_code} {response.reason_phrase}"
    if response.has_redirect_location:
        description += f", a redirect to {response.headers['location'][:_SHOWN_CHARACTERS]}, which is not followed"
    message = f"{description}: {text[:_SHOWN_CHARACTERS]}"
    after = _retry_after(response.headers)
    return failed(f"http_{response.status_code}", message, permanent=permanent, retry_after=after)


def connection_failed(error: httpx.HTTPError) -> Outcome:
    """Return the outcome of a call without a response, or with a broken one."""
    name = _NAMES.get(type(error), f"http_{type(error).__name__}")
    # Before the connection nothing was sent. An at-most-once run may then start again.
    not_started = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return failed(name, str(error) or type(error).__name__, not_started=not_started)


def _result(document: dict[str, object]) -> bytes:
    """Return a result in the compact form that JSON events carry as a value, not as base64."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _retry_after(headers: httpx.Headers) -> timedelta | None:
    """Return the delay in Retry-After: seconds, or a date by the server's clock (RFC 9110, 10.2.3)."""
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
    """Return the response's Date, or this machine's time without one. Source: RFC 9110 section 6.6.1."""
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(headers.get("date")).astimezone(UTC)
    return SystemClock().now()


_KEPT_CONNECTIONS = 200
_KEPT_SECONDS = 30
_LEFT_SECONDS = 1.0  # for the body of a 202 response: read so that the connection can be kept


class HttpRunner:
    """Calls HTTP targets.

    Args:
        allow_private: True if targets may reach loopback, private and link-local addresses.
        secrets: Keys that sign requests.
        task_token_key: Key of task tokens.
        resolve: Resolves names in place of the system.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        secrets: Sequence[bytes] = (),
        task_token_key: bytes = b"",
        resolve: Resolve | None = None,
    ) -> None:
        self._secrets, self._task_token_key = secrets, task_token_key
        self._backend = GuardedBackend(allow_private=allow_private, resolve=resolve)
        context = httpx.create_ssl_context(trust_env=False)
        # Without a client of httpx, which would keep cookies and send them with other jobs' requests. Without `verify`
        # the transport would load all certificates once more: 2 MB.
        self._transport = httpx.AsyncHTTPTransport(verify=context, retries=0, trust_env=False)
        self._transport._pool = httpcore.AsyncConnectionPool(  # pyright: ignore[reportPrivateUsage]
            ssl_context=context,
            max_connections=None,  # slots bound them: no attempt waits behind targets that hang
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=self._backend,
        )

    async def run(self, attempt: Attempt) -> Outcome:
        """Send the payload and return the outcome of the response."""
        target = attempt.definition.target.http
        if target is None:
            return failed("InvalidTarget", "the job's version has no HTTP target", permanent=True)
        try:
            request = self._request(attempt, target)
            response = await self._transport.handle_async_request(request)
            response.request = request
            try:
                return await _outcome(response, target)
            finally:
                await response.aclose()
        except AddressRefused as error:
            return failed("AddressRefused", str(error), permanent=True, not_started=True)
        except httpx.InvalidURL as error:
            return failed("InvalidURL", str(error), permanent=True, not_started=True)
        except httpx.HTTPError as error:
            return connection_failed(error)

    async def close(self) -> None:
        """Close the kept connections."""
        await self._transport.aclose()
        self._backend.close()

    def _request(self, attempt: Attempt, target: HttpTarget) -> httpx.Request:
        headers = _headers(attempt, target.headers)
        if self._secrets:
            now = SystemClock().now()
            headers |= signature_headers(self._secrets, name=attempt.request.run_id, at=now, body=attempt.payload)
        if target.async_timeout_ms is not None:
            headers[TASK_TOKEN_HEADER] = task_token(self._task_token_key, *attempt.key)
        connect = min(CONNECT_SECONDS, attempt.start_to_close_seconds)
        timeout = {"connect": connect, "read": None, "write": None, "pool": None}
        return httpx.Request(
            target.method, target.url, content=attempt.payload, headers=headers, extensions={"timeout": timeout}
        )


def http_runner(settings: ExecutorSettings, installation: Installation) -> HttpRunner:
    """Return the runner of an executor with these settings."""
    secret = settings.webhook_secret
    return HttpRunner(
        allow_private=settings.http_allow_private,
        secrets=read_secrets(secret.get_secret_value()) if secret else (),
        task_token_key=installation.task_token_key,
    )


async def _outcome(response: httpx.Response, target: HttpTarget) -> Outcome:
    if response.status_code == HTTPStatus.ACCEPTED and target.async_timeout_ms is not None:
        # The target has accepted the request. A failure in the rest of its response must not repeat it.
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(_LEFT_SECONDS):
                await read_bounded(response)
        return waiting(timedelta(milliseconds=target.async_timeout_ms))
    return outcome_of_response(response, await read_bounded(response))


def _headers(attempt: Attempt, given: Mapping[str, str]) -> dict[str, str]:
    ours = {
        "content-type": attempt.payload_content_type,
        "accept": "*/*",
        "accept-encoding": "identity",  # a compressed response could unpack to a gigabyte
        "user-agent": "tidewheel",
        **{name.lower(): value for name, value in given.items()},
        "idempotency-key": attempt.request.run_id,
        "tidewheel-run-id": attempt.request.run_id,
        "tidewheel-attempt": str(attempt.started.attempt),
        "tidewheel-job-key": attempt.definition.job_key.encode("ascii", "backslashreplace").decode(),
        "tidewheel-scheduled-at": attempt.request.scheduled_at.isoformat(),
    }
    if attempt.request.traceparent:
        ours["traceparent"] = attempt.request.traceparent
    return ours
