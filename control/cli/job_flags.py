"""The flags that describe a job, applied to a file or to the stored job.

A flag replaces only the field that it names: a new cron expression keeps the zone, a label keeps the other labels.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, get_args

import typer

from tidewheel.control.cli.job_files import read_bytes
from tidewheel.control.cli.options import read_labels
from tidewheel.control.instants import SECONDS, read_instant
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.schedule import CronSpec, ParentSpec, read_schedule
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import Overlap


def _option(help: str, metavar: str, *names: str) -> object:
    return typer.Option(*names, metavar=metavar, help=help)


_OVERLAP = f"If a run of the job is active: {', '.join([*Overlap][:-1])} or {[*Overlap][-1]}."
_TARGET_OPTIONS = {
    kind: Annotated[str | None, _option(target.help, target.metavar, target.flag)] for kind, target in TARGETS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlags:
    """The values of a job's flags; None if a flag is not given."""

    file: Annotated[str | None, _option("The job as JSON or YAML; - is standard input.", "FILE", "--file", "-f")] = None
    cron: Annotated[list[str] | None, _option("Schedule: a cron expression; repeatable.", "EXPR")] = None
    tz: Annotated[
        str | None, _option("IANA time zone of the cron schedule, and of times without an offset.", "ZONE")
    ] = None
    dst_gap: Annotated[
        str | None, _option("For a local time that the clock skips: shift_forward or skip.", "POLICY")
    ] = None
    dst_overlap: Annotated[
        str | None, _option("For a local time that occurs twice: first, second or both.", "POLICY")
    ] = None
    every: Annotated[str | None, _option("Schedule: an interval such as 10s.", "DURATION")] = None
    fixed_delay: Annotated[str | None, _option("Schedule: the delay after the end of each run.", "DURATION")] = None
    at: Annotated[str | None, _option("Schedule: once, at this time.", "TIME")] = None
    manual: Annotated[bool, typer.Option("--manual", help="Manual: only triggers start runs.")] = False
    parents: Annotated[
        list[str] | None,
        _option("Schedule: after this job's runs; =failure or =always is the condition; repeatable.", "KEY", "--after"),
    ] = None
    start_at: Annotated[str | None, _option("No occurrence before this time.", "TIME")] = None
    end_at: Annotated[str | None, _option("No occurrence after this time.", "TIME")] = None
    max_runs: Annotated[int | None, _option("The schedule ends after this many occurrences.", "N")] = None
    jitter: Annotated[
        str | None,
        _option("The largest random delay of a run: a duration, or a part of the interval such as 10%.", "SPAN"),
    ] = None
    targets: Mapping[str, str] = field(default_factory=dict[str, str], metadata={"options": _TARGET_OPTIONS})
    method: Annotated[str | None, _option("HTTP method for --url, such as POST or GET.", "METHOD")] = None
    payload: Annotated[str | None, _option("Payload as JSON text; @FILE reads it from a file.", "JSON")] = None
    overlap: Annotated[str | None, _option(_OVERLAP, "POLICY")] = None
    catch_up: Annotated[str | None, _option("For missed occurrences: fire_once, fire_all or skip.", "POLICY")] = None
    window: Annotated[
        str | None, _option("The greatest age of a missed occurrence that fire_all still runs.", "DURATION")
    ] = None
    on_resume: Annotated[str | None, _option("For occurrences in a pause: skip, fire_once or fire_all.", "POLICY")] = (
        None
    )
    pause_on_failure: Annotated[int | None, _option("Pause the job after this many failed runs in a row.", "N")] = None
    exclude_calendars: Annotated[
        list[str] | None, _option("Do not fire on this calendar's days; repeatable.", "NAME", "--exclude-calendar")
    ] = None
    include_calendars: Annotated[
        list[str] | None, _option("Fire only on this calendar's days; repeatable.", "NAME", "--include-calendar")
    ] = None
    on_excluded: Annotated[
        str | None, _option("For occurrences on excluded days: skip or next_business_day.", "POLICY")
    ] = None
    concurrency_key: Annotated[
        str | None, _option("Let one run with this key at a time be active; a file sets other limits.", "KEY")
    ] = None
    ordering_key: Annotated[
        str | None, _option("Start the runs with this key one after another; a file sets on_failure.", "KEY")
    ] = None
    max_attempts: Annotated[int | None, _option("The run fails after this many failed attempts.", "N")] = None
    start_to_close: Annotated[str | None, _option("Time limit of one attempt.", "DURATION")] = None
    schedule_to_start: Annotated[
        str | None, _option("Time limit until the first attempt of a run starts.", "DURATION")
    ] = None
    schedule_to_close: Annotated[str | None, _option("Time limit of a run, retries included.", "DURATION")] = None
    heartbeat: Annotated[str | None, _option("The longest time between two heartbeats of an attempt.", "DURATION")] = (
        None
    )
    delivery: Annotated[str | None, _option("Delivery guarantee: at_least_once or at_most_once.", "GUARANTEE")] = None
    on_failure: Annotated[str | None, _option("Job to trigger when a run fails for good.", "KEY")] = None
    lane: Annotated[str | None, _option("Priority: critical, standard or batch.", "LANE")] = None
    priority: Annotated[int | None, _option("Rank inside the lane, 0 to 9: 9 goes first.", "N")] = None
    queue: Annotated[str | None, _option("Queue of its runs, for executors that serve it.", "NAME")] = None
    history_limit: Annotated[int | None, _option("Keep this many finished runs of the job.", "N")] = None
    label: Annotated[list[str] | None, _option("Label of the job; repeatable.", "NAME=VALUE")] = None
    description: Annotated[str | None, _option("Text for people who read the job.", "TEXT")] = None


