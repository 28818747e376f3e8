"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.control.api.examples import RUN_ID
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.workflows.model import ChangedWorkflow

_WORKFLOW: dict[str, Json] = {
    "root_run_id": RUN_ID, "key": "nightly", "state": "failed", "scheduled_at": "2026-11-20T01:00:00Z",
    "generation": 0, "pending": 0, "failed": 1, "reason": None, "created_at": "2026-11-20T01:00:04.3Z",
    "finished_at": "2026-11-20T01:02:11Z",
}  # fmt: skip
_SHOWN: Json = {"summary": _WORKFLOW, "nodes": [
    {"key": "nightly", "state": "succeeded", "parents": [], "run_id": RUN_ID, "reason": None, "attempt": 1,
     "started_at": "2026-11-20T01:00:00.021Z", "finished_at": "2026-11-20T01:00:04.221Z"},
    {"key": "mail", "state": "failed", "parents": [{"key": "nightly", "when": "success"}],
     "run_id": "019d3a1c-7f00-8123-8456-789abcdef077", "reason": None, "attempt": 4,
     "started_at": "2026-11-20T01:02:09Z", "finished_at": "2026-11-20T01:02:11Z"},
], "again": ["mail"]}  # fmt: skip
_PARENT: Json = {
    "key": "extract", "when": "success", "status": "succeeded", "run_id": RUN_ID, "result": {"rows": 7},
    "result_bytes": 10, "left_out": False, "expired": False,
}  # fmt: skip
_CHANGED: Json = {"root_run_id": RUN_ID, "unchanged": False}

WORKFLOWS: Mapping[str, Route] = {
    "list": Route({"workflows": [_WORKFLOW], "next_cursor": None}),
    "get": Route(_SHOWN),
    "pause": Route(_CHANGED, sent={"reason": "maintenance"}, shape=ChangedWorkflow),
    "resume": Route(_CHANGED, sent={}, shape=ChangedWorkflow),
    "parents": Route({"parents": [_PARENT]}),
    "cancel": Route(_CHANGED, sent={"reason": "maintenance"}, shape=ChangedWorkflow),
}
