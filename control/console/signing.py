"""The sign-in page: an API key in exchange for a cookie."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidewheel.api_keys import PREFIX, Scope, read_key
from tidewheel.audit import person
from tidewheel.control.api.key_check import KeyCheck
from tidewheel.control.console.door import Door
from tidewheel.control.console.forms import check_form, read_form
from tidewheel.control.console.rendering import Visitor
from tidewheel.control.console.urls import local_path
from tidewheel.settings.api import is_loopback

_NO_KEY = "No such key, or it was revoked."
_MISTYPED = "The key has a typing error, or a part of it is missing. Copy the whole key."
_MAY_NOT_READ = "This key lacks the scope read, which every page needs."
_PLAIN = "This page came by plain HTTP, where others can read the key. Open it by HTTPS."
_BUSY = "The key has sent too many requests at once. Sign in again in a moment."


@dataclass(frozen=True, slots=True)
class SignInPage:
    """The sign-in page.

    Args:
        door: Sign-ins and the renderer.
        keys: The check of API keys, the same as of Bearer keys.
        allows_plain_http: True if keys may be typed into pages that others can read on their way.
    """

    door: Door
    keys: KeyCheck
    allows_plain_http: bool

    async def show(self, request: Request) -> Response:
        """Return the page; where no key is needed, lead to the overview."""
        if not self.door.needs_key:
            return self.door.renderer.guarded(RedirectResponse(f"{self.door.base}/", HTTPStatus.SEE_OTHER))
        query = request.query_params
        return self._page(request, {"next": query.get("next", "")}, ended="ended" in query)

    async def sign_in(self, request: Request) -> Response:
        """Check the key, and set the cookie."""
        form = await read_form(request)
        check_form(request, form, self.door)
        found = await self._check(request, form)
        if not found[0]:
            return self._page(request, form, wrong=found[1])
        back = f"{self.door.base}{local_path(form.get('next', ''))}"
        answer = RedirectResponse(back, HTTPStatus.SEE_OTHER)
        self.door.set_sign_in(request, answer, found[1], person(form.get("name")))
        return self.door.renderer.guarded(answer)

    async def _check(self, request: Request, form: Mapping[str, str]) -> tuple[bool, str]:
        """Return True and the id of the key; or False and the reason.

        Raises:
            Unavailable: The database does not answer.
        """
        if not self.allows_plain_http and _is_plain(request):
            return False, _PLAIN
        if (key := read_key(form.get("key", "").strip())) is None:
            return False, _MISTYPED
        use = await self.keys.begin(key)
        if isinstance(use, Response):
            return False, _NO_KEY if use.status_code == HTTPStatus.UNAUTHORIZED else _BUSY
        use.in_progress -= 1
        return (True, key.key_id) if Scope.READ in use.stored.rights else (False, _MAY_NOT_READ)

    def _page(self, request: Request, form: Mapping[str, str], *, wrong: str = "", ended: bool = False) -> Response:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.OK
        values: dict[str, object] = {
            "place": "", "wrong": wrong, "ended": ended, "next": local_path(form.get("next", "")),
            "name": form.get("name", ""), "host": request.url.netloc, "prefix": PREFIX,
        }  # fmt: skip
        return self.door.renderer.page(
            request, "sign-in.html", Visitor(), status=status, sign_in=self.door.sign_in_of(request), values=values
        )


def _is_plain(request: Request) -> bool:
    """Return True if a browser on another machine has sent the form by plain HTTP."""
    origin = request.headers.get("origin")
    given = urlsplit(origin if origin else str(request.url))
    return given.scheme == "http" and not is_loopback(given.hostname or "")
