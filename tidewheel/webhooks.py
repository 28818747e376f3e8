"""Signatures of HTTP requests: the receiver can verify origin, time and content.

Source: Standard Webhooks specification, "Signature scheme" and "Webhook headers".
"""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

_PREFIX = "whsec_"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # an international name in its ASCII form, xn--…


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
            message = (
                f"entry {number} names no host: write <host>=whsec_…, with the host as in URLs of targets, without a"
                " port and without *; several entries are separated by blanks"
            )
            raise ValueError(message)
        host = host_key(host)
        secrets[host] = (*secrets.get(host, ()), _secret(secret, number))
    return secrets


def host_key(host: str) -> str:
    """Return the form of a URL's host in which secrets are looked up.

    >>> host_key("API.example.org."), host_key("[::1]")
    ('api.example.org', '::1')
    """
    return host.lower().strip("[]").removesuffix(".")


def _secret(word: str, number: int) -> bytes:
    try:
        secret = b64decode(word.removeprefix(_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if not word.startswith(_PREFIX) or not 24 <= len(secret) <= 64:  # Source: "Signing secret" there
        message = (
            f"entry {number} has no secret: write {_PREFIX} and the base64 of 24 to 64 random bytes after the host"
        )
        raise ValueError(message)
    return secret
