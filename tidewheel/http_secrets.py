"""Secrets of HTTP targets: headers for the hosts that they name, and signatures of requests.

Signatures of HTTP requests: the receiver can verify origin, time and content. Source: Standard Webhooks specification,
"Signature scheme" and "Webhook headers".
"""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final

from tidewheel.errors import SettingsError
from tidewheel.jobs.http_values import NOT_IN_A_VALUE, SECRET_NAME, read_host, read_ipv6
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.redaction import protect

PREFIX: Final = "TIDEWHEEL_SECRET_"
MAX_VALUE: Final = 8192  # a token with many claims has 4 KiB; servers refuse a head of more than 8 or 16 KiB
_NOT_PASSED: Final = (PREFIX, "TIDEWHEEL_WEBHOOK_SECRETS")
_PREFIX = "whsec_"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # an international name in its ASCII form, xn--…


@dataclass(frozen=True, slots=True)
class HttpSecret:
    """A header's whole value, and the hosts that it may be sent to, as `Host.name` has them."""

    value: str = field(repr=False)
    hosts: frozenset[str]


def read_entry(written: str) -> HttpSecret:
    """Return the secret of a variable: `host[,host…]=value`.

    Raises:
        ValueError: It has no host or no value; the message shows neither.

    >>> secret = read_entry("api.example.org,[::1]=Basic dXNlcjpwYXNz=")
    >>> secret.value, sorted(secret.hosts)
    ('Basic dXNlcjpwYXNz=', ['::1', 'api.example.org'])
    """
    hosts, equals, value = written.partition("=")
    if not equals:
        raise ValueError("does not name a host: write <host>=<value>, with commas between several hosts")
    return make_secret(value, hosts.split(","))


def make_secret(value: str, hosts: Iterable[str]) -> HttpSecret:
    """Return a secret of its parts."""
    allowed = frozenset(_host(host.strip(), number) for number, host in enumerate(hosts, 1))
    return HttpSecret(_value(value), allowed)


def environment_secrets(environment: Mapping[str, str]) -> dict[str, HttpSecret]:
    """Return the secrets in an environment by their names; an error shows nothing of a value."""
    secrets: dict[str, HttpSecret] = {}
    for variable, written in environment.items():
        if not variable.upper().startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :]
        if not variable.startswith(PREFIX) or not SECRET_NAME.fullmatch(name):
            message = f"{variable} is not a valid name: write {PREFIX} and 1 to 64 of A-Z, 0-9 and '_', a letter first"
            raise SettingsError(message)
        try:
            secrets[name] = read_entry(written)
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}") from None
        protect(secrets[name].value)
    return secrets


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for other processes: they have no use for these secrets.

    >>> without_secrets({"TIDEWHEEL_SECRET_BILLING": "a.example=x", "HOME": "/"})
    {'HOME': '/'}
    """
    return {name: value for name, value in environment.items() if not name.upper().startswith(_NOT_PASSED)}


def signature_headers(secrets: Sequence[bytes], *, name: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a request; none if there is no secret.

    Args:
        secrets: Each signs, so that secrets can be rotated: the receiver accepts any signature that it can verify.
        name: The message's id, the same when the message is sent again.
        at: The present instant; receivers refuse old requests by it.

    >>> from datetime import UTC
    >>> signed = signature_headers([b"k" * 24], name="m", at=datetime(2026, 1, 1, tzinfo=UTC), body=b"{}")
    >>> signed["webhook-timestamp"], signed["webhook-signature"]
    ('1767225600', 'v1,gSUYSW/XqG0VPKsQ7rRaXjKqXEtTOZO62itvmvneW4M=')
    """
    if not secrets:
        return {}
    timestamp = str(int(at.timestamp()))
    signed = f"{name}.{timestamp}.".encode() + body
    signatures = [f"v1,{b64encode(hmac.digest(secret, signed, sha256)).decode()}" for secret in secrets]
    return {"webhook-id": name, "webhook-timestamp": timestamp, "webhook-signature": " ".join(signatures)}


def read_secrets(written: str) -> dict[str, tuple[bytes, ...]]:
    """Return the secrets of a setting by host: each `host=whsec_…`, separated by blanks.

    A secret belongs to one host. Each receiver knows the secret that it verifies with, so with a common one it could
    sign requests to all others.

    Raises:
        ValueError: An entry is invalid; the message does not show it.

    >>> read_secrets("api.example.org=whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    {'api.example.org': (b'012345678901234567890123',)}
    """
    secrets: dict[str, tuple[bytes, ...]] = {}
    for number, entry in enumerate(written.split(), start=1):
        host, equals, secret = entry.partition("=")
        if not equals or not _HOST.fullmatch(host):
            raise ValueError(
                f"entry {number} does not name a host: write <host>=whsec_…, with the host as in target URLs, without a"
                " port or *; separate several entries with spaces"
            )
        host = host_key(host)
        secrets[host] = (*secrets.get(host, ()), _secret(secret, number))
    return secrets


def host_key(host: str) -> str:
    """Return the form of a URL's host in which secrets are looked up.

    >>> host_key("API.example.org."), host_key("[::1]")
    ('api.example.org', '::1')
    """
    return host.lower().strip("[]").removesuffix(".")


def _host(written: str, number: int) -> str:
    bracketed = written.startswith("[") and written.endswith("]")
    try:
        return (read_ipv6(written[1:-1]) if bracketed else read_host(written)).name
    except InvalidValue:
        # Not shown: where the host is left out, this is a part of the secret.
        raise ValueError(f"host {number} is not a host: write it as in target URLs, without a port or *") from None


def _value(value: str) -> str:
    if not value:
        raise ValueError("the value is empty: write the header's whole value, such as Bearer and a token")
    if len(value) > MAX_VALUE:
        raise ValueError(f"the value has {len(value)} characters: write at most {MAX_VALUE}")
    if found := NOT_IN_A_VALUE.search(value):
        message = f"character {found.start() + 1} of the value is not allowed in a header: write one line of ASCII"
        raise ValueError(message)
    if value != value.strip():
        raise ValueError("the value begins or ends with a space, which headers drop: remove it")
    return value


def _secret(word: str, number: int) -> bytes:
    try:
        secret = b64decode(word.removeprefix(_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if not word.startswith(_PREFIX) or not 24 <= len(secret) <= 64:  # Source: "Signing secret" there
        message = f"entry {number} has no secret: write {_PREFIX} and 24 to 64 random bytes in base64 after the host"
        raise ValueError(message)
    return secret
