"""Signatures of HTTP requests: the receiver can verify origin, time and content.

Source: Standard Webhooks specification, "Signature scheme" and "Webhook headers".
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

_PREFIX = "whsec_"


def signature_headers(secrets: Sequence[bytes], *, name: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a request; none if there is no secret.

    Args:
        secrets: Each signs, so that secrets can be rotated: the receiver accepts any signature that it can verify.
        name: The message's id, the same when the message is sent again.
        at: The present instant; receivers refuse old requests by it.
        body: The request's body.

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


def read_secrets(written: str) -> tuple[bytes, ...]:
    """Return the secrets of a setting: each `whsec_` and base64, separated by blanks.

    Raises:
        ValueError: A secret is invalid; the message does not show it.

    >>> read_secrets("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    (b'012345678901234567890123',)
    """
    return tuple(_secret(word) for word in written.split())


def _secret(word: str) -> bytes:
    try:
        secret = b64decode(word.removeprefix(_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if not word.startswith(_PREFIX) or not 24 <= len(secret) <= 64:  # Source: "Signing secret" there
        message = f"write {_PREFIX} and the base64 of 24 to 64 random bytes; several are separated by blanks"
        raise ValueError(message)
    return secret
