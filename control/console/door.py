"""Requests for pages: recognize them, sign in, read forms, decide who may open a page."""

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidewheel.api_keys import PREFIX, Scope, read_key
from tidewheel.audit import ALL_TENANTS, person
from tidewheel.control.api.authorization import KNOWN, SIGN_IN
from tidewheel.control.api.key_check import KeyCheck, StoredKey
from tidewheel.control.api.problems import PAGE
from tidewheel.control.api.request_input import in_time
from tidewheel.control.console.rendering import Renderer, Visitor
from tidewheel.control.console.urls import is_page, local_path, within
from tidewheel.control.console.words import size
from tidewheel.errors import InvalidInput, TenantDeleted, UnknownTenant
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import MAX_PAYLOAD_BYTES, is_tenant
from tidewheel.nouns.api_keys.sign_ins import COOKIE, LIFE, Signer, SignIn, sign_in_of
from tidewheel.settings.services import ApiSettings
from tidewheel.settings.verification import is_loopback

_TO_SIGN_IN = ("/sign-in", "/sign-out", "/theme")
MOST_BYTES = 16 * 1024
"""Of a form that has no field for long texts."""

_STATIC = "/static/"
_NO_TENANT = (UnknownTenant.code, TenantDeleted.code, InvalidInput.code)  # of a page whose tenant no other page has
_MOST_FIELDS = 200
# Read and dropped beyond the limit: browsers show no answer before they have sent all. A key has 3.6 MiB.
_DROPPED_BYTES = 1 << 20
_FORM = "application/x-www-form-urlencoded"
_NO_KEY = "No such key, or it was revoked."
_MISTYPED = "The key has a typing error, or a part of it is missing. Copy the whole key."
_MAY_NOT_READ = "This key lacks the scope read, which every page needs."
_PLAIN = "This page came by plain HTTP, where others can read the key. Open it by HTTPS."
_OLD_LINK = "The link was opened before, or is an hour old. Sign in with a key."
_BUSY = "The key has sent too many requests at once. Sign in again in a moment."

Form: TypeAlias = ImmutableMultiDict[str, str]
Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


class Door:
    """The console's part of authorization."""

    def __init__(self, settings: ApiSettings) -> None:
        self.needs_key = settings.api_token is not None
        self.signer = Signer(needs_key=self.needs_key)
        self.base = settings.api_base_path or ""
        self.renderer = Renderer(settings, self.signer, needs_key=self.needs_key)

    def path_of(self, raw: str) -> str:
        """Return the path of a request without the base path."""
        return within(self.base, raw)

    def is_page(self, request: Request) -> bool:
        """Return True for a request of the console."""
        return is_page(request.scope["path"], request.headers.get("accept", ""))

    def is_static(self, path: str) -> bool:
        """Return True for the address of a static file."""
        return path.startswith(_STATIC)

    def is_to_sign_in(self, path: str) -> bool:
        """Return True for an address that needs no sign-in."""
        return path in _TO_SIGN_IN

    def caller(self, request: Request) -> str | SignIn | Response:
        """Return the caller's allowance, its sign-in, or the way to the sign-in page."""
        path = request.scope["path"]
        if self.is_to_sign_in(path) or self.is_static(path):
            return "strangers"
        if path.endswith("/") and path != "/" and request.method in {"GET", "HEAD"}:
            return self._without_slash(request)
        if (found := sign_in_of(request)) is not None:
            return found
        if not self.needs_key:
            return "executors"
        return self._to_sign_in(request)

    def signed_in(self, request: Request, path: str, sign_in: SignIn) -> Response:
        """Lead to a page, with the cookie of a sign-in that begins now."""
        answer = self.renderer.lead_to(f"{self.base}{path}")
        self.renderer.set_cookie(request, answer, COOKIE, sign_in.text, seconds=int(LIFE.total_seconds()))
        return answer

    def shown(self, request: Request, answer: Response) -> Response:
        """Return a problem document as a page, where a page was requested."""
        if not request.scope.get(PAGE) or answer.media_type != "application/problem+json":
            return answer
        problem: dict[str, Any] = json.loads(bytes(answer.body))
        if problem["status"] == HTTPStatus.UNAUTHORIZED:
            return self._to_sign_in(request, ended=True)
        headers = {name: answer.headers[name] for name in ("retry-after", "allow") if name in answer.headers}
        return self.renderer.error(request, problem, headers, self._reader(request, problem["code"]))

    def _reader(self, request: Request, code: str) -> Visitor:
        """Return the reader of an error page, as far as it is known without a read."""
        sign_in: SignIn | None = request.scope.get(SIGN_IN)
        key: StoredKey | None = request.scope.get(KNOWN)
        named = request.query_params.get("tenant", "")
        tenant = named if is_tenant(named) and code not in _NO_TENANT else "default"
        if key is not None:
            many = key.tenant == ALL_TENANTS
            return Visitor(sign_in, key, tenant if many else key.tenant, many, frozenset(map(str, key.rights)))
        if sign_in is not None or self.needs_key:
            return Visitor(sign_in)
        return Visitor(tenant=tenant, many=True, scopes=frozenset(map(str, Scope)))

    def as_page(self, handler: Handler) -> Handler:
        """Return an error handler that answers requests of the console by pages."""

        async def handle(request: Request, error: Any) -> Response:  # noqa: ANN401 - as of Starlette
            return self.shown(request, await handler(request, error))

        return handle

    def _without_slash(self, request: Request) -> Response:
        """Return the way to the address without the slash at its end.

        Two slashes at its beginning would name another host.
        """
        query = request.scope["query_string"].decode("latin-1")
        at = f"{self.base}/{request.scope['path'].strip('/')}" + (f"?{query}" if query else "")
        return self.renderer.guarded(RedirectResponse(at, HTTPStatus.PERMANENT_REDIRECT))

    def _to_sign_in(self, request: Request, *, ended: bool = False) -> Response:
        """Return the way to the sign-in page, which leads back to a page that was read."""
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        back = "" if request.method != "GET" else path + (f"?{query}" if query else "")
        parts = [f"next={quote(back)}"] if back not in {"", "/"} else []
        parts += ["ended=1"] if ended else []
        at = f"{self.base}/sign-in" + (f"?{'&'.join(parts)}" if parts else "")
        answer = self.renderer.lead_to(at)
        if ended:
            self.renderer.delete_cookie(request, answer, COOKIE)
        return answer


