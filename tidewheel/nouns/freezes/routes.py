"""Examples for the OpenAPI document, and the answer that REST has in a form of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidewheel.control.api.examples import RESUMPTION
from tidewheel.control.api.json_schemas import schema_of
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw: `unchanged` if the scope was frozen, or thawed, already."""

    unchanged: bool


def _changed(sent: Json) -> Route:
    schema = schema_of(ChangedFreeze)
    return Route({"unchanged": False}, sent=sent, schema=schema, shape=lambda changed: ChangedFreeze(not changed))


_FREEZE: Json = {
    "tenant": "default", "queue": "reports", "labels": None, "key_prefix": None, "by": "anna",
    "reason": "printer swap", "since": "2026-11-20T01:00:00Z",
}  # fmt: skip
FREEZES: Mapping[str, Route] = {
    "list": Route({"freezes": [{"freeze": _FREEZE, "jobs": None, "open_runs": 340, "waiting": 312, "held": 14}]}),
    "preview_thaw": Route(RESUMPTION),
    "freeze": _changed({"queue": "reports", "reason": "printer swap", "by": "anna"}),
    "thaw": _changed({"queue": "reports"}),
}
