"""Check run messages before anything of them is used.

A message that no relay has signed is left: its offset moves on, and the sweep runs its run from the table, by the
definition and the payload that are stored there. So writing to the topics of runs changes no run.

An unknown key is looked up in the database, once a second at most, since its message may be the first of a new key.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal, cast

from confluent_kafka import Message

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.message_signatures import SIGNATURE_HEADER, MessageKeys, SignatureFlaw, digest_of
from tidewheel.postgres.session import Session
from tidewheel.process.logs import OnceAMinute
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.executor")

_LOOK_UP_SECONDS = 1.0  # between two look-ups

Policy = Literal["refuse", "warn"]
Headers = Sequence[tuple[str, bytes | None]]

_CAUSES = {
    SignatureFlaw.MISSING: "it has no signature",
    SignatureFlaw.UNKNOWN_KEY: "the key of its signature is not in the database",
    SignatureFlaw.WRONG: "its signature does not match its topic, key and value",
}


class MessageCheck:
    """Verifies the signatures of run messages; with `warn` it accepts all. Thread-safe."""

    def __init__(self, keys: MessageKeys, policy: Policy, look_up: Callable[[], None] = lambda: None) -> None:
        self._keys, self._policy, self._look_up = keys, policy, look_up
        self._lock = threading.Lock()
        self._next_look_up = 0.0
        self._warnings = OnceAMinute()

    def accepts(self, message: Message) -> bool:
        """Return True if a message may be used."""
        signature: object = None
        for name, content in cast("Headers | None", message.headers()) or ():
            if name == SIGNATURE_HEADER:
                signature = content
        topic, key, value = message.topic(), message.key(), message.value()
        signed = (
            signature if isinstance(signature, bytes) else None,
            topic or "",
            key if isinstance(key, bytes) else b"",
            digest_of(value if isinstance(value, bytes) else b""),
        )
        if self._keys.flaw(*signed) is None:
            return True
        return self.accepts_parts(*signed, source=f"{topic}/{message.partition()}/{message.offset()}")

    def accepts_parts(self, signature: bytes | None, topic: str, key: bytes, digest: bytes, *, source: str) -> bool:
        """Return True if a message of this signature, topic, key and digest may be used."""
        flaw = self._keys.flaw(signature, topic, key, digest)
        if flaw is SignatureFlaw.UNKNOWN_KEY:
            self._read_keys()
            flaw = self._keys.flaw(signature, topic, key, digest)
        if flaw is None:
            return True
        metrics.count("messages_unverified", 1, flaw)
        self._warn(flaw, source)
        return self._policy == "warn"

    def _read_keys(self) -> None:
        with self._lock:  # a thread that waits here finds the key that another one has read
            now = monotonic_seconds()
            if now < self._next_look_up:
                return
            try:
                self._look_up()
            except Unavailable as error:
                _LOG.info("the keys of run messages cannot be read: %s", error)
            self._next_look_up = monotonic_seconds() + _LOOK_UP_SECONDS

    def _warn(self, flaw: SignatureFlaw, source: str) -> None:
        if self._warnings.is_due(flaw):
            effect = "the sweep starts its run" if self._policy == "refuse" else "accepted, because the policy is warn"
            _LOG.warning("message %s may be forged: %s; %s", source, _CAUSES[flaw], effect)


def key_look_up(url: str, keys: MessageKeys) -> Callable[[], None]:
    """Return a function that reads the keys over a connection of its own, and closes it."""

    def look_up() -> None:
        session = Session(url, "tidewheel-executor-keys")
        try:
            session.within(keys.refresh)
        finally:
            session.close()

    return look_up
