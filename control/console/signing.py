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
from tidewheel.control.console.sign_in import SignIn
from tidewheel.control.console.urls import local_path
from tidewheel.settings.api import is_loopback

_NO_KEY = "No such key, or it was revoked."
_MISTYPED = "The key has a typing error, or a part of it is missing. Copy the whole key."
_MAY_NOT_READ = "This key lacks the scope read, which every page needs."
_PLAIN = "This page came by plain HTTP, where others can read the key. Open it by HTTPS."
_OLD_LINK = "The link was opened before, or is an hour old. Sign in with a key."
_BUSY = "The key has sent too many requests at once. Sign in again in a moment."


@dataclass(frozen=True, slots=True)
class SignInPage:
    """The sign-in page.

    Args:
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
        if (link := query.get("link")) is not None:
            return await self._open(request, link)
        return self._page(request, {"next": query.get("next", "")}, ended="ended" in query)

    async def _open(self, request: Request, link: str) -> Response:
        """Sign in by a link of `tidewheel dev`, which opens the console once."""
        if (made := await self.keys.open_link(link)) is None:
            return self._page(request, {}, wrong=_OLD_LINK)
        answer = RedirectResponse(f"{self.door.base}/", HTTPStatus.SEE_OTHER)
        self.door.set_sign_in(request, answer, made)
        return self.door.renderer.guarded(answer)

    async def sign_in(self, request: Request) -> Response:
        """Check the key, and set the cookie."""
        form = await read_form(request)
        check_form(request, form, self.door)
        made = await self._check(request, form)
        if not isinstance(made, SignIn):
            return self._page(request, form, wrong=made)
        back = f"{self.door.base}{local_path(form.get('next', ''))}"
        answer = RedirectResponse(back, HTTPStatus.SEE_OTHER)
        self.door.set_sign_in(request, answer, made)
        return self.door.renderer.guarded(answer)

    async def _check(self, request: Request, form: Mapping[str, str]) -> SignIn | str:
        """Return the sign-in that begins now, or the reason why none does."""
        if not self.allows_plain_http and _is_plain(request):
            return _PLAIN
        if (key := read_key(form.get("key", "").strip())) is None:
            return _MISTYPED
        use = await self.keys.begin(key)
        if isinstance(use, Response):
            return _NO_KEY if use.status_code == HTTPStatus.UNAUTHORIZED else _BUSY
        use.in_progress -= 1
        if Scope.READ not in use.stored.rights:
            return _MAY_NOT_READ
        return await self.keys.sign_in(key.key_id, person(form.get("name"))) or _NO_KEY

    def _page(self, request: Request, form: Mapping[str, str], *, wrong: str = "", ended: bool = False) -> Response:
        status = HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.OK
        values: dict[str, object] = {
            "place": "", "wrong": wrong, "ended": ended, "next": local_path(form.get("next", "")),
            "name": form.get("name", ""), "host": request.url.netloc, "prefix": PREFIX,
        }  # fmt: skip
        return self.door.renderer.page(request, "sign-in.html", Visitor(), status=status, values=values)


def _is_plain(request: Request) -> bool:
    """Return True if a browser on another machine has sent the form by plain HTTP."""
    origin = request.headers.get("origin")
    given = urlsplit(origin if origin else str(request.url))
    return given.scheme == "http" and not is_loopback(given.hostname or "")
