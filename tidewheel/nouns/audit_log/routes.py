"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json

_ENTRY: Json = {
    "id": 7, "at": "2026-11-20T01:00:00Z", "tenant": "default", "door": "rest", "actor_kind": "key", "actor": "ci",
    "verified": True, "named": "anna", "key_id": "k3v9x0a1bc", "action": "job.submit", "object": "job/nightly",
    "request_id": None, "version_before": 2, "version_after": 3, "objects": 1, "result": "accepted", "reason": None,
}  # fmt: skip

AUDIT_LOG: Mapping[str, Route] = {"list": Route({"next_cursor": None, "entries": [_ENTRY]})}
