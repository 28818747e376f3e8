"""The flags that describe a job, from the table of its fields, applied to a file or to the stored job.

A flag replaces only the field that it names: a new cron expression keeps the zone, a label keeps the other labels.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

from tidewheel.control.cli.job_files import read_bytes
from tidewheel.control.cli.options import read_labels
from tidewheel.control.cli.parser import option, switch
from tidewheel.control.instants import read_instant
from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.schedule import CronSpec, read_schedule
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.fields import FIELDS, SpecField, put, value_of

_METAVARS = {
    "span": "DURATION",
    "number": "N",
    "instant": "TIME",
    "json": "JSON",
    "pairs": "NAME=VALUE",
    "parents": "KEY",
}
_SEVERAL = frozenset({"list", "pairs", "parents"})
_BY_NAME = {f"field_{each.path.replace('.', '_')}": each for each in FIELDS if each.flag}
_FILE = Annotated[str | None, option("FILE", "The job as JSON or YAML; - is standard input.", "--file", "-f")]
_TZ = Annotated[
    str | None,
    option(
        "ZONE", "IANA time zone for the cron schedule (default: the tenant's, or UTC), and for times without an offset."
    ),
]
_MANUAL = Annotated[bool, switch("Manual: only triggers start runs.", "--manual")]


@dataclass(frozen=True, slots=True)
class JobFlags:
    """The values of a job's flags; `given` has those of its fields."""

    file: str | None
    tz: str | None
    manual: bool
    given: Mapping[SpecField, Any]

    def fields(self, start: str) -> Mapping[str, SpecField]:
        """Return the fields that are given and whose paths start so, by the rest of their paths."""
        return {each.path.removeprefix(start): each for each in self.given if each.path.startswith(start)}


