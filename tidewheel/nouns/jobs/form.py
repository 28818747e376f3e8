"""The form of a job: a job as typed text, and typed text as a job.

A field whose text is as it was keeps its value as submitted. So a form without a change is an identical spec,
and what the form lacks stays as it is.

A payload has fields too, by the JSON schema of the model that its handler declares.
"""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from tidewheel.control.reads.stored import read_stored_json
from tidewheel.errors import FieldError, InvalidInput, UndecodableMessage
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object, read_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.nouns.jobs.fields import FIELDS, NOTHING, SCHEDULES, Kind, SpecField, json_text, put, text_of, value_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

Job = Mapping[str, object]
_KEYS = ("concurrency_key", "ordering_key")
_EMPTIED = ("labels", "retry", *_KEYS, "dedupe")  # objects that an emptied form leaves out

_READ_PAYLOAD_SCHEMA = Statements("tidewheel.control")["read_payload_schema"]
_PAYLOAD = next(each for each in FIELDS if each.path == "payload")
_NAME = re.compile(r"[\w-]+")  # others would be no part of a path
_MOST = 50  # fields: the JSON has all
_DEEPEST = 8  # references to references
_LOST = re.compile(r"[\x00-\x08\x0b-\x1f]")  # browsers change or drop these characters
_NULL = {"type": "null"}
_KINDS: Mapping[tuple[object, object], Kind] = {
    ("string", "date-time"): "moment", ("string", None): "string", ("integer", None): "whole",
    ("number", None): "real", ("boolean", None): "flag",
}  # fmt: skip
"""Kinds by type and format; other formats of a string are texts."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A job as it was typed, with what cannot be read: errors with paths from the job."""

    job: dict[str, object]
    errors: tuple[FieldError, ...] = ()


def typed(job: Job) -> dict[str, str]:
    """Return a job as the texts of the form, by the names of its fields.

    >>> typed({"key": "a", "schedule": {"cron": ["0 8 * * *"]}, "labels": {"team": "x"}})
    {'key': 'a', 'schedule': 'cron', 'target': '', 'schedule.cron': '0 8 * * *', 'labels': 'team=x'}
    """
    schedule, target = (as_object(job.get(name)) or {} for name in ("schedule", "target"))
    texts = {
        "key": str(job.get("key") or ""),
        "schedule": next((kind for kind in SCHEDULES if kind in schedule), ""),
        "target": str(target["type"]) if target.get("type") in TARGETS else "",
    }
    for field in FIELDS:
        value = at_path(job, field.names)
        if value is not NOTHING and (not field.only or field.only in texts.values()):
            texts[field.path] = text_of(field, value)
    return texts


def draft_of(form: Mapping[str, str], base: Job) -> Draft:
    """Return the job that a form describes, on top of the version that it was made from."""
    was, job, errors = typed(base), deepcopy(dict(base)), list[FieldError]()
    kinds = {name: form.get(name, was[name]) for name in ("schedule", "target")}
    for name, kind in kinds.items():
        if kind != was[name]:
            job[name] = _empty(name, kind)
            was = {path: text for path, text in was.items() if not path.startswith(f"{name}.")}
    for field in FIELDS:
        if field.only and field.only not in kinds.values():
            continue
        text = _plain(form.get(field.path, was.get(field.path, "")))
        if text != _plain(was.get(field.path, "")):
            _put(job, field, text, errors)
    if key := form.get("key", "").strip():
        job["key"] = key
    emptied = [name for name in _EMPTIED if job.get(name) == {} and base.get(name) != {}]
    return Draft({name: value for name, value in job.items() if name not in emptied}, tuple(errors))


