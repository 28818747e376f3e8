"""Examples for the OpenAPI document, and the one answer that REST has in a form of its own."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tidewheel.control.api.examples import JOB_ID, RUN_ID
from tidewheel.control.api.examples import RUN as RUN_EXAMPLE
from tidewheel.control.api.json_schemas import schema_of
from tidewheel.doors.rest import Route
from tidewheel.jobs.strict_json import Json
from tidewheel.nouns.dead_letters.model import DeadLetterDetail, DeadLetterSummary
from tidewheel.nouns.runs.routes import RUN, with_attempts
from tidewheel.nouns.works.routes import WORK_ID


@dataclass(frozen=True, slots=True)
class DeadLetter(DeadLetterSummary):
    """A dead letter with its run, or with its message."""

    run: Mapping[str, Any] | None
    message_key_base64: str | None
    message_value_base64: str | None


def _shape(found: DeadLetterDetail) -> DeadLetter:
    """Return a dead letter with its run as the routes of runs return one, and with its message as base64."""
    summary = {each.name: getattr(found, each.name) for each in fields(DeadLetterSummary)}
    run = None if found.run is None else with_attempts(found.run)
    return DeadLetter(**summary, run=run, message_key_base64=_base64(found.message_key),
                      message_value_base64=_base64(found.message_value))  # fmt: skip


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


_SCHEMA = schema_of(DeadLetter)
_SCHEMA["properties"]["run"] = {"anyOf": [RUN, {"type": "null"}]}

_AT = "2026-11-20T01:00:00Z"
_LETTER: dict[str, Json] = {
    "id": 41, "kind": "run", "run_id": RUN_ID, "key": "nightly", "job_id": JOB_ID, "status": "failed", "cause": "timer",
    "queue": "default", "lane": "standard", "attempt": 5, "error_type": "TimeoutError", "topic": None,
    "partition": None, "offset": None, "reason": "no retry is left", "created_at": _AT, "redriven_run_id": None,
    "redriven_at": None,
}  # fmt: skip
_MATCHED: dict[str, Json] = {"matched": 12, "at_least": False, "first": []}

DEAD_LETTERS: Mapping[str, Route] = {
    "list": Route({"dead_letters": [_LETTER], "next_cursor": None, "total": 1, "at_least": False}),
    "groups": Route({"looked_at": 12, "at_least": False, "groups": [{
        "kind": "run", "key": "nightly", "job_id": JOB_ID, "error_type": "TimeoutError", "status": "failed",
        "count": 12, "first_at": _AT, "last_at": "2026-11-21T01:00:00Z", "versions": [2, 3], "current_version": 3,
    }]}),
    "get": Route(
        {**_LETTER, "run": RUN_EXAMPLE, "message_key_base64": None, "message_value_base64": None},
        schema=_SCHEMA, shape=_shape,
    ),
    "redrive": Route({"work_id": WORK_ID, **_MATCHED}, sent={"error_type": "TimeoutError", "rate": 10}),
    "purge": Route({"work_id": WORK_ID, **_MATCHED}, sent={"job": "nightly", "redriven": True}),
}  # fmt: skip
