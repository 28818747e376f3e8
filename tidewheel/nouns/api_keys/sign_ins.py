"""Sign-ins: what a browser has in place of an API key, with their cookies and the tokens of forms.

A cookie names the key by its id and has a random secret of its own; the table `sign_ins` has the digest of that. So
no key of the installation makes a cookie, and the secret of the API key is in none. The sign-ins of a key are read with
the key: a revocation and a sign-out act within a second.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import Final, cast

from starlette.requests import Request

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

LIFE: Final = timedelta(days=7)  # from the sign-in: then the key is shown again
_IDLE: Final = timedelta(hours=12)  # a working day without a page
_LINK_LIFE: Final = timedelta(hours=1)
_MOST_SIGN_INS = 100  # of one key; the oldest go
_LONGEST = 3072  # characters of a cookie that is looked at

_SQL = Statements("tidewheel.control")

BOUNDS: Final[Mapping[str, object]] = {"idle": _IDLE, "life": LIFE}
"""The columns of statements that read sign-ins."""

COOKIE = "tidewheel-session"
FORM_COOKIE = "tidewheel-form"
DONE_COOKIE = "tidewheel-done"
ZONE_COOKIE = "tidewheel-zone"
PREFIXES: Final = ("__Host-", "__Secure-", "")
"""What the names of cookies begin with: by https, by https below a base path, and by plain HTTP, in order of trust."""

LOOKS = {"theme": ("auto", "light", "dark"), "density": ("wide", "compact"), "keys": ("on", "off")}
"""What a reader chooses of the looks of pages: each choice with its values. Its cookie is `tidewheel-` and its name."""


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
    return SignIn(key_id, secret) if key_id and secret and text.isascii() and len(text) <= _LONGEST else None


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
    columns = {"digest": link.digest, "life": _LINK_LIFE}
    if connection.execute(_SQL["take_link"], columns).fetchone() is None:
        return None
    return add_sign_in(connection, link.key_id, None)


def cookie_of(request: Request, name: str) -> str:
    """Return the value of a cookie, under whichever of its names; empty if there is none."""
    return next((found for each in PREFIXES if (found := request.cookies.get(f"{each}{name}"))), "")


def sign_in_of(request: Request) -> SignIn | None:
    """Return the sign-in that the cookie of a request shows; None if it shows none."""
    return read_sign_in(cookie_of(request, COOKIE))


class Signer:
    """Signs the tokens of forms and the message for the next page, by the secret of the sign-in.

    Args:
        needs_key: False where the API needs no keys: a secret of this process takes the place of the sign-in's.
    """

    def __init__(self, *, needs_key: bool) -> None:
        self._open = b"" if needs_key else secrets.token_bytes(32)

    def seal(self, request: Request, value: object) -> str:
        """Return a value as text of a cookie, for the browser of this request alone."""
        body = urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")).decode()
        return f"{body}.{self._mark(request, 'done', body)}"

    def unseal(self, request: Request, text: str) -> object | None:
        """Return the value of a cookie; None if it was not sealed here for this browser."""
        body, _, mark = text.partition(".")
        if len(text) > _LONGEST or not hmac.compare_digest(mark.encode(), self._mark(request, "done", body).encode()):
            return None
        return cast("object", json.loads(urlsafe_b64decode(body)))

    def form_token(self, request: Request, form_cookie: str) -> str:
        """Return the token of the forms of one browser and sign-in."""
        return self._mark(request, "form", form_cookie)

    def fits_form(self, request: Request, token: str) -> bool:
        """Return True if a form was made for this browser and sign-in."""
        form_cookie = cookie_of(request, FORM_COOKIE)
        expected = self.form_token(request, form_cookie)
        return bool(form_cookie) and hmac.compare_digest(token.encode(), expected.encode())

    def _mark(self, request: Request, *parts: str) -> str:
        sign_in = sign_in_of(request)
        key = self._open if sign_in is None else sign_in.secret.encode()
        return hmac.new(key, "\n".join(parts).encode(), sha256).hexdigest()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
