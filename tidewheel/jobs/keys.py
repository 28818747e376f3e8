"""Keys as submitted: of concurrency, of ordering, and of the dedupe of triggers.

A key with a field, such as `{payload.customer}`, is filled in when a run is created. A job with a schedule must have
the field in its own payload, or its submit is refused. So no timer meets a key that it cannot fill.
"""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.payload import JSON_CONTENT, Payload
from tidewheel.jobs.strict_json import Json, as_object, canonical
from tidewheel.jobs.validation import StrictModel, shown
from tidewheel.jobs.values import MAX_TEXT, Key, format_duration, is_key, microseconds, span

MOST_AT_ONCE = 100_000
MOST_BURST = 100_000
FASTEST, SLOWEST = 10_000, Fraction(1, 86_400)  # starts a second
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/(s|sec|second|m|min|minute|h|hour|d|day)", re.ASCII)
_STORED = re.compile(r"([1-9]\d{0,11})us", re.ASCII)  # the time between two starts, as `job_versions.spec` has it
_FIELD = re.compile(r"\{payload((?:\.[^{}.]+)+)\}")
_NAMED_UNITS = {"s": 1, "min": 60, "h": 3600, "day": 86_400}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

LONGEST_WINDOW = timedelta(days=30)
_WINDOWS = 10  # of a debounced run, from its first trigger to its start at the latest

Mode: TypeAlias = Literal["reject", "replace", "debounce"]
_Window = Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_WINDOW))]
_Longest = Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_WINDOW * _WINDOWS))]


def parse_rate(value: object) -> timedelta:
    """Return the time between two starts of a rate.

    >>> parse_rate("100/min").total_seconds()
    0.6
    """
    text = value if isinstance(value, str) else ""
    if match := _RATE.fullmatch(text):
        rate = Fraction(match.group(1)) / _UNITS[match.group(2)[0]]
    elif stored := _STORED.fullmatch(text):
        rate = Fraction(1_000_000, int(stored.group(1)))
    else:
        remedy = "write a number of starts per unit of time, such as 100/min, 5/s, 20/h or 1/day"
        raise InvalidValue(problem=f"{shown(value)} is not a rate", remedy=remedy)
    if not SLOWEST <= rate <= FASTEST:
        raise InvalidValue(problem=f"{shown(value)} is out of bounds", remedy="write 1/day to 10000/s")
    return timedelta(microseconds=round(1_000_000 / rate))


def is_template(key: str) -> bool:
    """Return True if a key that was submitted has fields to fill in."""
    return "{" in key


def fill_key(template: str, payload: Payload | None, what: str = "concurrency key") -> str:
    """Return the key of a run with this payload.

    >>> fill_key("mail/{payload.customer.id}", Payload(b'{"customer":{"id":7}}', JSON_CONTENT))
    'mail/7'

    Raises:
        InvalidValue: A field is missing or has the wrong type, or the result is no key; the path is the field's.
    """
    if not is_template(template):
        return template
    remedy = f"send a payload with a string or an integer there, or change the {what.replace(' ', '_')}"
    if payload is None or not payload.content or payload.content_type != JSON_CONTENT:
        problem = f"the {what} {template} needs a field, but there is no JSON payload"
        raise InvalidValue(problem=problem, remedy=remedy, path="payload")
    document: object = json.loads(payload.content)

    def fill(match: re.Match[str]) -> str:
        value: object = document
        for name in match.group(1)[1:].split("."):
            members = as_object(value)
            if members is None or name not in members:
                problem = f"the {what} {template} needs this field, but the payload lacks it"
                raise InvalidValue(problem=problem, remedy=remedy, path=f"payload{match.group(1)}")
            value = members[name]
        if isinstance(value, bool) or not isinstance(value, str | int):
            problem = f"the {what} {template} needs this field, but it is neither a string nor an integer"
            raise InvalidValue(problem=problem, remedy=remedy, path=f"payload{match.group(1)}")
        return str(value)

    key = _FIELD.sub(fill, template)
    if not is_key(key):
        problem = f"the {what} {template} becomes {shown(key)}, which has {len(key)} characters"
        remedy = f"write 1 to {MAX_TEXT} printable characters without spaces at the ends"
        raise InvalidValue(problem=problem, remedy=remedy, path="payload")
    return key


