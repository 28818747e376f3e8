"""Examples for the OpenAPI document, and the answer that REST has in a form of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidewheel.control.api.examples import RESUMPTION
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw: `unchanged` if the scope was frozen, or thawed, already."""

    unchanged: bool


_FREEZE: Json = {
    "tenant": "default", "queue": "reports", "labels": None, "key_prefix": None, "by": "anna",
    "reason": "printer swap", "since": "2026-11-20T01:00:00Z",
}  # fmt: skip
_CHANGED: Json = {"unchanged": False}
FREEZES: Mapping[str, Route] = {
    "list": Route({"freezes": [{"freeze": _FREEZE, "jobs": None, "open_runs": 340, "waiting": 312, "held": 14}]}),
    "preview_thaw": Route(RESUMPTION),
    "freeze": Route(_CHANGED, sent={"queue": "reports", "reason": "printer swap", "by": "anna"}, shape=ChangedFreeze),
    "thaw": Route(_CHANGED, sent={"queue": "reports"}, shape=ChangedFreeze),
}