async def read_form(request: Request, most_bytes: int = MOST_BYTES) -> Form:
    """Return the fields of a form: `form["a"]` is the last of a name, `form.getlist("a")` has all."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send a form, as {_FORM}")
    body, read_bytes = bytearray(), 0
    async with in_time():
        async for chunk in request.stream():
            read_bytes += len(chunk)
            if read_bytes > most_bytes + _DROPPED_BYTES:
                break
            body += chunk[: most_bytes - len(body)]
    if read_bytes > most_bytes:
        payload = f", a payload {size(MAX_PAYLOAD_BYTES)} of that" if most_bytes > MAX_PAYLOAD_BYTES else ""
        detail = f"this form accepts at most {size(most_bytes)}{payload}; nothing was saved"
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the form cannot be read") from error
    for name, text in fields:
        if "\x00" in text:  # which PostgreSQL cannot hold
            detail = f"the field {shown(name)} contains the NUL character; remove it"
            raise HTTPException(HTTPStatus.BAD_REQUEST, detail)
    return ImmutableMultiDict(fields)


def check_form(request: Request, form: Mapping[str, str], door: Door) -> None:
    """Refuse a form that no page of the console has sent.

    Browsers name the site of the sender to secure origins only; else the origin must be that of the request.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_foreign = site != "same-origin"
    if site is None:
        is_foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if is_foreign:
        raise HTTPException(HTTPStatus.FORBIDDEN, "a page of another site may not change anything here")
    if not door.signer.fits_form(request, form.get("token", "")):
        raise HTTPException(HTTPStatus.FORBIDDEN, "the form is out of date; reload the page and repeat the action")


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
            return self.door.renderer.lead_to(f"{self.door.base}/")
        query = request.query_params
        if (link := query.get("link")) is not None:
            return await self._open(request, link)
        return self._page(request, {"next": query.get("next", "")}, ended="ended" in query)

    async def _open(self, request: Request, link: str) -> Response:
        """Sign in by a link of `tidewheel dev`, which opens the console once."""
        if (made := await self.keys.open_link(link)) is None:
            return self._page(request, {}, wrong=_OLD_LINK)
        return self.door.signed_in(request, "/", made)

    async def sign_in(self, request: Request) -> Response:
        """Check the key, and set the cookie."""
        form = await read_form(request)
        check_form(request, form, self.door)
        made = await self._check(request, form)
        if not isinstance(made, SignIn):
            return self._page(request, form, wrong=made)
        return self.door.signed_in(request, local_path(form.get("next", "")), made)

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
            "wrong": wrong, "ended": ended, "next": local_path(form.get("next", "")),
            "name": form.get("name", ""), "host": request.url.netloc, "prefix": PREFIX,
        }  # fmt: skip
        return self.door.renderer.page(request, "sign-in.html", Visitor(), status=status, values=values)


def _is_plain(request: Request) -> bool:
    """Return True if a browser on another machine has sent the form by plain HTTP."""
    origin = request.headers.get("origin")
    given = urlsplit(origin if origin else str(request.url))
    return given.scheme == "http" and not is_loopback(given.hostname or "")