def _known_fields(key: str) -> str:
    if "{" in (rest := _FIELD.sub("", key)) or "}" in rest:
        problem = f"{shown(key)} has braces that do not name a payload field"
        raise InvalidValue(problem=problem, remedy="write a field as {payload.customer}, or remove the braces")
    return key


ConcurrencyKeyName = Annotated[Key, AfterValidator(_known_fields)]


def _some_places(value: object) -> object:
    if value == 0 and not isinstance(value, bool):
        remedy = f"write 1 to {MOST_AT_ONCE}; to hold runs, pause their jobs or freeze a scope"
        raise InvalidValue(problem="0 would let no run start", remedy=remedy)
    return value


class ConcurrencyKey(StrictModel):
    """A key whose runs, of whatever jobs of the tenant, share places.

    Attributes:
        at_once: The number of runs with this key that are active at once; 1 without a rate, else unbounded.
        rate: The number of attempts with this key that start in a time, such as `100/min`.
        burst: With a rate: the number of starts at once after a rest.
    """

    key: ConcurrencyKeyName
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE), BeforeValidator(_some_places)] | None = None
    rate: (
        Annotated[timedelta, BeforeValidator(parse_rate), WithJsonSchema({"type": "string"}, mode="validation")] | None
    ) = None
    burst: Annotated[int, Field(ge=1, le=MOST_BURST)] | None = None

    @property
    def places(self) -> int | None:
        """The number of places in force; None for no bound."""
        return 1 if self.at_once is None and self.rate is None else self.at_once

    @property
    def every_us(self) -> int | None:
        """The microseconds between two starts; None without a rate."""
        return None if self.rate is None else microseconds(self.rate)

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> Self:
        if self.burst is not None and self.rate is None:
            raise InvalidValue(problem="needs a rate", remedy="add a rate, or leave it out", path="burst")
        return self


def _no_fields(key: str) -> str:
    if is_template(key):
        problem = f"{shown(key)} has braces, but keys are compared after payload fields are filled in"
        raise InvalidValue(problem=problem, remedy="write the whole key, or a prefix and an asterisk, such as api/*")
    return key


class KeyLimit(ConcurrencyKey):
    """The limit of a key, or of each key that begins so; it replaces those of jobs.

    Attributes:
        key: The key, or the beginning of keys and an asterisk.
    """

    key: Annotated[Key, AfterValidator(_no_fields)]

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.at_once is None and self.rate is None:
            remedy = "add one or both, or remove the limit"
            raise InvalidValue(problem="a limit needs at_once or rate", remedy=remedy, path="at_once")
        return self


def rate_words(every_us: int) -> str:
    """Return a rate as submitted, by the microseconds between two starts.

    >>> [rate_words(every) for every in (600_000, 8_571_429, 1_000_000, 86_400_000_000)]
    ['100/min', '7/min', '1/s', '1/day']
    """
    rates = [(per_unit * 1_000_000 / every_us, name) for name, per_unit in _NAMED_UNITS.items()]
    whole = (each for each in rates if each[0] > 0.5 and abs(each[0] - round(each[0])) < 1e-6 * each[0])
    count, unit = next(whole, next((each for each in rates if each[0] >= 1), rates[-1]))
    return f"{count:.6g}/{unit}"


def _reader(model: type[StrictModel], example: str) -> Callable[[object], object]:
    """Return a reader of a key that is text or an object."""

    def read(value: object) -> object:
        if isinstance(value, str):
            return {"key": value}
        if value is None or isinstance(value, model) or as_object(value) is not None:
            return value
        raise InvalidValue(problem=f"{shown(value)} is not a key", remedy=f"write a key, or {example}")

    return read


ConcurrencyKeyField = Annotated[
    ConcurrencyKey | None, BeforeValidator(_reader(ConcurrencyKey, '{"key": ..., "at_once": 1}'))
]


class OrderingKey(StrictModel):
    """A key whose runs, of whatever jobs of the tenant, start in the order in which they were accepted.

    Attributes:
        on_failure: A run that fails for good blocks the key, or lets the next run start.
    """

    key: ConcurrencyKeyName
    on_failure: Literal["block", "skip"] = "block"


