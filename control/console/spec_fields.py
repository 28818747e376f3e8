"""The fields of the form of a job: their groups, how each is typed, and what it means empty."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, cast, get_args

from tidewheel.control.explain.text import OVERLAP_EFFECTS
from tidewheel.jobs.concurrency import OrderingKey
from tidewheel.jobs.dedupe import JobDedupe
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.retry import DEFAULT_ATTEMPTS, RetryPolicy
from tidewheel.jobs.schedule import CronSpec
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_list, as_object, read_value
from tidewheel.jobs.targets import HttpTargetSpec, KafkaTargetSpec
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import format_duration
from tidewheel.runs import Overlap
from tidewheel.schedules.policies import CatchUp

SCHEDULES = ("cron", "interval", "fixed_delay", "once", "after", "manual")
TARGETS = ("handler", "http", "kafka", "shell", "lambda")
Kind = Literal["text", "span", "number", "json", "list", "pairs", "parents", "words", "flag", "zone"]


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of the form.

    Args:
        path: Its place in the job, which is its name in the form.
        only: The kind of schedule or target that has it.
        options: Its values, if it is a choice.
        default: What holds while it is empty.
        meanings: What each of its values does, if it is a choice.
        rows: The lines of its text area; 0 for a single line.
    """

    path: str
    label: str
    kind: Kind = "text"
    only: str = ""
    options: Sequence[str] = ()
    default: str = ""
    help: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of its path."""
        return tuple(self.path.split("."))


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one heading; `chooser` names the choice of a kind above them."""

    title: str
    fields: Sequence[SpecField]
    chooser: str = ""
    folded: bool = True


def _options(model: type[StrictModel], name: str) -> tuple[str, ...]:
    """Return the values of a choice."""
    found = model.model_fields[name].annotation
    parts = get_args(found)
    nested = [each for part in parts for each in get_args(part)]
    return tuple(str(each) for each in (nested or parts) if isinstance(each, str))


def _default(model: type[StrictModel], name: str) -> str:
    """Return the default of a field as it is typed."""
    value = model.model_fields[name].default
    if isinstance(value, timedelta):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str | int) else ""


def _of(label: str, name: str, kind: Kind = "text", help: str = "", *, default: str | None = None) -> SpecField:
    found = _default(JobSpec, name) if default is None else default
    return SpecField(name, label, kind, default=found, help=help)


def _choice(name: str, label: str, help: str = "", *, default: str | None = None) -> SpecField:
    options = _options(JobSpec, name) if name != "overlap" else tuple(Overlap)
    return SpecField(
        name, label, options=options, default=_default(JobSpec, name) if default is None else default, help=help,
        meanings=MEANINGS.get(name, {}),
    )  # fmt: skip


