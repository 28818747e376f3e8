"""Examples of answers, made from their schemas: a field has the same value in each.

A field that may be null is null, and one without a value here has a value of its type. So a new field of a record
needs no line, unless only one of its values says what it means.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tidewheel.jobs.strict_json import Json

RUN_ID = "019d3a1c-7f00-8123-8456-789abcdef012"
AT, _NEXT = "2026-11-20T01:00:00Z", "2026-11-21T01:00:00Z"
_NULL = {"type": "null"}
_TYPES: Mapping[type, Sequence[str]] = {
    bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",), list: ("array",),
    dict: ("object",), type(None): ("null",),
}  # fmt: skip
_OF_TYPE: Mapping[str, Json] = {"integer": 1, "number": 1.0, "boolean": False}
_OF_FORMAT: Mapping[str, Json] = {"uuid": RUN_ID, "date-time": AT, "date": "2026-11-20"}

VALUES: Mapping[str, Json] = {
    "key": "nightly", "tenant": "default", "queue": "default", "lane": "standard", "cause": "timer", "kind": "run",
    "run_id": RUN_ID, "job_id": "2f0b9a7e-6f6b-5d0c-9d2e-0c7a4f1b2a33", "key_id": "k3v9x0a1bc",
    "executor_id": "6c1f7c1e-1f5a-4d0e-9b57-0a3f6f2f7a10", "work_id": "3f2c6f6e-8a5d-4a44-8c7e-0d6f0d9a9c11",
    "backfill_id": "019d3a1c-7f00-8123-8456-789abcdef013", "state": "succeeded", "status": "succeeded",
    "outcome": "succeeded", "run_status": "queued", "when": "success", "started_at": "2026-11-20T01:00:00.021Z",
    "finished_at": "2026-11-20T01:00:04.221Z", "next_at": _NEXT, "next_run_at": _NEXT, "after": None,
    "zone": "Europe/Berlin", "timezone": "Europe/Berlin", "schedule": {"kind": "cron", "expressions": ["0 2 * * *"]},
    "labels": {"team": "billing"}, "handler": "nightly-report", "handlers": ["nightly-report"], "queues": ["default"],
    "version": 3, "job_version": 3, "duration": "PT4.2S", "oldest": "2s", "overdue_by": "0s", "rate": "100/min",
    "by": "anna", "name": "worker-1:7", "words": "One occurrence fires.", "what": "a transaction holds vacuum back",
    "evidence": "pid 4711 since 22 min", "remedy": "end it", "output": "7 rows\n", "content_type": "application/json",
    "known": True, "exact": True, "verified": True, "include_started": True, "accepted": True, "complete": True,
    "failed": 0, "timed_out": 0, "cancelled": 0, "rejected": 0, "rejected_count": 0, "pending": 0, "generation": 0,
    "failed_attempts": 0, "lost_attempts": 0, "consecutive_failures": 0, "why": None, "deletion": None, "span": None,
    "workflow": None, "freezes": [], "errors": [], "rejections": [], "others": [], "skipped": [], "previous": [],
}  # fmt: skip
"""Values of fields by their names."""


def example_of(schema: Mapping[str, Any], own: Mapping[str, Json]) -> Json:
    """Return an example of a schema with its definitions; `own` values come before those of all examples."""
    return _Examples({**VALUES, **own}, schema.get("$defs", {})).of(schema) if schema else dict(own)


class _Examples:
    def __init__(self, values: Mapping[str, Json], definitions: Mapping[str, Any]) -> None:
        self._values, self._definitions = values, {**definitions}

    def of(self, schema: Mapping[str, Any], name: str = "", within: Sequence[str] = ()) -> Json:
        """Return the example of a field, which is within objects of these definitions."""
        found = [(each.get("$ref", "").rpartition("/")[2], each) for each in schema.get("anyOf", [schema])]
        for _, each in found:
            self._definitions |= each.get("$defs", {})
        options = [(reference, self._definitions.get(reference, each)) for reference, each in found]
        if name in self._values and any(_fits(self._values[name], option) for _, option in options):
            return self._values[name]
        reference, first = options[0]
        is_nested = first.get("type") in {"object", "array"}
        if (_NULL in schema.get("anyOf", ()) and not is_nested) or reference in within:
            return None
        return self._of_one(first, name, (*within, reference) if reference else within)

    def _of_one(self, schema: Mapping[str, Any], name: str, within: Sequence[str]) -> Json:
        match schema:
            case {"enum": [first, *_]}:
                return cast("Json", first)
            case {"type": "object"}:
                return {each: self.of(part, each, within) for each, part in schema.get("properties", {}).items()}
            case {"type": "array", "items": items}:
                one = self.of(items, name, within)
                return [] if one is None else [one]
            case {"type": "string"}:
                return _OF_FORMAT.get(schema.get("format", ""), name)
            case _:
                return _OF_TYPE.get(schema.get("type", ""))


def _fits(value: Json, schema: Mapping[str, Any]) -> bool:
    """Return True if a value is one of a schema, as far as examples need it."""
    return schema.get("type") in _TYPES.get(type(value), ()) and value in schema.get("enum", [value])