OrderingKeyField = Annotated[
    OrderingKey | None, BeforeValidator(_reader(OrderingKey, '{"key": ..., "on_failure": "skip"}'))
]


class Dedupe(NamedTuple):
    """The dedupe of a trigger, merged with its job's: the triggers with one key have one run in a window."""

    key: str
    window: timedelta
    mode: Mode
    longest: timedelta | None

    @property
    def bound(self) -> timedelta:
        """The longest time from the first trigger to the run; ten windows by default."""
        return self.window * _WINDOWS if self.longest is None else self.longest


class TriggerDedupe(StrictModel):
    """The dedupe of a trigger; what it leaves out its job's `dedupe` has.

    Attributes:
        key: The key, in its job.
        window: The time from the first trigger on; with `debounce` the time without a trigger.
        mode: A later trigger is dropped, replaces the inputs of the run, or replaces and postpones it.
        longest: With `debounce`: the longest time from the first trigger to the run; ten windows by default.
    """

    key: ConcurrencyKeyName | None = None
    window: _Window | None = None
    mode: Mode | None = None
    longest: _Longest | None = None


class JobDedupe(StrictModel):
    """The dedupe of a job's triggers, unless they name another.

    Attributes:
        key: The key of all its triggers; without it only triggers that name a key are deduped.
        window: As in a trigger.
        mode: As in a trigger.
        longest: As in a trigger.
    """

    key: ConcurrencyKeyName | None = None
    window: _Window
    mode: Mode = "reject"
    longest: _Longest | None = None

    @model_validator(mode="after")
    def _longest_of_a_debounce(self) -> Self:
        _check_longest(self.window, self.mode, self.longest)
        return self

    def stored(self) -> str:
        """Return the text that `job_versions` stores."""
        longest = None if self.longest is None else microseconds(self.longest)
        document: dict[str, Json] = {
            "key": self.key, "window_us": microseconds(self.window), "mode": self.mode, "longest_us": longest,
        }  # fmt: skip
        return canonical(document).decode()


class _Defaults(NamedTuple):
    key: str | None
    window: timedelta | None
    mode: Mode
    longest: timedelta | None


_NO_DEFAULTS = _Defaults(None, None, "reject", None)


def merged_dedupe(given: TriggerDedupe | None, stored: str | None) -> Dedupe | None:
    """Return the dedupe of a trigger of a job, whose own is as `JobDedupe.stored` returns it."""
    defaults = _NO_DEFAULTS if stored is None else _read(stored)
    if given is None:
        if defaults.key is None or defaults.window is None:
            return None
        return Dedupe(defaults.key, defaults.window, defaults.mode, defaults.longest)
    key, window, mode = given.key or defaults.key, given.window or defaults.window, given.mode or defaults.mode
    if key is None:
        refuse("dedupe.key", "is missing in the trigger and the job", "add the key that triggers share")
    if window is None:
        refuse("dedupe.window", "is missing in the trigger and the job", "add a duration, such as 10m")
    longest = given.longest
    if longest is None and mode == "debounce" and defaults.longest is not None and defaults.longest >= window:
        longest = defaults.longest
    try:
        _check_longest(window, mode, longest)
    except InvalidValue as error:
        [one] = error.errors
        refuse("dedupe.longest", one.problem, one.remedy)
    return Dedupe(key, window, mode, longest)


def _read(stored: str) -> _Defaults:
    document = as_object(json.loads(stored)) or {}
    window, longest = cast("int", document["window_us"]), cast("int | None", document["longest_us"])
    return _Defaults(
        cast("str | None", document["key"]),
        timedelta(microseconds=window),
        cast("Mode", document["mode"]),
        None if longest is None else timedelta(microseconds=longest),
    )


def _check_longest(window: timedelta, mode: Mode, longest: timedelta | None) -> None:
    if longest is None:
        return
    if mode != "debounce":
        raise InvalidValue(problem="needs mode: debounce", remedy="add that, or leave it out", path="longest")
    if longest < window:
        remedy = f"write {format_duration(window)} or more"
        raise InvalidValue(problem="is shorter than window", remedy=remedy, path="longest")
