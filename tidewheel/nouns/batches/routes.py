"""Examples for the OpenAPI document."""

from collections.abc import Mapping

from tidewheel.control.api.answers import TRACEPARENT
from tidewheel.control.api.examples import RUN_ID
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.batches.model import ChangedBatch, CreatedBatch

_AT = "2026-11-20T01:00:00Z"
_BATCH: dict[str, Json] = {
    "batch_id": RUN_ID, "state": "open", "accepts_runs": False, "generation": 0, "total": 2, "pending": 1,
    "succeeded": 1, "failed": 0, "cancelled": 0, "first_failed_run_id": None, "reason": None, "created_at": _AT,
    "finished_at": None,
}  # fmt: skip
_RUNS: Json = [
    {"ref": "load", "key": "nightly", "run_id": RUN_ID, "state": "succeeded", "parents": [], "reason": None,
     "attempt": 1, "started_at": _AT, "finished_at": _AT},
    {"ref": "report", "key": "nightly", "run_id": RUN_ID, "state": "running",
     "parents": [{"ref": "load", "when": "success"}], "reason": None, "attempt": 1, "started_at": _AT,
     "finished_at": None},
]  # fmt: skip
_SUBMITTED: Json = {
    "runs": [{"ref": "load", "key": "nightly"}, {"ref": "report", "key": "nightly", "after": [{"ref": "load"}]}],
    "on": {"finished": {"key": "nightly", "payload": {"order": 7}}},
}
_CHANGED: Json = {"batch_id": RUN_ID, "unchanged": False}

BATCHES: Mapping[str, Route] = {
    "submit": Route({"batch_id": RUN_ID}, sent=_SUBMITTED, shape=CreatedBatch, headers=TRACEPARENT),
    "add": Route(_CHANGED, sent={"runs": [{"ref": "more", "key": "nightly"}]}, shape=ChangedBatch),
    "close": Route(_CHANGED, shape=ChangedBatch),
    "resume": Route(_CHANGED, sent={}, shape=ChangedBatch),
    "cancel": Route(_CHANGED, sent={"reason": "maintenance"}, shape=ChangedBatch),
    "get": Route({"summary": _BATCH, "runs": _RUNS}),
    "list": Route({"batches": [_BATCH], "next_cursor": None}),
}
