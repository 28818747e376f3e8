"""Sign-ins: what a browser has in place of an API key.

The cookie names the key by its id, and is signed by the secret of the installation. So every API process accepts it,
and no table holds it. The key's secret is in no cookie. The guard reads the key as for a Bearer key, so a revocation
ends the sign-in within a second.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

from tidewheel.audit import person

COOKIE = "tidewheel-sign-in"
FORM_COOKIE = "tidewheel-form"
THEME_COOKIE = "tidewheel-theme"
DONE_COOKIE = "tidewheel-done"
ZONE_COOKIE = "tidewheel-zone"
DENSITY_COOKIE = "tidewheel-density"
KEYS_COOKIE = "tidewheel-keys"
THEMES = ("auto", "light", "dark")
LOOKS = {
    "theme": (THEME_COOKIE, THEMES),
    "density": (DENSITY_COOKIE, ("wide", "compact")),
    "keys": (KEYS_COOKIE, ("on", "off")),
}
"""What a reader chooses of the looks of pages: each choice with its cookie and its values."""

LIFE_SECONDS = 12 * 3600
RENEW_SECONDS = 3600
_LONGEST = 3072  # characters of a cookie that is looked at


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in whose signature is right. The key behind it may have been revoked since.

    Args:
        key_id: The id of its key.
        made_at: When it was made or renewed, in seconds since 1970.
        name: The person's own name for the audit log, which nothing verifies.
        secure: True if its cookie goes by https alone. A renewal keeps it: a page that is read has no origin.
    """

    key_id: str
    made_at: int
    name: str | None
    secure: bool = False

    def fits(self, stored: bytes) -> bool:
        """Return True: the signature has proved that the secret of the key was shown."""
        del stored
        return True

    def is_to_renew(self, now: float) -> bool:
        """Return True an hour after it was made."""
        return now - self.made_at > RENEW_SECONDS


class Signer:
    """Writes and reads sign-ins and the tokens of forms.

    Args:
        secret: The secret of the installation; keys of this use are derived from it.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"tidewheel console", sha256)

    def write(self, sign_in: SignIn) -> str:
        """Return the text of the cookie."""
        return self.seal("sign-in", [sign_in.key_id, sign_in.made_at, sign_in.name, sign_in.secure])

    def read(self, text: str, now: float) -> SignIn | None:
        """Return a sign-in; None if the text is forged, or older than twelve hours.

        >>> signer = Signer(b"secret")
        >>> text = signer.write(SignIn("k", 100, None))
        >>> signer.read(text, 200), signer.read(text, 100 + LIFE_SECONDS + 1), signer.read("x" + text, 200)
        (SignIn(key_id='k', made_at=100, name=None, secure=False), None, None)
        """
        if (found := self.unseal("sign-in", text)) is None:
            return None
        key_id, made_at, name, *secure = cast("tuple[str, int, str | None, bool]", found)  # 0.1 wrote three
        return (
            SignIn(key_id, made_at, person(name), secure == [True])
            if 0 <= now - made_at + 60 <= LIFE_SECONDS + 60
            else None
        )

    def seal(self, use: str, value: object) -> str:
        """Return a value as text of a cookie, signed for one use."""
        body = urlsafe_b64encode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")).decode()
        return f"{body}.{self._mark(use, body)}"

    def unseal(self, use: str, text: str) -> object | None:
        """Return the value of a cookie; None if it was not sealed here for this use."""
        body, _, mark = text.partition(".")
        if len(text) > _LONGEST or not hmac.compare_digest(mark.encode(), self._mark(use, body).encode()):
            return None
        return cast("object", json.loads(urlsafe_b64decode(body)))

    def form_token(self, form_cookie: str, sign_in: SignIn | None) -> str:
        """Return the token of the forms of one browser and key."""
        return self._mark("form", form_cookie, sign_in.key_id if sign_in else "")

    def fits_form(self, token: str, form_cookie: str, sign_in: SignIn | None) -> bool:
        """Return True if a form was made for this browser and key."""
        expected = self.form_token(form_cookie, sign_in)
        return bool(form_cookie) and hmac.compare_digest(token.encode(), expected.encode())

    def _mark(self, *parts: str) -> str:
        return hmac.new(self._key, "\n".join(parts).encode(), sha256).hexdigest()


def new_form_cookie() -> str:
    """Return the random text that binds forms to a browser."""
    return secrets.token_urlsafe(24)
