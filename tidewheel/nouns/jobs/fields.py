"""The table of a job's fields, for flags and for the form."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, cast, get_args

from pydantic import TypeAdapter, ValidationError

from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.keys import JobDedupe, OrderingKey
from tidewheel.jobs.retry import DEFAULT_ATTEMPTS, RetryPolicy
from tidewheel.jobs.schedule import CronSpec
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_list, as_object, read_value
from tidewheel.jobs.targets import TARGETS, HttpTargetSpec, KafkaTargetSpec, TargetType
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import format_duration
from tidewheel.runs import OVERLAP_EFFECTS
from tidewheel.schedules.decision import CatchUp

SCHEDULES = ("cron", "interval", "fixed_delay", "once", "after", "manual")
Kind = Literal[
    "text", "span", "number", "instant", "json", "list", "pairs", "parents", "words", "flag", "zone",
    "string", "whole", "real", "moment",
]  # fmt: skip
"""The last four are values of a payload, which no model of a job checks."""
NOTHING = object()
"""In place of a value that is not there: None is a value in JSON."""
_MOMENT = TypeAdapter(datetime)
_INDENTED = 32_768  # characters up to which JSON is indented
_AS_TYPED: Mapping[Kind, tuple[str, str]] = {
    "json": ("", "@FILE reads it from a file."),
    "list": ("One per line.", "Repeatable."),
    "pairs": ("One name=value per line.", "Repeatable."),
    "parents": ("One parent per line: KEY, KEY=failure or KEY=always.", "KEY, KEY=failure or KEY=always; repeatable."),
}
"""How several values are typed in the form, and on the command line."""


@dataclass(frozen=True, slots=True, eq=False)
class SpecField:
    """A field of a job; one without a dot in its path has a flag of its name."""

    path: str  # its place in the job, which is its name in the form
    label: str
    kind: Kind = "text"
    only: str = ""  # the kind of schedule or target that has it
    options: Sequence[str] = ()  # its values, if it is a choice
    default: str = ""  # what holds while it is empty
    help: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])  # what each of its values does
    rows: int = 0  # the lines of its text area; 0 for a single line
    named: str = ""  # its flag, where that has another name
    metavar: str = ""  # what a flag takes; by default what its kind says

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of its path."""
        return tuple(self.path.split("."))

    @property
    def flag(self) -> str:
        """Its flag; empty if only a file sets it."""
        return self.named or ("" if "." in self.path else f"--{self.path.replace('_', '-')}")

    @property
    def caption(self) -> str:
        """Its description in the form."""
        return f"{self.help} {_AS_TYPED.get(self.kind, ('',))[0]}".strip()

    @property
    def flag_help(self) -> str:
        """Its description on the command line."""
        *rest, last = self.options or ("",)
        words = f"{self.help.removesuffix('.')}: {', '.join(rest)} or {last}." if rest else self.help
        return f"{words} {_AS_TYPED.get(self.kind, ('', ''))[1]}".strip().replace("`", "")


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one heading; `chooser` names the choice of a kind above them."""

    title: str
    fields: Sequence[SpecField]
    chooser: str = ""
    folded: bool = True


def _options(model: type[StrictModel], name: str) -> tuple[str, ...]:
    found = model.model_fields[name].annotation
    parts = get_args(found)
    nested = [each for part in parts for each in get_args(part)]
    return tuple(str(each) for each in (nested or parts) if isinstance(each, str))


def _default(model: type[StrictModel], name: str) -> str:
    value = model.model_fields[name].default
    if isinstance(value, timedelta):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str | int) else ""


def _of(
    path: str, kind: Kind = "text", help: str = "", *, default: str | None = None, named: str = "", metavar: str = "",
) -> SpecField:  # fmt: skip
    start, _, name = path.rpartition(".")
    model = RetryPolicy if start else JobSpec
    found = _default(model, name) if default is None else default
    return SpecField(
        path, _LABELS.get(path, name.replace("_", " ").capitalize()), kind, options=_options(model, name),
        default=found, help=help, meanings=MEANINGS.get(name, {}), named=named, metavar=metavar,
    )  # fmt: skip


_LABELS: Mapping[str, str] = {
    "start_at": "Start", "end_at": "End", "max_runs": "Occurrences", "jitter": "Random delay",
    "retry.max_attempts": "Attempts", "retry.initial": "First delay", "retry.max": "Longest delay",
    "retry.jitter": "Random share", "retry.intervals": "Delays", "retry.non_retryable": "Final error types",
    "pause_on_failure": "Pause after failures", "on_failure": "Job after a failure",
    "start_to_close": "Attempt timeout", "schedule_to_start": "Start timeout", "schedule_to_close": "Run timeout",
    "heartbeat": "Heartbeat timeout", "catch_up": "Catch-up", "on_resume": "After a pause",
    "window": "Catch-up window", "exclude_calendars": "Excluded calendars", "include_calendars": "Included calendars",
    "on_excluded": "On an excluded day", "url": "URL", "argv": "Command",
}  # fmt: skip
"""Labels of fields whose name is not their label."""


def _target(target: TargetType) -> SpecField:
    label = _LABELS.get(target.sets, target.sets.capitalize()) if target.requires else "Handler"
    typed: Kind = "text" if target.model.model_fields[target.sets].annotation is str else "words"
    return SpecField(
        f"target.{target.sets}", label, typed, only=target.kind, help=target.help, named=target.flag,
        metavar=target.metavar,
    )  # fmt: skip


_HELD: Mapping[str, str] = {
    CatchUp.FIRE_ONCE: "only the latest one fires",
    CatchUp.FIRE_ALL: "each one within the window fires",
    CatchUp.SKIP: "none of them fires",
}
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "overlap": OVERLAP_EFFECTS,
    "catch_up": _HELD,
    "on_resume": _HELD,
    "on_excluded": {
        "skip": "it does not fire",
        "next_business_day": "it fires at the same local time on the next open day",
    },
    "delivery": {"at_least_once": "another attempt may follow", "at_most_once": "no attempt follows"},
    "backoff": {
        "exponential": "each delay is longer by the factor",
        "fixed": "the same delay each time",
        "intervals": "the delays that you list",
    },
    "dst_gap": {"shift_forward": "it fires at the first instant after the gap", "skip": "it does not fire"},
    "dst_overlap": {
        "first": "it fires the first time",
        "second": "it fires the second time",
        "both": "it fires both times",
    },
    "ordering_key.on_failure": {
        "block": "the next run waits until a retry succeeds or you unblock the key",
        "skip": "the next run starts",
    },
}
"""What each value of a choice does, by its field."""
_OF_TARGETS = (
    SpecField("target.method", "Method", only="http", options=_options(HttpTargetSpec, "method"), default="POST",
              named="--method", metavar="METHOD", help="The method of the request."),
    SpecField("target.headers", "Headers", "json", only="http", rows=3,
              help='A JSON object: {"X-Team": "billing", "Authorization": {"secret": "NAME"}}'),
    SpecField("target.async", "Asynchronous", "flag", only="http", options=("true", "false"), default="false",
              help="true: after a 202, the run stays open until its task token completes it."),
    SpecField("target.key", "Message key", only="kafka"),
    SpecField("target.await_reply", "Await a reply", "flag", only="kafka", options=("true", "false"),
              default=str(KafkaTargetSpec.model_fields["await_reply"].default).lower()),
    SpecField("target.cwd", "Working directory", only="shell"),
    SpecField("target.region", "Region", only="lambda"),
)  # fmt: skip
"""Further fields of targets, beside the one that each type declares."""
GROUPS: Sequence[Group] = (
    Group("Schedule", (
        SpecField("schedule.cron", "Cron expression", "list", only="cron", rows=2, named="--cron",
                  metavar="EXPR", help="Minute, hour, day, month, weekday, such as `30 2 * * *`."),
        SpecField("schedule.timezone", "Time zone", "zone", only="cron", default="the tenant's, or UTC",
                  help="Its IANA name."),
        SpecField("schedule.interval", "Interval", "span", only="interval", named="--every",
                  help="The time between occurrences, such as 10s or 1h30m."),
        SpecField("schedule.anchor", "Counted from", only="interval", help="Intervals count from this instant."),
        SpecField("schedule.fixed_delay", "Delay after a run", "span", only="fixed_delay",
                  help="The time from the end of a run to the next run.", named="--fixed-delay"),
        SpecField("schedule.min", "Shortest delay", "span", only="fixed_delay", default="fixed_delay",
                  help="The shortest time that a run may set by next_in."),
        SpecField("schedule.max", "Longest delay", "span", only="fixed_delay", default="fixed_delay",
                  help="The longest time that a run may set by next_in."),
        SpecField("schedule.once", "Instant", "instant", only="once", named="--at",
                  help="Once, at this instant, such as 2026-12-24T08:00:00+01:00."),
        SpecField("schedule.after", "Parents", "parents", only="after", rows=3, named="--after",
                  help="After the runs of these jobs."),
    ), chooser="schedule", folded=False),
    Group("Start, end and clock changes", (
        _of("start_at", "instant", help="No occurrence before this instant."),
        _of("end_at", "instant", help="No occurrence after this instant."),
        _of("max_runs", "number", "The schedule ends after this many occurrences."),
        _of("jitter", "span", "The longest random delay: a duration, or a share such as 10%.", default="0s"),
        SpecField("schedule.dst_gap", "Time in a DST gap", only="cron", options=_options(CronSpec, "dst_gap"),
                  default="shift_forward", help="What happens at a local time that does not exist.", named="--dst-gap",
                  meanings=MEANINGS["dst_gap"]),
        SpecField("schedule.dst_overlap", "Time in a DST overlap", only="cron",
                  options=_options(CronSpec, "dst_overlap"), default="first", named="--dst-overlap",
                  help="What happens at a local time that occurs twice.",
                  meanings=MEANINGS["dst_overlap"]),
    )),
    Group("Target and payload", (
        *(field for kind, target in TARGETS.items()
          for field in (_target(target), *(each for each in _OF_TARGETS if each.only == kind))),
        SpecField("payload", "Payload", "json", rows=8, help="Any JSON value, 256 KiB at most."),
    ), chooser="target", folded=False),
    Group("Retries", (
        _of("retry.max_attempts", "number", "The maximum number of attempts of a run, including the first.",
            default=str(DEFAULT_ATTEMPTS), named="--max-attempts"),
        _of("retry.backoff", help="How the delay between attempts grows.", default="exponential"),
        _of("retry.initial", "span", "The delay before the second attempt."),
        _of("retry.factor", "number", "Each delay is the previous delay times this factor."),
        _of("retry.max", "span", "The longest delay."),
        _of("retry.jitter", help="The random share of each delay.", default="10%"),
        _of("retry.intervals", "list", "Delays before the second attempt and later ones.", default=""),
        _of("retry.non_retryable", "list", "Error types that end the run.", default=""),
        _of("delivery", help="What follows an attempt that may have started but did not succeed."),
        _of("pause_on_failure", "number", "Pause the job after this many failures in a row."),
        _of("on_failure", help="The key of a job to trigger after a run that fails for good.", metavar="KEY"),
    )),
    Group("Timeouts", (
        _of("start_to_close", "span", "The longest time of one attempt."),
        _of("schedule_to_start", "span", "The longest time until the first attempt begins."),
        _of("schedule_to_close", "span",
            "The longest time from the scheduled time to the end of the run, including all attempts and waits."),
        _of("heartbeat", "span", "The longest time between two heartbeats of an attempt."),
    )),
    Group("Overlap and limits", (
        _of("overlap", help="What happens to a new run while another is active.",
            default="skip if recurring, else allow_all"),
        SpecField("concurrency_key.key", "Concurrency key", named="--concurrency-key", metavar="KEY",
                  help="Runs of all jobs with this key share places. {payload.a} inserts a payload field."),
        SpecField("concurrency_key.at_once", "Places", "number", default="1 without a rate",
                  help="How many runs with this key may be active at once."),
        SpecField("concurrency_key.rate", "Start rate", help="The most starts per time, such as 100/min."),
        SpecField("concurrency_key.burst", "Burst", "number", help="The most starts at once after idle time."),
        SpecField("ordering_key.key", "Ordering key", help="Runs with this key run one after another.",
                  named="--ordering-key", metavar="KEY"),
        SpecField("ordering_key.on_failure", "After a failed run of the key",
                  options=_options(OrderingKey, "on_failure"), default="block",
                  help="After a run with this key that fails or times out for good.",
                  meanings=MEANINGS["ordering_key.on_failure"]),
        SpecField("dedupe.key", "Dedupe key", help="Triggers with this key share one run per window."),
        SpecField("dedupe.window", "Dedupe window", "span", help="Such as 10m, from the first trigger on."),
        SpecField("dedupe.mode", "Dedupe mode", options=_options(JobDedupe, "mode"), default="reject",
                  help="reject drops a later trigger. replace gives the waiting run the inputs of the later trigger. "
                       "debounce does that and also postpones the run."),
        SpecField("dedupe.longest", "Longest dedupe delay", "span", default="ten windows",
                  help="The longest time by which debounce delays a run."),
    )),
    Group("Missed and excluded occurrences", (
        _of("catch_up", help="What happens to occurrences that no scheduler fired in time."),
        _of("on_resume", help="What happens to occurrences that came due during a pause or a freeze."),
        _of("window", "span",
            "The age up to which fire_all, of catch_up or on_resume, fires a missed occurrence, such as 6h."),
        _of("exclude_calendars", "list", "Do not fire on the days of these calendars.", default="",
            named="--exclude-calendar", metavar="NAME"),
        _of("include_calendars", "list", "Fire only on the days of these calendars.", default="",
            named="--include-calendar", metavar="NAME"),
        _of("on_excluded", help="What happens to an occurrence on an excluded day."),
    )),
    Group("Queue, lane and labels", (
        _of("queue", help="Only executors that serve this queue take its runs.", metavar="NAME"),
        _of("lane", help="The priority class of its runs, each with its own topic.", metavar="LANE"),
        _of("priority", "number", "0 to 9: 9 starts first."),
        SpecField("labels", "Labels", "pairs", rows=2, named="--label",
                  help="Used to filter, freeze and cancel."),
        SpecField("description", "Description", rows=2, help="Free text for people."),
    )),
)  # fmt: skip
"""Grouped as in the definition of a job; what the form lacks, the JSON view has."""

FIELDS: Sequence[SpecField] = tuple(field for group in GROUPS for field in group.fields)
LABELS: Mapping[str, str] = {field.path: field.label for field in FIELDS}


def put(job: dict[str, object], path: Sequence[str], value: object) -> None:
    """Set the value at a path, or remove it with `NOTHING`."""
    for name in path[:-1]:
        below = as_object(job.get(name))
        job[name] = below = {} if below is None else below
        job = below
    if value is NOTHING:
        job.pop(path[-1], None)
    else:
        job[path[-1]] = value


def text_of(field: SpecField, value: object) -> str:
    r"""Return a value as it is typed.

    >>> text_of(SpecField("payload", "payload", "json"), {"depot": 4})
    '{\n  "depot": 4\n}'
    """
    match field.kind:
        case "json":
            return json_text(value)
        case "list":
            return "\n".join(str(each) for each in as_list(value) or (value,))
        case "pairs":
            return "\n".join(f"{name}={each}" for name, each in (as_object(value) or {}).items())
        case "parents":
            return "\n".join(map(_parent_text, as_list(value) or (value,)))
        case "words":
            return shlex.join(str(each) for each in as_list(value) or (value,))
        case _:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_text(value: object) -> str:
    """Return a value as JSON text: indented, unless that makes a long text several times longer."""
    compact = json.dumps(value, ensure_ascii=False)
    return compact if len(compact) > _INDENTED else json.dumps(value, ensure_ascii=False, indent=2)


def value_of(field: SpecField, text: str) -> object:
    """Return the value that a text describes; other text stays text, which the job's model refuses.

    Raises:
        InvalidValue: It cannot be read, with the remedy.
    """
    return _READERS.get(field.kind, str.strip)(text)


def _parent_text(parent: object) -> str:
    given = as_object(parent)
    if given is None:
        return str(parent)
    return f"{given['job']}={given['when']}" if given.get("when", "success") != "success" else str(given["job"])


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _number(text: str) -> object:
    bare = text.strip()
    if re.fullmatch(r"-?\d{1,19}", bare, re.ASCII):
        return int(bare)
    return float(bare) if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", bare, re.ASCII) else bare


def _span(text: str) -> object:
    """Return a duration; a bare number is seconds, as in REST."""
    found = _number(text)
    return found if isinstance(found, int | float) else text.strip()


def _pairs(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in _lines(text)]
    if wrong := next((name for name, equals, _ in pairs if not equals or not name), None):
        raise InvalidValue(problem=f"{wrong[:60]!r} has no value", remedy="write name=value, one per line")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _parents(text: str) -> list[object]:
    found: list[object] = []
    for line in _lines(text):
        key, _, when = line.rpartition("=")
        found.append({"job": key, "when": when} if key and when in {"success", "failure", "always"} else {"job": line})
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"cannot be split into words ({error})"
        raise InvalidValue(problem=problem, remedy="close the quotation marks") from error


def _flag(text: str) -> object:
    return {"true": True, "false": False}.get(text.strip(), text.strip())


def _moment(text: str) -> str:
    """Return a text that a handler's model reads as an instant, with or without an offset."""
    try:
        _MOMENT.validate_python(text.strip())
    except ValidationError as error:
        problem = f"{text.strip()[:60]!r} is not an instant"
        raise InvalidValue(problem=problem, remedy="write it such as 2026-12-24T08:00:00Z") from error
    return text.strip()


def _number_of_json(text: str, kinds: tuple[type, ...], named: str) -> object:
    found = read_value(text.strip().encode("utf-8", "surrogatepass"))
    if isinstance(found, bool) or not isinstance(found, kinds):
        raise InvalidValue(problem=f"{text.strip()[:60]!r} is not {named}", remedy="write it in digits, such as 4")
    return found


def _json(text: str) -> object:
    found = read_value(text.encode("utf-8", "surrogatepass"))
    if isinstance(found, UnreadableValue):
        raise InvalidValue(problem=found.problem, remedy='write JSON, such as {"depot": 4} or "text"')
    return found


_READERS: Mapping[Kind, Callable[[str], object]] = cast(
    "Mapping[Kind, Callable[[str], object]]",
    {
        "number": _number, "span": _span, "list": _lines, "pairs": _pairs, "parents": _parents, "words": _words,
        "flag": _flag, "json": _json, "string": str, "moment": _moment,
        "whole": partial(_number_of_json, kinds=(int,), named="a whole number"),
        "real": partial(_number_of_json, kinds=(int, float), named="a number"),
    },
)  # fmt: skip
