"""Turn a template and its values into a page: frame, headers, cookies, the words of one not found."""

import gzip
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from secrets import token_urlsafe
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from urllib.parse import unquote
from uuid import uuid4

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tidewheel.control.api.key_check import StoredKey
from tidewheel.control.console import payloads, words
from tidewheel.control.console.urls import PATHS, Urls, place_of
from tidewheel.ids import instant_of, read_uuid
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.api_keys.sign_ins import (
    DONE_COOKIE,
    FORM_COOKIE,
    LOOKS,
    PREFIXES,
    ZONE_COOKIE,
    Signer,
    SignIn,
    cookie_of,
)
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.settings.services import ApiSettings

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'; manifest-src 'self'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every page."""

PART = "tidewheel-part"
"""The header of a script's request for a part of a page: the message of an action waits for a whole page."""

ZONE = "tidewheel.zone"
"""The zone of a page, in the scope of a request whose address has lost it."""

_HERE = Path(__file__).parent
_TYPES = {
    ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain", ".woff2": "font/woff2",
}  # fmt: skip
_LONGEST_WORDS = 400
_NO_ORIGIN = {PATHS[name] for name in ("overview", "freeze", "freeze_scope", "thaw", "sign_in")}  # no action leads back
_FOREVER = "public, max-age=31536000, immutable"

_THING = re.compile(
    r"/(jobs|runs|calendars|dead-letters|workflows|batches|bulk/[a-z]+|admin/tenants|admin/keys)/([^/]+)"
)
_NOUNS = {"jobs": "job", "runs": "run", "calendars": "calendar", "dead-letters": "dead letter", "workflows": "workflow",
          "batches": "batch", "admin/tenants": "tenant", "admin/keys": "key"}  # fmt: skip
_KEPT = "By default, finished runs are kept for 90 days. An archive may have older runs."
_RUN_ID_VERSION = 8


class StaticFile(NamedTuple):
    """A file below `/static/`, packed once: strangers read it without a turn."""

    content: bytes
    packed: bytes
    digest: str
    media_type: str


class Visitor(NamedTuple):
    """The reader of a page, as its frame shows it.

    Args:
        sign_in: None where no key is needed, and before it signs in.
        many: True if it may name other tenants.
        frozen: The freezes that it sees, each with the parts of the address of its thaw.
        wrong: What is wrong at a place of the rail, in a word; empty for nothing.
        replica_problem: Why the page was read from the primary; empty if no read replica is set, or it was used.
    """

    sign_in: SignIn | None = None
    key: StoredKey | None = None
    tenant: str = "default"
    many: bool = False
    scopes: frozenset[str] = frozenset()
    frozen: Sequence[tuple[Freeze, Mapping[str, object]]] = ()
    wrong: Mapping[str, str] = MappingProxyType({})
    replica_problem: str = ""

    def can(self, scope: str) -> bool:
        """Return True if it has a scope: only then a page shows the actions that need it."""
        return scope in self.scopes


