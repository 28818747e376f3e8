"""Call HTTP targets over kept connections, with the run's id as idempotency key.

The attempt's time limit bounds the whole call, by cancelling its task; only connecting has a limit of its own. The
runner follows no redirect, uses no proxy of the environment, and keeps no cookie. It reads a response up to 48 KiB.
"""

import asyncio
import json
import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import aiohttp

from tidewheel.clock import SystemClock
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.lease import LeaseOver
from tidewheel.executor.outcome import NOT_STARTED, RELEASED, Outcome, failed, succeeded, waiting
from tidewheel.executor.runners.http_client import HttpClient, NotRepeated, read_place
from tidewheel.executor.runners.http_transport import (
    CONNECT_SECONDS,
    AddressGuard,
    AddressRefused,
    LookUpTimedOut,
    Resolve,
)
from tidewheel.executor.runners.runner import retry_after
from tidewheel.executor.runners.secret_store import SecretMissing, SecretRefused, SecretStore
from tidewheel.http_secrets import host_key, read_secrets, signature_headers
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.http_values import TargetUrl
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED, Redactor, redact
from tidewheel.schemas.generated.records import HttpTarget
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.task_tokens import TASK_TOKEN_HEADER, TaskTokens
from tidewheel.transitions.installation import Installation

_BODY_BYTES = 48 * 1024  # of the response; as text below the 64 KiB of a result, unless JSON escapes it
_CUT_CHARACTERS = 8192  # each takes at most 6 bytes as JSON: 48 KiB together
_RETRIED_4XX = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_IN_HEADER = " " + string.punctuation.replace("%", "")  # in a job's key; all else but letters and digits is encoded
_SHOWN_CHARACTERS = 1024  # of a response or a location, in an error's message
_LEFT_SECONDS = 1.0  # for the body of a 202 response: read so that the connection can be kept

_NAMES: Sequence[tuple[type[Exception], str]] = (
    (aiohttp.ClientConnectorError, "http_connect"),
    (aiohttp.ConnectionTimeoutError, "http_connect_timeout"),
    (LookUpTimedOut, "http_connect_timeout"),
    (aiohttp.ServerDisconnectedError, "http_protocol"),
    (aiohttp.ClientPayloadError, "http_protocol"),
    (aiohttp.ClientResponseError, "http_protocol"),
    (aiohttp.ClientConnectionError, "http_reset"),
)
_NOTHING_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, LookUpTimedOut)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_CREDENTIALS = Redactor({})
_KEPT_REDACTORS = 256  # sets of credentials: making a redactor takes as long as a call


async def read_bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read the beginning of a response's body."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= _BODY_BYTES:
            break
    return bytes(body[:_BODY_BYTES])


def outcome_of_response(response: aiohttp.ClientResponse, body: bytes, url: str, sent: Redactor) -> Outcome:
    """Return the outcome of a response: 2xx succeeds. A status below 200 is that of a broken response."""
    text = body.decode("utf-8", "replace")
    text = sent.redact_cut(text) if len(body) == _BODY_BYTES else sent.redact(text)
    text = text.replace("\0", "\ufffd")
    status, headers = response.status, response.headers
    if 200 <= status < 300:
        # Cut again as JSON: escapes and replacements can make the text several times as long.
        result = _result({"status": status, "body": text})
        if len(result) > MAX_RESULT_BYTES:
            result = _result({"status": status, "body": text[:_CUT_CHARACTERS], "cut": True})
        return succeeded(result)
    if status < HTTPStatus.OK:  # the client reads 1xx by itself, except 101, which it never requests
        return failed("http_protocol", f"{url} answered with status {status:03}, which is not a final status")
    permanent = status < 500 and status not in _RETRIED_4XX
    description = f"{url} answered {status} {sent.redact(response.reason or '')}"
    if status in _REDIRECTS and "location" in headers:
        location = redact(sent.redact(headers["location"]))[:_SHOWN_CHARACTERS]
        description += f", a redirect to {location}, which is not followed"
    # Redacted before each cut, which could end within a secret.
    message = f"{description}: {redact(text)[:_SHOWN_CHARACTERS]}"
    return failed(f"http_{status}", message, permanent=permanent, retry_after=retry_after(headers))


def connection_failed(error: BaseException | None, sent: Redactor) -> Outcome:
    """Return the outcome of a call without a response, or with a broken one."""
    message = sent.redact(_message(error) or type(error).__name__)
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), f"http_{type(error).__name__}")
    # Before the connection nothing was sent. An at-most-once run may then start again.
    not_started = isinstance(error, _NOTHING_SENT)
    return failed(name, message, not_started=not_started)


def _message(error: BaseException | None) -> str:
    """Return an error's text without the URL, whose query may have secrets."""
    match error:
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.ConnectionTimeoutError():
            return "no connection was made in time"
        case aiohttp.ServerDisconnectedError():
            return "the server disconnected without sending a response"
        case aiohttp.ClientResponseError():
            return " ".join(error.message.split())
        case _:
            return str(error)


