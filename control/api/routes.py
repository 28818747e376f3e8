"""Derived routes of REST: the bodies that the document shows, and answers in a form of their own."""

from dataclasses import dataclass

from tidewheel.control.api.answers import TRACEPARENT
from tidewheel.doors.rest import Route, Routes
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.batches.operations import ChangedBatch, CreatedBatch
from tidewheel.nouns.workflows.operations import ChangedWorkflow

_REASON: Json = {"reason": "maintenance"}
_WORK: dict[str, Json] = {"kind": "redrive", "state": "running", "rate": 10.0}
_BATCH: dict[str, Json] = {"state": "open", "ref": "load"}
_SUBMITTED: Json = {
    "runs": [{"ref": "load", "key": "nightly"}, {"ref": "report", "key": "nightly", "after": [{"ref": "load"}]}],
    "on": {"finished": {"key": "nightly", "payload": {"order": 7}}},
}

AUDIT_LOG: Routes = {"list": Route(values={"action": "job.submit", "object": "job/nightly", "door": "rest"})}
OVERVIEW: Routes = {
    "now": Route(
        values={"kind": "failing_job"},
        prepare=lambda caller, arguments: arguments.update(sees_fleet=caller.sees_fleet),
    ),
    **dict.fromkeys(("activity", "upcoming", "backlog", "slowest", "executors", "shards", "status"), Route()),
    "ask": Route(values={"kind": "job", "target": "nightly"}),
}
WORKS: Routes = {
    "list": Route(values=_WORK),
    "get": Route(values=_WORK),
    "pause": Route(_REASON, values={"status": "paused"}),
    "resume": Route(values={"status": "running"}),
    "cancel": Route(_REASON, values={"status": "cancelled"}),
}
BATCHES: Routes = {
    "submit": Route(_SUBMITTED, shape=CreatedBatch, headers=TRACEPARENT),
    "add": Route({"runs": [{"ref": "more", "key": "nightly"}]}, shape=ChangedBatch),
    "close": Route(shape=ChangedBatch),
    "resume": Route({}, shape=ChangedBatch),
    "cancel": Route(_REASON, shape=ChangedBatch),
    "get": Route(values=_BATCH),
    "list": Route(values=_BATCH),
}
OCCURRENCES: Routes = {"next": Route(values={"outcome": "scheduled"}), "explain": Route(values={"outcome": "fired"})}
JOB_TIMES: Routes = {"timeline": Route(), "calendar": Route(), "preview_resume": Route()}
LIMITS: Routes = {
    "set": Route({"key": "api/*", "at_once": 3, "rate": "100/min"}),
    "remove": Route({"key": "api/*"}),
    "list": Route(values={"key": "api/*"}),
    "keys": Route(values={"key": "api/acme"}),
}
ORDERING_KEYS: Routes = {"blocked": Route(values={"key": "acme"}), "unblock": Route({"key": "acme"})}
WORKFLOWS: Routes = {
    "list": Route(),
    "get": Route(),
    "pause": Route(_REASON, shape=ChangedWorkflow),
    "resume": Route({}, shape=ChangedWorkflow),
    "parents": Route(),
    "cancel": Route(_REASON, shape=ChangedWorkflow),
}


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw; `unchanged` if the scope was already frozen, or thawed."""

    unchanged: bool


FREEZES: Routes = {
    "list": Route(),
    "preview_thaw": Route(),
    "freeze": Route({"queue": "reports", "reason": "printer swap", "by": "anna"}, shape=ChangedFreeze),
    "thaw": Route({"queue": "reports"}, shape=ChangedFreeze),
}
