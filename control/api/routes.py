"""Derived routes of REST: the bodies that the document shows, and answers in a form of their own."""

from dataclasses import dataclass

from tidewheel.control.api.answers import TRACEPARENT
from tidewheel.doors.rest import Route, Routes
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.batches.operations import ChangedBatch, CreatedBatch
from tidewheel.nouns.workflows.operations import ChangedWorkflow

_REASON: Json = {"reason": "maintenance"}
_SUBMITTED: Json = {
    "runs": [{"ref": "load", "key": "nightly"}, {"ref": "report", "key": "nightly", "after": [{"ref": "load"}]}],
    "on": {"finished": {"key": "nightly", "payload": {"order": 7}}},
}

AUDIT_LOG: Routes = {"list": Route()}
OVERVIEW: Routes = {
    "now": Route(prepare=lambda caller, arguments: arguments.update(sees_fleet=caller.sees_fleet)),
    **dict.fromkeys(("activity", "upcoming", "backlog", "slowest", "ask", "executors", "shards", "status"), Route()),
}
WORKS: Routes = {
    **dict.fromkeys(("list", "get", "resume"), Route()),
    **dict.fromkeys(("pause", "cancel"), Route(_REASON)),
}
BATCHES: Routes = {
    "submit": Route(_SUBMITTED, shape=CreatedBatch, headers=TRACEPARENT),
    "add": Route({"runs": [{"ref": "more", "key": "nightly"}]}, shape=ChangedBatch),
    "close": Route(shape=ChangedBatch),
    "resume": Route({}, shape=ChangedBatch),
    "cancel": Route(_REASON, shape=ChangedBatch),
    **dict.fromkeys(("get", "list"), Route()),
}
OCCURRENCES: Routes = dict.fromkeys(("next", "explain"), Route())
JOB_TIMES: Routes = dict.fromkeys(("timeline", "calendar", "preview_resume"), Route())
LIMITS: Routes = {
    "set": Route({"key": "api/*", "at_once": 3, "rate": "100/min"}),
    "remove": Route({"key": "api/*"}),
    **dict.fromkeys(("list", "keys"), Route()),
}
ORDERING_KEYS: Routes = {"blocked": Route(), "unblock": Route({"key": "acme"})}
WORKFLOWS: Routes = {
    **dict.fromkeys(("list", "get", "parents"), Route()),
    "pause": Route(_REASON, shape=ChangedWorkflow),
    "resume": Route({}, shape=ChangedWorkflow),
    "cancel": Route(_REASON, shape=ChangedWorkflow),
}


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw; `unchanged` if the scope was already frozen, or thawed."""

    unchanged: bool


FREEZES: Routes = {
    **dict.fromkeys(("list", "preview_thaw"), Route()),
    "freeze": Route({"queue": "reports", "reason": "printer swap", "by": "anna"}, shape=ChangedFreeze),
    "thaw": Route({"queue": "reports"}, shape=ChangedFreeze),
}