def _result(document: dict[str, object]) -> bytes:
    """Return a result in the compact form that JSON events carry as a value, not as base64."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class HttpRunner:
    """Calls HTTP targets.

    With `allow_private` they may have loopback, private and link-local addresses. `secrets` has the keys that sign
    requests, by host, `ca_file` the roots that are accepted besides the system's, in PEM. By default any host and port
    may be called, and jobs can name no secret.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        secrets: Mapping[str, Sequence[bytes]] | None = None,
        task_tokens: TaskTokens | None = None,
        resolve: Resolve | None = None,
        ca_file: Path | None = None,
        allow_lists: AllowLists | None = None,
        store: SecretStore | None = None,
    ) -> None:
        self._store = store or SecretStore()
        self._allow_lists = allow_lists or AllowLists(allow_private=allow_private, ports=None)
        self._ca_file = ca_file
        self._secrets, self._task_tokens = secrets or {}, task_tokens or TaskTokens()
        self._guard = AddressGuard(allow_private=allow_private, resolve=resolve)
        self._client: HttpClient | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """Send the payload and return the outcome of the response."""
        target = attempt.definition.target.http
        if target is None:
            return failed("InvalidTarget", "the job's version has no HTTP target", permanent=True)
        try:
            place = read_place(target.url)
        except InvalidValue as error:
            return failed("InvalidURL", str(error), permanent=True, not_started=True)
        try:
            self._allow_lists.check_url(place.parts)
        except InvalidValue as refusal:
            return failed("AddressRefused", str(refusal), permanent=True, not_started=True)
        try:
            given = self._given(attempt, target, place.parts)
        except (SecretMissing, SecretRefused) as error:  # one that is missing may come: the run is retried
            permanent = isinstance(error, SecretRefused)
            return failed(type(error).__name__, str(error), permanent=permanent, not_started=True)
        sent = redactor_of(target, given)
        if self._client is None:
            self._client = HttpClient(self._guard, self._ca_file)  # needs the running loop
        seconds = min(CONNECT_SECONDS, attempt.start_to_close_seconds)
        request = self._client.request(
            target.method,
            place.url,
            headers=self._headers(attempt, target, given, place.url.raw_host or ""),
            content=attempt.payload,
            tenant=attempt.definition.tenant,
            seconds=seconds,
            lease=attempt.lease,
        )
        try:
            async with request as response:
                return await _outcome(response, target, place.shown, sent)
        except (AddressRefused, LeaseOver, LookUpTimedOut, NotRepeated, aiohttp.ClientError) as error:
            return _outcome_of_error(error, sent)

    async def close(self) -> None:
        """Close the kept connections."""
        if self._client is not None:
            await self._client.close()
        await self._guard.close()

    def _given(self, attempt: Attempt, target: HttpTarget, url: TargetUrl) -> Mapping[str, str]:
        if not target.secret_headers:
            return target.headers
        tenant = attempt.definition.tenant
        values = {name: self._store.value(tenant, secret, url) for name, secret in target.secret_headers.items()}
        return {**target.headers, **values}

    def _headers(self, attempt: Attempt, target: HttpTarget, given: Mapping[str, str], host: str) -> dict[str, str]:
        headers = _headers(attempt, given)
        secrets = self._secrets.get(host_key(host), ())
        if secrets:
            now = SystemClock().now()
            headers |= signature_headers(secrets, name=attempt.request.run_id, at=now, body=attempt.payload)
        if target.async_timeout_ms is not None:
            headers[TASK_TOKEN_HEADER] = self._task_tokens.sign(*attempt.key)
        return headers


def http_runner(settings: ExecutorSettings, installation: Installation, store: SecretStore) -> HttpRunner:
    """Return the runner of an executor with these settings."""
    secrets = settings.webhook_secrets
    return HttpRunner(
        allow_private=settings.http_allow_private,
        secrets=read_secrets(secrets.get_secret_value()) if secrets else None,
        task_tokens=installation.task_tokens,
        ca_file=settings.http_ca_file,
        allow_lists=settings.allow_lists(enforces=True),
        store=store,
    )


def redactor_of(target: HttpTarget, headers: Mapping[str, str]) -> Redactor:
    """Return what redacts the credentials of a call in what its receiver repeats."""
    places = {value: REDACTED for name, value in target.headers.items() if name.lower() in CREDENTIAL_HEADERS}
    places |= {headers[name]: f"[secret {secret}]" for name, secret in (target.secret_headers or {}).items()}
    return _redactor(tuple(places.items())) if places else _NO_CREDENTIALS


async def _outcome(response: aiohttp.ClientResponse, target: HttpTarget, url: str, sent: Redactor) -> Outcome:
    if response.status == HTTPStatus.ACCEPTED and target.async_timeout_ms is not None:
        # The target has accepted the request. A failure in the rest of its response must not repeat it.
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_LEFT_SECONDS):
                await read_bounded(response)
        return waiting(timedelta(milliseconds=target.async_timeout_ms))
    return outcome_of_response(response, await read_bounded(response), url, sent)


def _outcome_of_error(error: Exception, sent: Redactor) -> Outcome:
    if isinstance(error, AddressRefused):
        return failed("AddressRefused", str(error), permanent=True, not_started=True)
    if isinstance(error, LeaseOver):
        return RELEASED if error.begun else NOT_STARTED
    return connection_failed(error.__cause__ if isinstance(error, NotRepeated) else error, sent)


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
        "tidewheel-job-key": quote(attempt.definition.job_key, safe=_IN_HEADER),
        "tidewheel-scheduled-at": attempt.request.scheduled_at.isoformat(),
    }
    ours.pop("expect", None)  # aiohttp would wait for a 100 response that few servers send
    if attempt.traceparent:
        ours["traceparent"] = attempt.traceparent
    return ours


@lru_cache(maxsize=_KEPT_REDACTORS)
def _redactor(places: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(dict(places))
