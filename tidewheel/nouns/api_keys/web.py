"""API keys on the web: the pages, and what REST adds to its derived routes."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import PREFIX, Scope
from tidewheel.audit import ALL_TENANTS
from tidewheel.control.api.authorization import KEY, Caller, ensure_all_tenants, ensure_shows_key
from tidewheel.control.api.request_input import Cursors, PageQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, no_change, request_id_of, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, list_view, page_now, read_filters
from tidewheel.control.console.words import when
from tidewheel.control.instants import typed_number
from tidewheel.doors.address import after_of, next_cursor
from tidewheel.doors.rest import Route, Routes
from tidewheel.errors import FieldError, refuse
from tidewheel.nouns.api_keys.operations import ApiKeys, ApiKeySummary, list_api_keys, show_api_key
from tidewheel.nouns.operation import Page, operations

_SCOPES = {
    Scope.READ: "look at jobs, runs and pages",
    Scope.WRITE: "create, edit, trigger, delete and roll back jobs, edit calendars",
    Scope.OPERATE: "pause and backfill jobs, skip occurrences, cancel and retry runs, purge dead letters, freeze",
    Scope.ADMIN: "all of these, and tenants, keys and the audit log",
    Scope.EXECUTE: "run jobs of every queue, as an executor in another language",
}

_LOOKED_AT = 1_000  # keys of a tenant
_CREATE, _LIST = operations(ApiKeys)["create"], operations(ApiKeys)["list"]


@dataclass(frozen=True, slots=True)
class KeysPage:
    """The list of keys."""

    template: ClassVar[str] = "keys.html"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List keys, newest first: those of every tenant, unless the address names one."""
        query, errors = read_filters(request, PageQuery)
        every = caller.all_tenants and "tenant" not in request.query_params

        def listed() -> tuple[Page[ApiKeySummary], str | None]:
            cursors = Cursors.of_list("keys", query, ALL_TENANTS if every else caller.tenant)
            page = ApiKeys(connection).list(all_tenants=every, after=after_of(cursors, _LIST), limit=query.limit)
            return page, next_cursor(cursors, page.next_cursor)

        def about(page: Page[ApiKeySummary]) -> dict[str, object]:
            return {"rows": page, "own": _own(request), "prefix": PREFIX, "every": every}

        return list_view("keys", query, listed, errors=errors, now=page_now(connection), urls=urls, of_page=about)


@dataclass(frozen=True, slots=True)
class NewKey:
    """Create a key. Its secret is in the answer alone: no cookie, no address and no later page has it."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a key."""
        once = "The next page shows the key once."
        whose = f"tenant {caller.tenant}"
        everywhere = [Field("all_tenants", "Valid for all tenants", "check", help=f"Otherwise only for {whose}.")]
        return Dialog(
            "New key", "Create the key", urls("keys"),
            will=(once if _own(request) else "Refused without a sign-in: run `tidewheel admin api-key create`.",),
            fields=(
                Field("name", "Name", required=True, help="Shown in lists and in the audit log."),
                *(Field(each, each, "check", help=words) for each, words in _SCOPES.items()),
                *(everywhere if caller.all_tenants else ()),
                Field("lifetime", "Expires after (optional)", help="Such as 90d, or never; by default 365d."),
                Field("rate", "Requests per second (optional)", "number", help="If empty, the API's default."),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create it."""
        ensure_shows_key(caller)
        given: dict[str, object] = {
            "name": form.get("name", "").strip(), "scopes": [each for each in _SCOPES if text_of(form, each)],
            "all_tenants": text_of(form, "all_tenants") is not None, "request_id": request_id_of(form),
        }  # fmt: skip
        if rate := text_of(form, "rate"):
            given["rate"] = typed_number(rate) or rate
        if lifetime := text_of(form, "lifetime"):
            given["lifetime"] = None if lifetime == "never" else lifetime
        if given["all_tenants"]:
            ensure_all_tenants(caller)
        made = _CREATE.call(ApiKeys, connection, _CREATE.checked(given))
        return Done(urls("keys"), "", shown=("key.html", {"secret": made.key, "made": made.summary}))


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """Revoke a key."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a revocation ends."""
        key = _shown(connection, caller, request)
        if key.revoked_at is not None:
            return no_change(f"Revoke key {key.name}?", urls("keys"), f"{key.name} is revoked already.")
        used = "It was never used."
        if key.last_used_at is not None:
            used = f"It was last used {when(key.last_used_at, page_now(connection))}."
        last = _last_admin(connection, caller, key)
        own = ("You are signed in with it: your session ends too.",) if key.key_id == _own(request) else ()
        return Dialog(
            f"Revoke key {key.name}?", f"Revoke {key.name}", urls("keys"), danger=True,
            will=("Within a second, its requests are refused and its console sessions end.", *own, used),
            stays=("What it has changed stays. A revocation cannot be undone: create a new key.",),
            warnings=(
                () if last is None else (FieldError("", last, f"to revoke {key.name} nevertheless, type its name"),)
            ),
            fields=() if last is None else (Field("typed", f"Type {key.name} to revoke it", required=True),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Revoke it."""
        key = _shown(connection, caller, request)
        if form.get("typed", "").strip() != key.name and _last_admin(connection, caller, key) is not None:
            refuse("typed", "this is not the name of the key", f"type {key.name}")
        changed = ApiKeys(connection).revoke(key.key_id, all_tenants=caller.all_tenants)
        return Done(urls("keys"), f"Key {key.name} {'is' if changed else 'was already'} revoked.")


def _last_admin(connection: Connection, caller: Caller, key: ApiKeySummary) -> str | None:
    """Return a sentence if no other key of the same tenants has the scope admin, among the newest ones."""
    now = page_now(connection)
    with connection.snapshot(all_tenants=caller.all_tenants) as reading:
        found = list_api_keys(reading, key.tenant, limit=_LOOKED_AT)
    valid = {
        each.key_id
        for each in found
        if Scope.ADMIN in each.scopes and not each.revoked_at and (each.expires_at is None or each.expires_at > now)
    }
    if valid != {key.key_id} or found.next_cursor is not None:
        return None
    whose = "all tenants" if key.tenant == ALL_TENANTS else f"tenant {key.tenant}"
    return (
        f"The key {key.name} is the last one that is valid for {whose} and has the scope admin. "
        "Create another such key first"
    )


def _own(request: Request) -> str | None:
    """Return the id of the key by which this page was opened."""
    key = request.scope.get(KEY)
    return key.key_id if key else None


def _shown(connection: Connection, caller: Caller, request: Request) -> ApiKeySummary:
    """Return the key of the address; one of another tenant is unknown."""
    with connection.snapshot(all_tenants=caller.all_tenants) as reading:
        return show_api_key(reading, None if caller.all_tenants else caller.tenant, request.path_params["key_id"])


API_KEYS: Routes = {
    "create": Route(
        prepare=lambda caller, _: ensure_shows_key(caller),
        status=HTTPStatus.CREATED,
        gives={"Cache-Control": "no-store"},
    ),
    "revoke": Route(prepare=lambda caller, arguments: arguments.update(all_tenants=caller.all_tenants)),
}