_CONDITIONS = get_args(ParentSpec.model_fields["when"].annotation)
_PLAIN_FLAGS = (
    "max_runs", "jitter", "overlap", "catch_up", "window", "on_resume", "pause_on_failure", "exclude_calendars",
    "include_calendars", "on_excluded", "start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat",
    "delivery", "on_failure", "concurrency_key", "ordering_key", "lane", "priority", "queue", "history_limit",
    "description",
)  # fmt: skip
_SPANS = frozenset({"jitter", "window", "start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat"})
_KINDS = {
    "cron": "--cron", "every": "--every", "fixed_delay": "--fixed-delay", "at": "--at", "manual": "--manual",
    "parents": "--after",
}  # fmt: skip


def described(job: Mapping[str, object], flags: JobFlags) -> dict[str, object]:
    """Return a job with the values of the flags in place of its own."""
    changed = dict(job)
    _put(changed, "schedule", _schedule(job.get("schedule"), flags))
    for name in ("start_at", "end_at"):
        if value := getattr(flags, name):
            changed[name] = _instant(value, name, flags)
    _put(changed, "target", _target(job.get("target"), flags))
    if flags.payload is not None:
        changed.pop("payload_base64", None)
        changed["payload"] = read_payload(flags.payload)
    if flags.max_attempts is not None:
        changed["retry"] = {**(as_object(job.get("retry")) or {}), "max_attempts": flags.max_attempts}
    if flags.label:
        changed["labels"] = {**(as_object(job.get("labels")) or {}), **read_labels(flags.label)}
    for name in _PLAIN_FLAGS:
        value = getattr(flags, name)
        _put(changed, name, _span(value) if name in _SPANS else value)
    return changed


def without(job: Mapping[str, object], paths: list[str]) -> dict[str, object]:
    """Return a job without some of its fields, which then have defaults; `labels.team` is one label."""
    changed = dict(job)
    for path in paths:
        first, _, rest = path.partition(".")
        if first not in changed or (rest and as_object(changed[first]) is None):
            problem = f"the job does not set {path!r}"
            refuse("--unset", problem, f"name one of its fields: {', '.join(changed)}")
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


def _schedule(current: object, flags: JobFlags) -> object:
    """Return the schedule with the flags applied; None if no flag concerns it."""
    kinds = [kind for kind in _KINDS if getattr(flags, kind)]
    if len(kinds) > 1:
        flags_given = " and ".join(_KINDS[kind] for kind in kinds)
        refuse(
            "schedule",
            f"{flags_given} exclude each other",
            "leave one of them; several --cron or --after are one schedule",
        )
    cron = _cron(current)
    match kinds:
        case ["cron"]:
            changed: dict[str, object] | None = {**cron, "cron": flags.cron}
        case ["every"]:
            changed = {"interval": _span(flags.every)}
        case ["fixed_delay"]:
            changed = {"fixed_delay": _span(flags.fixed_delay)}
        case ["at"]:
            changed = {"once": _instant(flags.at or "", "at", flags)}
        case ["manual"]:
            changed = {"manual": True}
        case ["parents"]:
            changed = {"after": [_parent(text) for text in flags.parents or ()]}
        case _:
            changed = None
    zoned = _zoned(flags, changed or cron)
    return {**(changed or cron or as_object(current) or {}), **zoned} if changed or zoned else None


def _parent(text: str) -> object:
    """Return a parent as a request has it: `load`, or `check=always`."""
    key, _, when = text.rpartition("=")
    return {"job": key, "when": when} if key and when in _CONDITIONS else text


def _span(text: str | None) -> object:
    """Return a duration in the form of a request; a bare number is seconds."""
    if text is None or not SECONDS.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)


def _zoned(flags: JobFlags, schedule: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that accompany a cron expression.

    A zone that only reads times without an offset is not stored in a schedule without a zone.
    """
    only_reads = "cron" not in schedule and (flags.at or flags.start_at or flags.end_at)
    given = {"timezone": None if only_reads else flags.tz, "dst_gap": flags.dst_gap, "dst_overlap": flags.dst_overlap}
    return {name: value for name, value in given.items() if value is not None}


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


def _target(current: object, flags: JobFlags) -> object:
    """Return the target with the flags applied; None if no flag names one."""
    given = [TARGETS[kind].flag for kind in flags.targets]
    if len(given) > 1:
        refuse("target", f"{' and '.join(given)} exclude each other", "leave one of them")
    if flags.method is not None and given not in ([], ["--url"]):
        refuse("target", f"--method cannot be used with {given[0]}", "leave it out")
    method = {} if flags.method is None else {"method": flags.method}
    for kind, text in flags.targets.items():
        return _onto(current, kind, {**_set_by_flag(kind, text), **method})
    return _onto(current, "http", method) if method else None


def _set_by_flag(kind: str, text: str) -> dict[str, object]:
    """Return the field that a target's flag sets."""
    sets = TARGETS[kind].sets
    return {sets: _words(text) if sets == "argv" else text}


def _onto(current: object, kind: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return a target with the flags applied; a target of another type replaces it whole."""
    target = as_object(current) or {}
    return {**(target if target.get("type") == kind else {"type": kind}), **given}


def _words(text: str) -> list[str]:
    """Split a text into words as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        refuse("--shell", f"{text!r} cannot be split into words ({error})", "close the quotation marks")


def _instant(text: str, name: str, flags: JobFlags) -> str:
    return format_timestamp(read_instant(text, f"--{name.replace('_', '-')}", flags.tz, ahead=True))


def _put(job: dict[str, object], name: str, value: object) -> None:
    if value is not None and value != []:
        job[name] = value