class Renderer:
    """Renders pages; `needs_key` is false where the API needs no keys."""

    def __init__(self, settings: ApiSettings, signer: Signer, *, needs_key: bool) -> None:
        self._base, self._signer, self._needs_key = settings.api_base_path or "", signer, needs_key
        self._name = settings.console_name or ("" if needs_key else "development, no keys")
        self.static = _static_files()
        self._digests = {name: file.digest for name, file in self.static.items()}

    def urls(self, visitor: Visitor) -> Urls:
        """Return the writer of links of one page."""
        return Urls(self._base, self._digests, visitor.tenant if visitor.many and visitor.tenant != "default" else None)

    def page(
        self,
        request: Request,
        template: str,
        visitor: Visitor,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        values: Mapping[str, object],
    ) -> Response:
        """Return a page, with the cookie that its forms need if the browser has none."""
        given = cookie_of(request, FORM_COOKIE)
        form_cookie = given or token_urlsafe(24)
        page_zone_name, zone = zone_of_page(request)
        query = request.scope["query_string"].decode("latin-1")
        done = None if PART in request.headers else self._signer.unseal(request, cookie_of(request, DONE_COOKIE))
        here = "/" + request.scope["path"].lstrip("/") + (f"?{query}" if query else "")  # `//host` is another site
        text = _templates().get_template(template).render(
            url=self.urls(visitor), **_looks_of(request), page_zone=zone, page_zone_name=page_zone_name,
            form_token=self._signer.form_token(request, form_cookie), here=here, place=place_of(here),
            given=request.query_params, origin=None if request.scope["path"] in _NO_ORIGIN else here, visitor=visitor,
            can=visitor.can, done=done, request_id=str(uuid4()), installation=self._name,
            is_open=visitor.sign_in is not None or not self._needs_key, **values,
        )  # fmt: skip
        answer = HTMLResponse(text.encode("utf-8", "replace"), status, dict(headers or {}))
        if not given:
            self.set_cookie(request, answer, FORM_COOKIE, form_cookie)
        if done is not None:
            self.delete_cookie(request, answer, DONE_COOKIE)
        return self.guarded(answer)

    def done(self, request: Request, to: str, words: str, undo: tuple[str, str] | None) -> Response:
        """Lead to the next page, which shows the message of an action, with its undo."""
        answer = self.lead_to(to)
        text = self._signer.seal(request, [words[:_LONGEST_WORDS], *(undo or (None, None))])
        self.set_cookie(request, answer, DONE_COOKIE, text, seconds=60)
        return answer

    def lead_to(self, address: str) -> Response:
        """Return the way to another page."""
        return self.guarded(RedirectResponse(address, HTTPStatus.SEE_OTHER))

    def error(
        self, request: Request, problem: Mapping[str, Any], headers: Mapping[str, str], visitor: Visitor
    ) -> Response:
        """Return a problem as a page in the frame of the others."""
        values: Mapping[str, object] = {
            "problem": problem, "retry_after": headers.get("retry-after"),
            "is_read": request.method in {"GET", "HEAD"},
            "lost": lost(request.scope["path"]) if problem["status"] == HTTPStatus.NOT_FOUND else None,
        }  # fmt: skip
        return self.page(request, "error.html", visitor, status=problem["status"], headers=headers, values=values)

    def file(self, request: Request, digest: str, name: str) -> Response | None:
        """Return a static file; None if there is none of this name and digest."""
        found = self.static.get(name)
        if found is None or found.digest != digest:
            return None
        headers = {"Cache-Control": _FOREVER, "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(found.content, headers=headers, media_type=found.media_type)
        return Response(found.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=found.media_type)

    def set_cookie(
        self, request: Request, answer: Response, name: str, value: str, *, seconds: int | None = None
    ) -> None:
        """Set a cookie that no script reads and no other site sends.

        By https its name begins with `__Host-`, so that no other host of the domain sets it; with `__Secure-` below a
        base path, since `__Host-` takes none. Browsers refuse both by plain HTTP. Behind a proxy the forms name the
        scheme.
        """
        secure = request.headers.get("origin", "").startswith("https://") or request.url.scheme == "https"
        prefix = "" if not secure else "__Secure-" if self._base else "__Host-"
        answer.set_cookie(
            prefix + name, value, max_age=seconds, path=self._base or "/", httponly=True, samesite="strict",
            secure=secure,
        )  # fmt: skip

    def delete_cookie(self, request: Request, answer: Response, name: str) -> None:
        """Delete a cookie under each name that the browser has it."""
        for prefix in PREFIXES:
            if prefix + name in request.cookies:
                answer.delete_cookie(prefix + name, path=self._base or "/", secure=bool(prefix))

    @staticmethod
    def guarded(answer: Response) -> Response:
        """Set the headers of every page."""
        answer.headers.update(HEADERS)
        return answer


def zone_of_page(request: Request) -> tuple[str, tzinfo]:
    """Return the zone of a page with its name: that of its address, or that of the browser, or UTC."""
    if ZONE in request.scope:
        return cast("tuple[str, tzinfo]", request.scope[ZONE])
    for name in (request.query_params.get("tz", ""), cookie_of(request, ZONE_COOKIE)):
        if (zone := words.zone_of(name)) is not None:
            return name, zone
    return "UTC", UTC


def _looks_of(request: Request) -> Mapping[str, str]:
    """Return what the reader has chosen of the looks of pages, by name."""
    chosen = ((name, cookie_of(request, f"tidewheel-{name}"), values) for name, values in LOOKS.items())
    return {name: value if value in values else values[0] for name, value, values in chosen}


class Lost(NamedTuple):
    """The thing that an address names by `ref`; `words` about its age are empty where nothing is known."""

    noun: str
    ref: str
    words: str

    @property
    def name(self) -> str:
        """Its key, its name or its id."""
        return self.ref.removeprefix("id:")


def lost(path: str) -> Lost | None:
    """Return what an address names; None if it names no thing.

    >>> lost("/jobs/a%2Fb/versions")
    Lost(noun='job', ref='a/b', words='')
    >>> lost("/runs/019d3a1c-7f00-8123-8456-789abcdef012").words.partition(". ")[0]
    'Its time is 2026-03-29T15:00:39.296000Z'
    >>> lost("/nowhere")
    """
    found = _THING.match(path)
    if found is None:
        return None
    noun, ref = _NOUNS.get(found[1], "request"), unquote(found[2])
    return Lost(noun, ref, _age_of_run(ref) if noun in {"run", "workflow", "batch"} else "")


# Files of the release: a process that makes several applications reads, packs and compiles each once.
@cache
def _static_files() -> Mapping[str, StaticFile]:
    return {path.name: _read(path) for path in (_HERE / "static").iterdir()}


@cache
def _templates() -> Environment:
    made = Environment(
        autoescape=True, undefined=StrictUndefined, loader=FileSystemLoader(_HERE / "templates"), trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters.update(words.FILTERS)
    made.filters.update(payloads.FILTERS)
    return made


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, gzip.compress(content, mtime=0), sha256(content).hexdigest()[:12], _TYPES[path.suffix])


def _age_of_run(name: str) -> str:
    try:
        run_id = read_uuid(name)
        at = instant_of(run_id)
    except (ValueError, OverflowError):
        return ""
    return f"Its time is {format_timestamp(at)}. {_KEPT}" if run_id.version == _RUN_ID_VERSION else _KEPT
