"""API keys: their text, their scopes, and a limit on the rate of their requests.

A key is `tw_<id>_<secret><checksum>`: ten characters, 43 that hold 256 random bits, and six. The checksum recognizes a
typing error before any look-up, and a scanner of texts finds keys with few false alarms. The database has the SHA-256
of the secret. A slow hash protects passwords, which can be guessed: 256 random bits cannot.
"""

import hmac
import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from zlib import crc32

_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LETTERS = string.digits + string.ascii_lowercase
_ID_CHARACTERS = 10
_ID_BITS = 64  # 36 ** 10 is less than 2 ** 52
_SECRET_CHARACTERS = 43  # 62 ** 43 is more than 2 ** 256
_CHECKSUM_CHARACTERS = 6  # 62 ** 6 is more than 2 ** 32
_KEY = re.compile(
    rf"tw_([0-9a-z]{{{_ID_CHARACTERS}}})_([0-9A-Za-z]{{{_SECRET_CHARACTERS}}})([0-9A-Za-z]{{{_CHECKSUM_CHARACTERS}}})",
    re.ASCII,
)

PREFIX = "tw_"
MAX_RATE = 1_000_000  # requests a second


class Scope(StrEnum):
    """A right that a route needs."""

    READ = "read"
    """Lists and details."""
    WRITE = "write"
    """Jobs: create, change, delete, trigger."""
    OPERATE = "operate"
    """Runs and dead letters: cancel, retry, redrive, backfill, pause."""
    ADMIN = "admin"
    """All of these, keys and the audit log; with a key of all tenants, the whole installation."""
    EXECUTE = "execute"
    """Calls of executors in other languages, for some queues; `admin` does not have it."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The parts of a key."""

    key_id: str
    secret: str

    @property
    def text(self) -> str:
        """The whole key, as a client sends it."""
        body = f"{PREFIX}{self.key_id}_{self.secret}"
        return body + _checksum(body)

    @property
    def hash(self) -> bytes:
        """The digest that is stored."""
        return sha256(self.secret.encode()).digest()

    def fits(self, secret_hash: bytes, sign_ins: Mapping[str, str | None]) -> bool:
        """Compare with the stored digest, in a time that does not depend on the secret; a sign-in is no key."""
        del sign_ins
        return hmac.compare_digest(self.hash, secret_hash)


def new_key(name: str | None = None) -> ApiKey:
    """Return a random key; the id is that of a name, if one is given.

    >>> new_key("a").key_id == new_key("a").key_id, new_key("a") == new_key("a"), read_key(new_key("a").text) is None
    (True, False, False)
    """
    number = secrets.randbits(_ID_BITS) if name is None else int.from_bytes(sha256(name.encode()).digest()[:8])
    return ApiKey(_digits(number, _ID_CHARACTERS, _ID_LETTERS), _digits(secrets.randbits(256), _SECRET_CHARACTERS))


def read_key(text: str) -> ApiKey | None:
    """Return the parts of a key; None if the text is no key, or has a typing error.

    >>> key = new_key()
    >>> read_key(key.text) == key, read_key(key.text[:-1] + "?"), read_key(key.text.swapcase())
    (True, None, None)
    """
    found = _KEY.fullmatch(text)
    if found is None or not hmac.compare_digest(_checksum(text[:-_CHECKSUM_CHARACTERS]), found[3]):
        return None
    return ApiKey(found[1], found[2])


class Bucket:
    """A token bucket on a monotonic clock: requests a second, and those of two seconds at once."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._most = rate, max(2 * rate, 1.0)
        self._left, self._at = self._most, now

    def take(self, now: float) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0

    def spend(self, tokens: int) -> None:
        """Take further tokens; without enough of them, the bucket is in debt until its rate has paid."""
        self._left -= tokens

    def change(self, rate: float) -> None:
        """Use another rate from now on."""
        self._rate, self._most = rate, max(2 * rate, 1.0)


def _checksum(body: str) -> str:
    return _digits(crc32(body.encode()), _CHECKSUM_CHARACTERS)


def _digits(number: int, count: int, letters: str = _LETTERS) -> str:
    """Return the digits of a number, of base 62 unless other letters are given; the last one first."""
    found: list[str] = []
    for _ in range(count):
        number, digit = divmod(number, len(letters))
        found.append(letters[digit])
    return "".join(found)
