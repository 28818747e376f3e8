"""Signatures of run messages: executors use only what a relay of this installation has published.

The relay signs topic, key and value of each run message. The keys are in the database, which relays, executors and the
API reach, and a client that only writes to Kafka does not. Every key in the table verifies. The newest one signs, once
it is old enough to be known to all executors. Source: docs/adr/0032-signed-run-messages.md
"""

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b, sha256
from typing import Final, cast

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements

SIGNATURE_HEADER: Final = "signature"
SIGNATURE_CHARACTERS: Final = 28  # base64: 4 of the key's id, 24 of the digest
SIGNS_AFTER_SECONDS: Final = 10  # two default heartbeats, with which executors read the keys

_SQL = Statements("tidewheel")
_READ_MESSAGE_KEYS = _SQL["read_message_keys"]

_ID_BYTES, _ID_CHARACTERS = 3, 4
_TAG_BYTES = 18
_LENGTH_BYTES = 4
_PURPOSE = b"tidewheel run"  # no other use of a key gives the same digests
_MAX_TOPICS = 1000  # whose hashes a key keeps


class SignatureFlaw(StrEnum):
    """Reason for which a message is not proven to come from a relay."""

    MISSING = "missing"
    UNKNOWN_KEY = "unknown_key"
    WRONG = "wrong"


def digest_of(value: bytes) -> bytes:
    """Return the digest of a message's value: SHA-256, which every language has."""
    return sha256(value).digest()


class MessageKey:
    """A key that signs run messages and verifies their signatures; thread-safe."""

    def __init__(self, key_id: int, secret: bytes) -> None:
        self.head = b2a_base64(key_id.to_bytes(_ID_BYTES), newline=False)
        self._secret = secret
        self._topics: dict[str, blake2b] = {}

    def sign(self, topic: str, key: bytes, digest: bytes) -> bytes:
        """Return the signature of a message, 28 ASCII characters.

        The signed bytes are the length of the topic, the topic, the digest of the value, which has always 32 bytes,
        and the key. The hash of secret and topic is kept: computing it costs as much as the rest.

        >>> MessageKey(1, bytes(32)).sign("tidewheel.runs.standard", b"k", digest_of(b"v"))
        b'AAABaqMYXbGW61rzHv8cNMR8DUxv'
        """
        tag = (self._topics.get(topic) or self._begin(topic)).copy()
        tag.update(digest + key)
        return self.head + b2a_base64(tag.digest(), newline=False)

    def _begin(self, topic: str) -> blake2b:
        name = topic.encode()
        begun = blake2b(
            len(name).to_bytes(_LENGTH_BYTES) + name, key=self._secret, digest_size=_TAG_BYTES, person=_PURPOSE
        )
        if len(self._topics) < _MAX_TOPICS:
            self._topics[topic] = begun
        return begun


class MessageKeys:
    """The keys of an installation as one process knows them; thread-safe."""

    def __init__(self, secrets: Mapping[int, bytes] | None = None) -> None:
        self._read_at = float("-inf")
        self._signing: MessageKey | None = None
        self._secrets: dict[int, bytes] = {}
        self._keys: dict[int, MessageKey] = {}
        self._by_head: dict[bytes, MessageKey] = {}  # replaced, never changed: other threads read it
        self._use(dict(secrets or {}), max(secrets or {}, default=None))

    def refresh_aged(self, session: Session, max_age: float) -> None:
        """Read the keys in a transaction of their own, unless they were read less than `max_age` seconds ago."""
        if monotonic_seconds() - self._read_at >= max_age:
            session.within(self.refresh)

    def refresh(self, connection: Conn) -> None:
        """Read the keys."""
        now = monotonic_seconds()
        found = connection.execute(_READ_MESSAGE_KEYS, {"signs_after": SIGNS_AFTER_SECONDS}, binary=True).fetchall()
        rows = cast("list[tuple[int, bytes, bool]]", found)
        secrets = {key_id: bytes(secret) for key_id, secret, _ in rows}
        # Where no key is old enough, such as after an installation or a revocation, executors look the oldest one up.
        self._use(secrets, max((key_id for key_id, _, old in rows if old), default=min(secrets, default=None)))
        self._read_at = now

    def require(self) -> None:
        """Check that there is a key to sign with."""
        if self._signing is None:
            raise Unavailable(
                "the database has no key that signs run messages; run `tidewheel admin secrets rotate run-messages`"
            )

    def sign(self, topic: str, key: bytes, value: bytes) -> bytes:
        """Return the signature of a message to publish; call `require` before."""
        assert self._signing is not None  # noqa: S101 - as `require` has checked
        return self._signing.sign(topic, key, digest_of(value))

    def flaw(self, signature: bytes | None, topic: str, key: bytes, digest: bytes) -> SignatureFlaw | None:
        """Return the flaw of a signature that was read; None if a relay has published its message."""
        if signature is None:
            return SignatureFlaw.MISSING
        signing = self._by_head.get(signature[:_ID_CHARACTERS])
        if signing is None:
            return SignatureFlaw.UNKNOWN_KEY
        right = hmac.compare_digest(signing.sign(topic, key, digest), signature)
        return None if right else SignatureFlaw.WRONG

    def _use(self, secrets: dict[int, bytes], signing: int | None) -> None:
        if secrets != self._secrets:
            self._secrets = secrets
            self._keys = {key_id: MessageKey(key_id, secret) for key_id, secret in secrets.items()}
            self._by_head = {key.head: key for key in self._keys.values()}
        self._signing = None if signing is None else self._keys[signing]