def with_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the argument `flags` of a command by the options of a job."""

    @wraps(command)
    def gathered(**given: Any) -> None:  # noqa: ANN401 - as typer has read them
        values = {each: given.pop(name) for name, each in _BY_NAME.items()}
        found = {each: value for each, value in values.items() if value is not None and value != []}
        flags = JobFlags(given.pop("file"), given.pop("tz"), given.pop("manual"), found)
        command(**given, flags=flags)

    own = inspect.signature(command, eval_str=True).parameters
    first, *others = _flag("file", _FILE), _flag("tz", _TZ), _flag("manual", _MANUAL, default=False)
    others += [_flag(name, _option_of(each)) for name, each in _BY_NAME.items()]
    shown = [first, *(each for name, each in own.items() if name != "flags"), *others]
    shown.sort(key=lambda each: each.kind)
    vars(gathered)["__signature__"] = inspect.Signature(shown)
    gathered.__annotations__ = {each.name: each.annotation for each in shown}
    return gathered


def described(job: Mapping[str, object], flags: JobFlags) -> dict[str, object]:
    """Return a job with the values of the flags in place of its own."""
    changed = deepcopy(dict(job))
    changed |= {"schedule": schedule} if (schedule := _schedule(job.get("schedule"), flags)) else {}
    changed |= {"target": target} if (target := _target(job.get("target"), flags)) else {}
    for each, given in flags.given.items():
        if each.path == "payload":
            changed.pop("payload_base64", None)
        if each.kind == "pairs":
            given = {**(as_object(job.get(each.path)) or {}), **read_labels(given)}
        if each.names[0] not in {"schedule", "target"}:
            put(changed, each.names, _value(each, given, flags))
    return changed


def without(job: Mapping[str, object], paths: list[str]) -> dict[str, object]:
    """Return a job without some of its fields, which then have defaults; `labels.team` is one label."""
    changed = dict(job)
    for path in paths:
        first, _, rest = path.partition(".")
        if first not in changed or (rest and as_object(changed[first]) is None):
            refuse("--unset", f"the job does not set {path!r}", f"name one of its fields: {', '.join(changed)}")
        value = changed.pop(first)
        if rest:
            changed[first] = without(as_object(value) or {}, [rest])
    return changed


def read_payload(text: str) -> object:
    """Return the JSON value of a flag, or of the file that it names after an @; refuse what is not JSON."""
    try:
        return json.loads(read_bytes(text[1:], "--payload") if text.startswith("@") else text.encode())
    except UnicodeError:
        refuse("--payload", f"{text[:60]!r} is not valid UTF-8", "write JSON text in UTF-8")
    except ValueError as error:
        problem = f"{text[:60]!r} is not valid JSON ({error})"
        refuse("--payload", problem, 'write JSON text, such as \'{"to": "ann"}\' or \'"ann"\'')


def _value(each: SpecField, given: Any, flags: JobFlags) -> object:  # noqa: ANN401 - as typer has read it
    """Return the value of a field in the form of a request."""
    match each.kind:
        case "number" | "pairs":
            return given
        case "json":
            return read_payload(given)
        case "instant":
            return format_timestamp(read_instant(given, each.flag, flags.tz, ahead=True))
        case _:
            try:
                return value_of(each, "\n".join(given) if each.kind in _SEVERAL else given)
            except InvalidValue as error:
                raise InvalidInput(
                    [FieldError(each.flag, part.problem, part.remedy) for part in error.errors]
                ) from error


def _schedule(current: object, flags: JobFlags) -> Mapping[str, object]:
    """Return the schedule with the flags applied; empty if no flag concerns it."""
    given = flags.fields("schedule.")
    kinds = {name: each.flag for name, each in given.items() if name == each.only}
    kinds |= {"manual": "--manual"} if flags.manual else {}
    if len(kinds) > 1:
        problem = f"{' and '.join(kinds.values())} cannot be combined"
        refuse("schedule", problem, "keep one; several --cron or --after are one schedule")
    cron = _cron(current)
    begun = cron if kinds.keys() <= {"cron"} else {}
    values = {name: _value(each, flags.given[each], flags) for name, each in given.items()}
    values |= {"manual": True} if flags.manual else {}
    # A zone that only reads times without an offset is not stored in a schedule without a zone.
    reads = {"schedule.once", "start_at", "end_at"} & {each.path for each in flags.given}
    if flags.tz is not None and ("cron" in {**begun, **values} or not reads):
        values["timezone"] = flags.tz
    return {**(begun or ({} if kinds else as_object(current) or {})), **values} if values else {}


def _cron(current: object) -> dict[str, object]:
    """Return a cron schedule as an object, even if it is a bare string; empty for another kind."""
    if isinstance(current, str):
        try:
            read = read_schedule(current)
        except InvalidValue:
            return {}
        return {"cron": list(read.cron)} if isinstance(read, CronSpec) else {}
    schedule = as_object(current) or {}
    return dict(schedule) if "cron" in schedule else {}


def _target(current: object, flags: JobFlags) -> Mapping[str, object]:
    """Return the target with the flags applied, another type whole; empty if no flag concerns it."""
    given = flags.fields("target.")
    kinds = {each.only: each.flag for name, each in given.items() if name == TARGETS[each.only].sets}
    if len(kinds) > 1:
        refuse("target", f"{' and '.join(kinds.values())} cannot be combined", "keep one")
    kind, flag = next(iter(kinds.items()), ("http", ""))
    if wrong := next((each for each in given.values() if each.only != kind), None):
        refuse("target", f"{wrong.flag} cannot be used with {flag}", "leave it out")
    target = as_object(current) or {}
    values = {name: _value(each, flags.given[each], flags) for name, each in given.items()}
    return {**(target if target.get("type") == kind else {"type": kind}), **values} if values else {}


def _option_of(each: SpecField) -> Any:  # noqa: ANN401 - an annotation
    kind: Any = int if each.kind == "number" else list[str] if each.kind in _SEVERAL else str
    metavar = each.metavar or _METAVARS.get(each.kind, "POLICY" if each.options else "TEXT")
    return Annotated[kind | None, option(metavar, each.flag_help, each.flag)]


def _flag(name: str, kind: object, *, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
