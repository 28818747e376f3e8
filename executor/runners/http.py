"""Calls an HTTP target, with the run's id as idempotency key, and never where it must not.

Every address that a name resolves to is checked, and the checked address is the one connected to: no second look-up
in between. Redirects are not followed, proxies of the environment not used, and the answer is read up to a bound.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import cast

import httpcore
import httpx

from tidewheel.clock import SystemClock
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import RESULT_BYTES, Outcome, failed, succeeded

_CONNECT_SECONDS = 5.0
_BODY_BYTES = 48 * 1024  # of the answer kept; text stays below the 64 KiB of a result, what JSON escapes may not
_CUT_CHARACTERS = 8192  # each takes at most 6 bytes as JSON: 48 KiB together
_CONNECTIONS = 200
_RETRIED_4XX = frozenset({408, 425, 429})

# IPv4 in the last four bytes: NAT64 (RFC 6052), IPv4-compatible (RFC 4291 section 2.5.5.1), IPv4-translated (RFC 2765).
_V4_IN_V6 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
# Python's `is_global` of 3.11 does not know them: local-use NAT64 (RFC 8215), site-local (RFC 3879).
_INSIDE_V6 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "fec0::/10"))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class HttpRunner:
    """Calls HTTP targets over connections that are kept."""

    def __init__(self, *, allow_private: bool) -> None:
        transport = httpx.AsyncHTTPTransport(retries=0, trust_env=False)
        transport._pool = httpcore.AsyncConnectionPool(  # pyright: ignore[reportPrivateUsage]
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=30,
            network_backend=GuardedBackend(allow_private=allow_private),
        )
        self._client = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)

    async def run(self, attempt: Attempt) -> Outcome:
        """Send the payload and judge the answer: 2xx succeeds."""
        target = attempt.definition.target.http
        if target is None:
            return failed("InvalidTarget", "the job's version has no HTTP target", permanent=True)
        total = attempt.start_to_close_seconds
        timeout = httpx.Timeout(total, connect=min(_CONNECT_SECONDS, total))
        try:
            async with self._client.stream(
                target.method,
                target.url,
                content=attempt.payload,
                headers=_headers(attempt, target.headers),
                timeout=timeout,
            ) as response:
                body = await _bounded(response)
                return _judge(response, body)
        except AddressRefused as error:
            return failed("AddressRefused", str(error), permanent=True)
        except httpx.InvalidURL as error:
            return failed("InvalidURL", str(error), permanent=True)
        except httpx.HTTPError as error:
            return failed(_name(error), str(error) or type(error).__name__)

    async def close(self) -> None:
        """Close the kept connections."""
        await self._client.aclose()


class AddressRefused(Exception):
    """The target resolves to an address that targets must not reach."""


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, checks every answer, and connects to the address that was checked."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._backend = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of `host` that answers."""
        addresses = await _resolve(host, port)
        if not self._allow_private and not all(is_public(ipaddress.ip_address(address)) for address in addresses):
            # The address itself is not told: it may be what somebody wants to find out.
            message = f"{host} is an address that targets must not reach; TIDEWHEEL_HTTP_ALLOW_PRIVATE allows it"
            raise AddressRefused(message)
        failure: httpcore.ConnectError | httpcore.ConnectTimeout = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never: a URL cannot ask for it."""
        raise httpcore.ConnectError(path)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await self._backend.sleep(seconds)


def is_public(address: Address) -> bool:
    """Whether targets may reach an address without being allowed to.

    >>> [is_public(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::ffff:10.0.0.1", "1.1.1.1")]
    [False, False, True]
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _V4_IN_V6):
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if address.teredo is not None or any(address in network for network in _INSIDE_V6):
            return False
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        message = f"{host} cannot be resolved: {error}"
        raise httpcore.ConnectError(message) from error
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _headers(attempt: Attempt, given: Mapping[str, str]) -> dict[str, str]:
    ours = {
        "content-type": attempt.payload_content_type,
        "accept-encoding": "identity",  # an answer that unpacks to a gigabyte is not unpacked
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


async def _bounded(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= _BODY_BYTES:
            break
    return bytes(body[:_BODY_BYTES])


def _judge(response: httpx.Response, body: bytes) -> Outcome:
    text = body.decode("utf-8", "replace").replace("\0", "\ufffd")
    if response.is_success:
        # Cut again as JSON: escapes and replacements can make text several times as long.
        result = _result({"status": response.status_code, "body": text})
        if len(result) > RESULT_BYTES:
            result = _result({"status": response.status_code, "body": text[:_CUT_CHARACTERS], "cut": True})
        return succeeded(result)
    permanent = response.status_code < 500 and response.status_code not in _RETRIED_4XX
    url = response.request.url.copy_with(query=None, username=None, password=None)
    message = f"{url} answered {response.status_code} {response.reason_phrase}: {text[:1024]}"
    after = _retry_after(response.headers)
    return failed(f"http_{response.status_code}", message, permanent=permanent, retry_after=after)


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


def _name(error: httpx.HTTPError) -> str:
    return {
        "ConnectError": "http_connect",
        "ReadTimeout": "http_timeout",
        "ConnectTimeout": "http_connect_timeout",
    }.get(type(error).__name__, f"http_{type(error).__name__}")
