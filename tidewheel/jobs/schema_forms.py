"""JSON schemas of requests: the forms that a client may send, where a model keeps another one."""

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_SHORT_FORMS = frozenset(
    {"schedule", "target", "cron", "concurrency_key", "ordering_key"}
)  # fields that may be a text too
_DURATION: Mapping[str, object] = {
    "description": "A duration, such as 90s, 5m, PT1H, or a number of seconds",
    "anyOf": [{"type": "string"}, {"type": "number"}],
}


class Forms(GenerateJsonSchema):
    """Schemas of what is sent, where that differs from what a model keeps."""

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        """Return the schema of a duration."""
        del schema
        return dict(_DURATION) if self.mode == "validation" else {"type": "string"}

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Return the schema of a payload: any JSON value."""
        del schema
        return {} if self.mode == "validation" else {"type": "string"}


def allow_short_forms(schema: dict[str, Any]) -> None:
    """Allow a text in place of a schedule, a target or a cron expression, in a schema and its definitions."""
    for owner in (schema, *schema.get("$defs", {}).values()):
        for name in _SHORT_FORMS & owner.get("properties", {}).keys():
            owner["properties"][name] = {"anyOf": [owner["properties"][name], {"type": "string"}]}