def retyped(texts: Mapping[str, str], before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a job as it is now, with those that were typed over its texts before.

    >>> retyped({"lane": "batch", "queue": "a"}, {"lane": "", "queue": "a"}, {"lane": "", "queue": "b"})
    {'lane': 'batch', 'queue': 'b'}
    >>> before = {"schedule": "cron", "schedule.cron": "0 1 * * *", "schedule_to_start": ""}
    >>> typed_over = {**before, "schedule.cron": "0 2 * * *"}
    >>> retyped(typed_over, before, {"schedule": "interval", "schedule.interval": "5m", "schedule_to_start": "1h"})
    {'schedule': 'cron', 'schedule.interval': '5m', 'schedule_to_start': '1h', 'schedule.cron': '0 2 * * *'}
    """
    mine = {name for name, text in texts.items() if _plain(text) != _plain(before.get(name, ""))}
    for kind in ("schedule", "target"):  # fields of another kind would be left out
        parts = {name for name in texts if f"{name}.".startswith(f"{kind}.")}
        if mine & parts and texts.get(kind) != now.get(kind):
            mine |= parts
    return {**now, **{name: texts[name] for name in mine}}


def draft_of_json(text: str) -> Draft:
    """Return the job that JSON text describes."""
    try:
        return Draft(read_object(text.encode("utf-8", "surrogatepass")))
    except UndecodableMessage as error:
        return Draft({}, (FieldError("", str(error), "write the job as a JSON object"),))


def errors_by_field(
    errors: Sequence[FieldError], fields: Sequence[SpecField] = ()
) -> tuple[dict[str, list[FieldError]], list[FieldError]]:
    """Return the errors by the fields of the form that they concern, and those that concern none.

    >>> at, other = errors_by_field([FieldError("job.retry.intervals.0", "a", ""), FieldError("job.owner", "b", "")])
    >>> list(at), [each.path for each in other]
    (['retry.intervals'], ['owner'])
    """
    names = sorted({"key", "schedule", "target", *(each.path for each in (*FIELDS, *fields))}, key=len, reverse=True)
    at: dict[str, list[FieldError]] = {}
    others: list[FieldError] = []
    for each in errors:
        error = replace(each, path=each.path.removeprefix("job.") if each.path != "job" else "")
        name = next((name for name in names if f"{error.path}.".startswith(f"{name}.")), None)
        (others if name is None else at.setdefault(name, [])).append(error)
    return at, others


def at_path(job: Job, path: Sequence[str]) -> object:
    """Return the value at a path; `NOTHING` if there is none."""
    value: object = job
    for name in path:
        below = as_object(value)
        if below is None or name not in below:
            return NOTHING
        value = below[name]
    return value


def normalised(job: Job) -> dict[str, object]:
    """Return a job with objects for schedule, target and keys; what cannot be read stays.

    >>> normalised({"schedule": "manual", "target": "send-email"})
    {'schedule': {'manual': True}, 'target': {'type': 'handler', 'name': 'send-email'}}
    """
    found = dict(job)
    if isinstance(found.get("target"), str):
        found["target"] = {"type": "handler", "name": found["target"]}
    for name in _KEYS:
        if isinstance(found.get(name), str):
            found[name] = {"key": found[name]}
    if isinstance(text := found.get("schedule"), str):
        found["schedule"] = {"manual": True} if text.strip() == "manual" else {"cron": [text.strip()]}
    if isinstance((schedule := as_object(found.get("schedule")) or {}).get("cron"), str):
        found["schedule"] = {**schedule, "cron": [schedule["cron"]]}
    return found


def read_payload_fields(connection: Conn, handler: str) -> Sequence[SpecField]:
    """Return the fields of a handler's payload; none if no executor has recorded its schema."""
    row = connection.execute(_READ_PAYLOAD_SCHEMA, {"handler": handler}, binary=True).fetchone()
    if row is None or not isinstance(row[0], str):
        return ()
    return payload_fields(as_object(read_stored_json("payload_schema", row[0], handler)) or {})


def payload_fields(schema: Mapping[str, object]) -> list[SpecField]:
    """Return the fields of an object's properties; a property of another type has none.

    >>> payload_fields({"properties": {"to": {"type": "string"}, "of": {"type": "array"}}})[0].path
    'payload.to'
    """
    definitions = as_object(schema.get("$defs")) or {}
    whole = _resolved(schema, definitions)
    required = as_list(whole.get("required")) or ()
    found = [
        _field(name, _resolved(as_object(part) or {}, definitions), is_required=name in required)
        for name, part in (as_object(whole.get("properties")) or {}).items()
        if _NAME.fullmatch(name)
    ]
    return [each for each in found if each is not None][:_MOST]


def split_payload(text: str, fields: Sequence[SpecField]) -> dict[str, str] | None:
    r"""Return a payload as the texts of its fields and the JSON of the rest; None if it is no object.

    A value that its field cannot show exactly, such as null, stays with the rest.

    >>> split_payload('{"depot": 4, "b": []}', payload_fields({"properties": {"depot": {"type": "integer"}}}))
    {'payload.depot': '4', 'payload': '{\n  "b": []\n}'}
    """
    try:
        payload = _object_of(text)
    except InvalidValue:
        return None
    found = {each.label: text_of(each, payload[each.label]) for each in fields if _is_exact(each, payload)}
    rest = {name: value for name, value in payload.items() if name not in found}
    typed = {each.path: found.get(each.label, "") for each in fields}
    return typed | {"payload": json_text(rest) if text.strip() else ""}


def join_payload(texts: Mapping[str, str], fields: Sequence[SpecField], was: Mapping[str, object]) -> str:
    """Return the JSON text of a payload from the texts of its fields and the JSON of the rest.

    Args:
        was: The payload before, whose order remains: jobs with another order differ.

    Raises:
        InvalidInput: A text cannot be read, with the path of its field.
    """
    given = {each: text for each in fields if (text := texts.get(each.path, "").replace("\r\n", "\n")).strip()}
    if not given:
        return texts.get("payload", "")
    found, rest, errors = dict[str, object](), dict[str, object](), list[FieldError]()
    for field, text in given.items():
        try:
            found[field.label] = value_of(field, text)
        except InvalidValue as error:
            errors += [replace(each, path=field.path) for each in error.errors]
    try:
        rest = _object_of(texts.get("payload", ""))
    except InvalidValue as error:
        errors += [replace(each, path="payload") for each in error.errors]
    if twice := ", ".join(repr(each.label) for each in given if each.label in rest):
        errors.append(FieldError("payload", f"{twice}: typed into the fields above, too", "write each value once"))
    if errors:
        raise InvalidInput(errors)
    made = {**found, **rest}
    return json_text({name: made[name] for name in (*was, *made) if name in made})


def _empty(name: str, kind: str) -> dict[str, object]:
    if name == "target":
        return {"type": kind}
    return {kind: True if kind == "manual" else [] if kind in {"cron", "after"} else ""}


def _put(job: dict[str, object], field: SpecField, text: str, errors: list[FieldError]) -> None:
    if not text.strip():  # a schedule keeps its kind, and is refused at that field
        empty: object = list[object]() if field.kind in {"list", "parents"} else ""
        put(job, field.names, empty if field.path == f"schedule.{field.only}" else NOTHING)
        return
    try:
        put(job, field.names, value_of(field, text))
    except InvalidValue as error:
        errors.extend(replace(each, path=field.path) for each in error.errors)


def _plain(text: str) -> str:
    """Return typed text with the line ends of JSON: browsers send others."""
    return text.replace("\r\n", "\n")


def _is_exact(field: SpecField, payload: Mapping[str, object]) -> bool:
    """Return True if a value comes back from its field as it was."""
    if field.label not in payload:
        return False
    value = payload[field.label]
    text = text_of(field, value)
    try:
        return bool(text.strip()) and not _LOST.search(text) and value_of(field, text) == value
    except InvalidValue:
        return False


def _object_of(text: str) -> dict[str, object]:
    """Return the object that a JSON text describes; an empty one for no text."""
    found = as_object(value_of(_PAYLOAD, text)) if text.strip() else {}
    if found is None:
        raise InvalidValue(problem="is no object, and has fields", remedy="write an object, or empty the fields above")
    return found


def _resolved(part: Mapping[str, object], definitions: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema with what it refers to in its place, and without its null."""
    for _ in range(_DEEPEST):
        choices = [each for each in as_list(part.get("anyOf")) or () if each != _NULL]
        below = choices[0] if len(choices) == 1 else None
        if isinstance(name := part.get("$ref"), str):
            below = definitions.get(name.rpartition("/")[2])
        if (found := as_object(below)) is None:
            break
        part = {**found, **{name: value for name, value in part.items() if name not in {"$ref", "anyOf"}}}
    return part


def _field(name: str, part: Mapping[str, object], *, is_required: bool) -> SpecField | None:
    values = as_list(part.get("enum")) or ([part["const"]] if "const" in part else ())
    types = part.get("type") if isinstance(part.get("type"), str) else None  # a list of types is typed as JSON
    kind = _KINDS.get((types, str(part.get("format")))) or _KINDS.get((types, None))
    options: tuple[str, ...] = ("true", "false") if kind == "flag" else ()
    if values:
        kind = "string" if all(isinstance(each, str) for each in values) else "json"
        options = tuple(str(each) if kind == "string" else json.dumps(each) for each in values)
    if kind is None:
        return None
    default = part.get("default")
    text = default if isinstance(default, str) else "" if default is None else json.dumps(default)
    example = "Such as 2026-12-24T08:00:00Z." if kind == "moment" else ""
    help = " ".join(filter(None, (str(part.get("description", "")), example, "Required." if is_required else "")))
    return SpecField(f"payload.{name}", name, kind, options=options, default=text, help=help)
