"""Addresses of the console: one function writes every link, and one expression recognizes every page.

The base path is that of a reverse proxy. A request is understood with it and without it, so the proxy may remove it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urlencode
from uuid import UUID

from tidewheel.ids import read_uuid
from tidewheel.nouns.dead_letters.operations import DeadLetters
from tidewheel.nouns.operation import Noun, operations
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.works.operations import WORKS

_OWN: Mapping[str, str] = {
    "overview": "/",
    "jobs": "/jobs",
    "job_new": "/jobs/new",
    "job": "/jobs/{ref}",
    "jobs_pause": "/selected-jobs/pause",
    "jobs_resume": "/selected-jobs/resume",
    "runs": "/runs",
    "runs_cancel_matching": "/runs/cancel-all",
    "slow_runs": "/runs/slow",
    "run": "/runs/{run_id}",
    "workflows": "/workflows",
    "workflow": "/workflows/{root_run_id}",
    "batches": "/batches",
    "batch": "/batches/{batch_id}",
    "dead_letters": "/dead-letters",
    "dead_letter": "/dead-letters/{number}",
    "bulk": "/bulk",
    "bulk_work": "/bulk/{kind}/{id}",
    "bulk_pause": "/bulk/{kind}/{id}/pause",
    "bulk_resume": "/bulk/{kind}/{id}/resume",
    "bulk_cancel": "/bulk/{kind}/{id}/cancel",
    "freeze": "/freeze",
    "thaw": "/thaw",
    "ask": "/ask",
    "fleet": "/fleet",
    "doctor_run": "/fleet/doctor",
    "tenants": "/admin/tenants",
    "tenant": "/admin/tenants/{name}",
    "tenant_new": "/admin/new-tenant",
    "keys": "/admin/keys",
    "key_new": "/admin/new-key",
    "key_revoke": "/admin/keys/{key_id}/revoke",
    "audit": "/admin/audit",
    "calendars": "/calendars",
    "calendar": "/calendars/{name}",
    "calendar_new": "/new-calendar",
    "sign_in": "/sign-in",
    "sign_out": "/sign-out",
    "theme": "/theme",
    "live": "/live",
    "static": "/static/{digest}/{name}",
    "api": "/api/v1/{path}",
}
_BELOW: Mapping[str, str] = {
    "job": "next settings skip move unskip edit versions rollback trigger backfill release delete restore pause resume",
    "runs": "cancel retry",
    "run": "log lines cancel retry",
    "workflow": "pause resume cancel",
    "batch": "close resume cancel",
    "tenant": "limits delete undelete",
    "calendar": "edit delete",
    "freeze": "scope",
}
"""Pages and actions whose names and paths are those of a place with a word more."""
_CONFIRMED: Mapping[str, type[Noun]] = {"dead_letters": DeadLetters, "runs": Runs}
PATHS: Mapping[str, str] = {
    **_OWN,
    **{f"{place}_{each}": f"{_OWN[place]}/{each}" for place, words in _BELOW.items() for each in words.split()},
    **{
        f"{place}_{name}": f"{_OWN[place]}/{name.replace('_', '-')}"
        for place, noun in _CONFIRMED.items()
        for name, each in operations(noun).items()
        if each.starts == WORKS
    },
}
"""The places by their names in templates; each operation that starts a work has one."""

_OURS_FIRST = sorted({path.split("/")[1] for path in PATHS.values()} - {"", "api"})
_LED_BACK_TO = sorted(set(_OURS_FIRST) - {"sign-in", "sign-out", "theme", "live", "static"})
_PAGE = re.compile(rf"/|/(?:{'|'.join(_OURS_FIRST)})(?:/.*)?", re.DOTALL)
_BACK = re.compile(rf"/|/(?:{'|'.join(_LED_BACK_TO)})(?:/[^/]+)*")
_ELSEWHERE = re.compile(r"/(?:api(?:/.*)?|healthz|readyz)", re.DOTALL)
_READABLE = re.compile(r"[A-Za-z0-9._~-]{1,128}", re.ASCII)
_OURS = frozenset({"new", ".", ".."})
_BY_ID = "id:"


@dataclass(frozen=True, slots=True)
class Urls:
    """Writer of the addresses of one page.

    Args:
        tenant: The tenant that links name; None where the key has one tenant, or the default one is meant.
    """

    base: str
    digests: Mapping[str, str]
    tenant: str | None = None

    def __call__(self, name: str, /, **parts: object) -> str:
        """Return the address of a place; the query has the parts that its path lacks, without None.

        A list becomes a repeated parameter.

        >>> Urls("/ops", {})("run", run_id="a b", tab=None, at="1/2")
        '/ops/runs/a%20b?at=1%2F2'
        >>> Urls("", {})("jobs", label=["a=b", "c=d"])
        '/jobs?label=a%3Db&label=c%3Dd'
        """
        path, query = PATHS[name], dict(parts)
        for part in re.findall(r"{(\w+)}", path):
            path = path.replace(
                f"{{{part}}}", str(query.pop(part)) if part == "path" else quote(str(query.pop(part)), safe=":")
            )
        if self.tenant is not None and name != "static":
            query = {"tenant": self.tenant, **query}
        lists = {
            key: cast("list[object]", value) if isinstance(value, list) else [value] for key, value in query.items()
        }
        text = urlencode([(key, str(each)) for key, values in lists.items() for each in values if each is not None])
        return f"{self.base}{path}" + (f"?{text}" if text else "")

    def api(self, *segments: object, **query: object) -> str:
        """Return the address of a route of REST.

        >>> Urls("", {}).api("jobs", "a/b 50%", "calendar", month="2027-03")
        '/api/v1/jobs/a%2Fb%2050%25/calendar?month=2027-03'
        """
        return self("api", path="/".join(quote(str(segment), safe="") for segment in segments), **query)

    def here(self, path: str) -> str:
        """Return the address of a page from its path and query, as it was requested without the base path."""
        return f"{self.base}{path}"

    def static(self, name: str) -> str:
        """Return the address of a static file, which changes with its content."""
        return self("static", digest=self.digests[name], name=name)

    def job(self, key: str, job_id: UUID, name: str = "job", **parts: object) -> str:
        """Return the address of a job, or of one of its pages and actions."""
        return self(name, ref=ref_of(key, job_id), **parts)


def ref_of(key: str, job_id: UUID) -> str:
    """Return the part of an address that names a job: its key, or its id if a proxy would change the key.

    >>> ref_of("nightly", UUID(int=1)), ref_of("a/b", UUID(int=1))
    ('nightly', 'id:00000000-0000-0000-0000-000000000001')
    """
    return key if _READABLE.fullmatch(key) and key not in _OURS else f"{_BY_ID}{job_id}"


def read_ref(ref: str) -> str | UUID | None:
    """Return the key or the id that an address names; None if it names neither."""
    if not ref.startswith(_BY_ID):
        return ref if _READABLE.fullmatch(ref) else None
    try:
        return read_uuid(ref.removeprefix(_BY_ID))
    except ValueError:
        return None


def within(base: str, path: str) -> str:
    """Return a path without the base path.

    >>> within("/ops", "/ops/jobs"), within("/ops", "/ops"), within("/ops", "/opsy"), within("", "/jobs")
    ('/jobs', '/', '/opsy', '/jobs')
    """
    return path[len(base) :] or "/" if base and (path == base or path.startswith(f"{base}/")) else path


def place_of(path: str) -> str:
    """Return the place in the rail of an address; another word where it has none.

    >>> [place_of(path) for path in ("/", "/dead-letters/7?tenant=a", "/new-calendar", "/ask")]
    ['overview', 'dead_letters', 'calendars', 'ask']
    """
    first = re.split("[/?]", path)[1]
    return {"": "overview", "selected-jobs": "jobs", "new-calendar": "calendars"}.get(first, first.replace("-", "_"))


def is_page(path: str, accepted: str) -> bool:
    """Return True for the console's own addresses, and for unknown ones that a browser opens.

    >>> [is_page(path, "text/html") for path in ("/jobs/a", "/nowhere", "/api/v1/jobs", "/healthz")]
    [True, True, False, False]
    >>> is_page("/nowhere", "")
    False
    """
    if _PAGE.fullmatch(path):
        return True
    return "text/html" in accepted and not _ELSEWHERE.fullmatch(path)


def local_path(text: str) -> str:
    """Return an address to go on to after a form, `/` for all that leaves the console.

    >>> [local_path(text) for text in ("/jobs?prefix=a", "//example.org/", "https://example.org/", "/sign-out")]
    ['/jobs?prefix=a', '/', '/', '/']
    """
    plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= 2048
    path = text.partition("?")[0]
    return text if plain and _BACK.fullmatch(path) else "/"
