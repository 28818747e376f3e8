"""The form of a job: a job as typed text, and typed text as a job.

A field whose text is as it was keeps its value as submitted. So a form without a change is an identical spec,
and what the form lacks stays as it is.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from tidewheel.errors import FieldError, UndecodableMessage
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_object, read_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.nouns.jobs.fields import FIELDS, NOTHING, SCHEDULES, SpecField, put, text_of, value_of

Job = Mapping[str, object]
_KEYS = ("concurrency_key", "ordering_key")
_EMPTIED = ("labels", "retry", *_KEYS, "dedupe")  # objects that an emptied form leaves out


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
