"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.control.api.examples import RUN_ID
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json

_AT = "2026-11-20T01:00:00Z"
_LIMIT: dict[str, Json] = {
    "key": "api/*", "at_once": 3, "rate": "100/min", "burst": 1, "running": 3, "waiting": 12,
}  # fmt: skip
_SET: dict[str, Json] = {**_LIMIT, "set_by": "anna, with ci (rest)", "set_at": _AT, "keys": 1}
_CHANGED: Json = {"unchanged": False, "started": 2, "complete": True}
_BLOCKED: Json = {"key": "acme", "blocked_by": RUN_ID, "blocked_at": _AT, "retried_by": None, "waiting": 12}

LIMITS: Mapping[str, Route] = {
    "set": Route(_CHANGED, sent={"key": "api/*", "at_once": 3, "rate": "100/min"}),
    "remove": Route(_CHANGED, sent={"key": "api/*"}),
    "list": Route({"limits": [_SET], "next_cursor": None}),
    "keys": Route({"keys": [{**_LIMIT, "key": "api/acme", "next_at": None}], "next_cursor": None}),
}
ORDERING_KEYS: Mapping[str, Route] = {
    "blocked": Route({"keys": [_BLOCKED], "next_cursor": None}),
    "unblock": Route({"run_id": RUN_ID, "skipped": False}, sent={"key": "acme"}),
}
