"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json

_AT = "2026-11-20T01:00:00Z"
WORK_ID = "3f2c6f6e-8a5d-4a44-8c7e-0d6f0d9a9c11"
_WORK: Json = {
    "work_id": WORK_ID, "kind": "redrive", "state": "running",
    "filter": {"kind": "run", "error_type": "TimeoutError", "redriven": False, "since": "1970-01-01T00:00:00Z",
               "until": _AT},
    "rate": 10.0, "matched_count": 12, "done_count": 3, "rejected_count": 0, "rejections": [], "reason": None,
    "created_at": _AT, "finished_at": None, "facts": {},
}  # fmt: skip
_PAUSED: Json = {"status": "paused", "unchanged": False}
_REASON: Json = {"reason": "maintenance"}

WORKS: Mapping[str, Route] = {
    "list": Route({"works": [_WORK], "next_cursor": None}),
    "get": Route(_WORK),
    "pause": Route(_PAUSED, sent=_REASON),
    "resume": Route(_PAUSED),
    "cancel": Route(_PAUSED, sent=_REASON),
}
