"""Cookies of the console, which show a sign-in, and the tokens of its forms."""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Final, cast

from starlette.requests import Request

from tidewheel.nouns.api_keys.sign_ins import LONGEST, SignIn, read_sign_in

COOKIE = "tidewheel-session"
FORM_COOKIE = "tidewheel-form"
DONE_COOKIE = "tidewheel-done"
ZONE_COOKIE = "tidewheel-zone"
PREFIXES: Final = ("__Host-", "__Secure-", "")
"""What the names of cookies begin with: by https, by https below a base path, and by plain HTTP, in order of trust."""

LOOKS = {"theme": ("auto", "light", "dark"), "density": ("wide", "compact"), "keys": ("on", "off")}
"""What a reader chooses of the looks of pages: each choice with its values. Its cookie is `tidewheel-` and its name."""


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
        if len(text) > LONGEST or not hmac.compare_digest(mark.encode(), self._mark(request, "done", body).encode()):
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
