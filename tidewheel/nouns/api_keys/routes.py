"""Examples for the OpenAPI document, and what callers of REST may not do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tidewheel.control.api.callers import Caller, ensure_shows_key
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.api_keys.model import RevokedKey

_KEY: Json = {
    "key_id": "k3v9x0a1bc", "name": "ci", "tenant": "default", "scopes": ["write"], "rate": None,
    "created_at": "2026-11-20T01:00:00Z", "expires_at": "2027-02-18T01:00:00Z", "revoked_at": None,
    "last_used_at": None, "queues": None,
}  # fmt: skip


def _with_a_key(caller: Caller, _: dict[str, Any]) -> None:
    ensure_shows_key(caller)


def _of_the_caller(caller: Caller, arguments: dict[str, Any]) -> None:
    arguments["all_tenants"] = caller.all_tenants


API_KEYS: Mapping[str, Route] = {
    "create": Route(
        {"key": "tw_k3v9x0a1bc_…", "summary": _KEY},
        sent={"name": "ci", "scopes": ["write"], "lifetime": "90d"},
        prepare=_with_a_key,
        status=HTTPStatus.CREATED,
        gives={"Cache-Control": "no-store"},
    ),
    "list": Route({"keys": [_KEY], "next_cursor": None}),
    "revoke": Route({"key_id": "k3v9x0a1bc", "unchanged": False}, shape=RevokedKey, prepare=_of_the_caller),
}
