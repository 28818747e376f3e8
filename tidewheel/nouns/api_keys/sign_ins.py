"""Sign-ins: what a browser has in place of an API key.

A cookie names the key by its id and has a random secret of its own; the table `sign_ins` has the digest of that. So
no key of the installation makes a cookie, and the secret of the API key is in none. The sign-ins of a key are read with
the key: a revocation and a sign-out act within a second.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import Final

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

LIFE: Final = timedelta(days=7)  # from the sign-in: then the key is shown again
IDLE: Final = timedelta(hours=12)  # a working day without a page
LINK_LIFE: Final = timedelta(hours=1)
_MOST_SIGN_INS = 100  # of one key; the oldest go
LONGEST = 3072  # characters of a cookie that is looked at

_SQL = Statements("tidewheel.control")

BOUNDS: Final[Mapping[str, object]] = {"idle": IDLE, "life": LIFE}
"""The columns of statements that read sign-ins."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in as a cookie shows it: it may have ended.

    Args:
        name: The person's own name for the audit log, which nothing verifies; known once the key has been read.
    """

    key_id: str
    secret: str = field(repr=False)
    name: str | None = None

    @property
    def digest(self) -> bytes:
        """The digest that is stored."""
        return _digest(self.secret)

    @property
    def text(self) -> str:
        """The text of its cookie."""
        return f"{self.key_id}.{self.secret}"

    def fits(self, secret_hash: bytes, sign_ins: Mapping[str, str | None]) -> bool:
        """Return True for one of the sign-ins of its key that have not ended."""
        del secret_hash
        return self.digest.hex() in sign_ins

    def named(self, sign_ins: Mapping[str, str | None]) -> "SignIn":
        """Return it with the name that it was given."""
        return replace(self, name=sign_ins.get(self.digest.hex()))


def read_sign_in(text: str) -> SignIn | None:
    """Return the sign-in of a cookie; None if the text is none.

    >>> read_sign_in("0a1b.secret"), read_sign_in("0a1b"), read_sign_in("x.é")
    (SignIn(key_id='0a1b', name=None), None, None)
    """
    key_id, _, secret = text.partition(".")
    return SignIn(key_id, secret) if key_id and secret and text.isascii() and len(text) <= LONGEST else None


def add_sign_in(connection: Conn, key_id: str, name: str | None, *, is_link: bool = False) -> SignIn | None:
    """Add a sign-in of a key in force, or a link that becomes one.

    Ended sign-ins are deleted, and the oldest of too many.

    Returns:
        The sign-in; None if the key has gone meanwhile.
    """
    made = SignIn(key_id, secrets.token_urlsafe(32), name)
    columns = {"digest": made.digest, "key_id": key_id, "name": name, "is_link": is_link}
    connection.execute(_SQL["drop_sign_ins"], {**BOUNDS, "key_id": key_id, "kept": _MOST_SIGN_INS - 1})
    return made if connection.execute(_SQL["add_sign_in"], columns).rowcount else None


def end_sign_in(connection: Conn, sign_in: SignIn) -> None:
    """End a sign-in."""
    connection.execute(_SQL["end_sign_in"], {"digest": sign_in.digest})


def take_link(connection: Conn, text: str) -> SignIn | None:
    """Return the sign-in that a link opens, once; None if it was opened before, or is an hour old."""
    link = read_sign_in(text)
    if link is None:
        return None
    columns = {"digest": link.digest, "life": LINK_LIFE}
    if connection.execute(_SQL["take_link"], columns).fetchone() is None:
        return None
    return add_sign_in(connection, link.key_id, None)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