def _retry(name: str, label: str, kind: Kind = "text", help: str = "", *, default: str | None = None) -> SpecField:
    options = ("exponential", "fixed", "intervals") if name == "backoff" else ()
    found = _default(RetryPolicy, name) if default is None else default
    return SpecField(
        f"retry.{name}", label, kind, options=options, default=found, help=help, meanings=MEANINGS.get(name, {})
    )


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
    "delivery": {
        "at_least_once": "another attempt may follow",
        "at_most_once": "no attempt follows",
    },
    "backoff": {
        "exponential": "each delay is longer by the factor",
        "fixed": "the same delay each time",
        "intervals": "the delays that you list",
    },
    "dst_gap": {
        "shift_forward": "it fires at the first instant after the gap",
        "skip": "it does not fire",
    },
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
_INDENTED = 32_768  # characters up to which JSON is indented
_LINES = "One per line."
GROUPS: Sequence[Group] = (
    Group("Target and payload", (
        SpecField("target.name", "handler", only="handler", help="The name of a Python handler."),
        SpecField("target.url", "url", only="http", help="The payload is the body of the request."),
        SpecField("target.method", "method", only="http", options=_options(HttpTargetSpec, "method"), default="POST"),
        SpecField("target.headers", "headers", "json", only="http", rows=3,
                  help='A JSON object: {"X-Team": "billing", "Authorization": {"secret": "NAME"}}'),
        SpecField("target.async", "async", "flag", only="http", options=("true", "false"), default="false",
                  help="true: after a 202, the run stays open until its task token completes it."),
        SpecField("target.topic", "topic", only="kafka"),
        SpecField("target.key", "message key", only="kafka"),
        SpecField("target.await_reply", "await_reply", "flag", only="kafka", options=("true", "false"),
                  default=str(KafkaTargetSpec.model_fields["await_reply"].default).lower()),
        SpecField("target.argv", "argv", "words", only="shell", help="Program and arguments; no shell reads them."),
        SpecField("target.cwd", "cwd", only="shell"),
        SpecField("target.function", "function", only="lambda", help="A function's name, or its ARN."),
        SpecField("target.region", "region", only="lambda"),
        SpecField("payload", "payload", "json", rows=8, help="Any JSON value, 256 KiB at most."),
    ), chooser="target", folded=False),
    Group("Schedule", (
        SpecField("schedule.cron", "cron", "list", only="cron", rows=2, help="One per line, such as 30 2 * * *."),
        SpecField("schedule.timezone", "timezone", "zone", only="cron", default="UTC", help="Such as Europe/Berlin."),
        SpecField("schedule.dst_gap", "dst_gap", only="cron", options=_options(CronSpec, "dst_gap"),
                  default="shift_forward", help="What happens at a local time that does not exist.",
                  meanings=MEANINGS["dst_gap"]),
        SpecField("schedule.dst_overlap", "dst_overlap", only="cron", options=_options(CronSpec, "dst_overlap"),
                  default="first", help="What happens at a local time that occurs twice.",
                  meanings=MEANINGS["dst_overlap"]),
        SpecField("schedule.interval", "interval", "span", only="interval", help="Such as 10s or 1h30m."),
        SpecField("schedule.anchor", "anchor", only="interval", help="Intervals count from this instant."),
        SpecField("schedule.fixed_delay", "fixed_delay", "span", only="fixed_delay",
                  help="The time from the end of a run to the next run."),
        SpecField("schedule.once", "once", only="once", help="An instant with its offset: 2026-12-24T08:00:00+01:00"),
        SpecField("schedule.after", "after", "parents", only="after", rows=3,
                  help="One parent per line: KEY, KEY=failure or KEY=always."),
        _of("start_at", "start_at", help="No occurrence before this instant."),
        _of("end_at", "end_at", help="No occurrence after this instant."),
        _of("max_runs", "max_runs", "number", "The schedule ends after this many occurrences."),
        _of("jitter", "jitter", "span", "The longest random delay: a duration, or a share such as 10%.", default="0s"),
    ), chooser="schedule", folded=False),
    Group("Retries", (
        _retry("max_attempts", "max_attempts", "number", "Includes the first attempt.", default=str(DEFAULT_ATTEMPTS)),
        _retry("backoff", "backoff", help="How the delay between attempts grows.", default="exponential"),
        _retry("initial", "initial", "span", "The delay before the second attempt."),
        _retry("factor", "factor", "number", "Each delay is the previous delay times this factor."),
        _retry("max", "max", "span", "The longest delay."),
        _retry("jitter", "jitter", help="The random share of each delay.", default="10%"),
        _retry("intervals", "intervals", "list", "Delays before attempts 2, 3, …: one per line.", default=""),
        _retry("non_retryable", "non_retryable", "list", "Error types that end the run, one per line.", default=""),
        _choice("delivery", "delivery", "What follows an attempt that may have started and did not succeed."),
        _of("pause_on_failure", "pause_on_failure", "number", "The job is paused after this many failures in a row."),
        _of("on_failure", "on_failure", help="The key of a job to trigger after a run that fails for good."),
    )),
    Group("Timeouts", (
        _of("start_to_close", "start_to_close", "span", "The longest time of one attempt."),
        _of("schedule_to_start", "schedule_to_start", "span", "The longest time until the first attempt begins."),
        _of("schedule_to_close", "schedule_to_close", "span",
            "The longest time from the scheduled time to the end of the run, with all attempts and the waits between."),
        _of("heartbeat", "heartbeat", "span", "The longest time between two heartbeats of an attempt."),
    )),
    Group("Overlap and limits", (
        _choice("overlap", "overlap", "If a run of the job is active.", default="skip if recurring, else allow_all"),
        SpecField("concurrency_key.key", "concurrency key",
                  help="Runs of all jobs with this key share places. {payload.a} inserts a payload field."),
        SpecField("concurrency_key.at_once", "at_once", "number", default="1 without a rate",
                  help="How many runs with this key may be active at once."),
        SpecField("concurrency_key.rate", "rate", help="The most starts per time, such as 100/min."),
        SpecField("concurrency_key.burst", "burst", "number", help="The most starts at once after idle time."),
        SpecField("ordering_key.key", "ordering key", help="Runs with this key run one after another."),
        SpecField("ordering_key.on_failure", "on_failure of the ordering key",
                  options=_options(OrderingKey, "on_failure"), default="block",
                  help="After a run with this key that fails or times out for good.",
                  meanings=MEANINGS["ordering_key.on_failure"]),
        SpecField("dedupe.key", "dedupe key", help="Triggers with this key share one run per window."),
        SpecField("dedupe.window", "dedupe window", "span", help="Such as 10m, from the first trigger on."),
        SpecField("dedupe.mode", "dedupe mode", options=_options(JobDedupe, "mode"), default="reject",
                  help="reject drops a later trigger. replace gives the waiting run the inputs of the later trigger. "
                       "debounce does that and also postpones the run."),
        SpecField("dedupe.longest", "longest dedupe delay", "span", default="ten windows",
                  help="The longest time by which debounce delays a run."),
    )),
    Group("Missed and excluded occurrences", (
        _choice("catch_up", "catch_up", "What becomes of occurrences that no scheduler fired in time."),
        _choice("on_resume", "on_resume", "What becomes of occurrences that came due during a pause or a freeze."),
        _of("window", "window", "span",
            "How old a missed occurrence may be that fire_all, of catch_up or of on_resume, still fires, such as 6h."),
        _of("exclude_calendars", "exclude_calendars", "list", f"No firing on their days. {_LINES}", default=""),
        _of("include_calendars", "include_calendars", "list", f"Firing only on their days. {_LINES}", default=""),
        _choice("on_excluded", "on_excluded", "What happens to an occurrence on an excluded day."),
    )),
    Group("Queue, lane and labels", (
        _of("queue", "queue", help="Executors that serve this queue take its runs."),
        _choice("lane", "lane", "The priority class. Each lane has its own topic."),
        _of("priority", "priority", "number", "0 to 9: 9 starts first."),
        SpecField("labels", "labels", "pairs", rows=2, help="One name=value per line."),
        SpecField("description", "description", rows=2),
        _of("history_limit", "history_limit", "number", "How many of the latest finished runs to keep."),
    )),
)  # fmt: skip
"""Grouped as in the definition of a job; what the form lacks, the JSON view has."""

FIELDS: Sequence[SpecField] = tuple(field for group in GROUPS for field in group.fields)
LABELS: Mapping[str, str] = {field.path: field.label for field in FIELDS}


def text_of(field: SpecField, value: object) -> str:
    r"""Return a value as it is typed.

    >>> text_of(FIELDS[12], {"depot": 4})
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
        problem = f"it cannot be split into words ({error})"
        raise InvalidValue(problem=problem, remedy="close the quotation marks") from error


def _flag(text: str) -> object:
    return {"true": True, "false": False}.get(text.strip(), text.strip())


def _json(text: str) -> object:
    found = read_value(text.encode("utf-8", "surrogatepass"))
    if isinstance(found, UnreadableValue):
        raise InvalidValue(problem=found.problem, remedy='write JSON, such as {"depot": 4} or "text"')
    return found


_READERS: Mapping[Kind, Callable[[str], object]] = cast(
    "Mapping[Kind, Callable[[str], object]]",
    {
        "number": _number, "span": _span, "list": _lines, "pairs": _pairs, "parents": _parents, "words": _words,
        "flag": _flag, "json": _json,
    },
)  # fmt: skip
