"""Dedupe of triggers as submitted: the key that they share, and what the later ones do."""

import json
from datetime import timedelta
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias, cast

from pydantic import BeforeValidator, model_validator

from tidewheel.errors import refuse
from tidewheel.jobs.concurrency import ConcurrencyKeyName
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import Json, as_object, canonical
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import format_duration, microseconds, span

LONGEST_WINDOW = timedelta(days=30)
_WINDOWS = 10  # of a debounced run, from its first trigger to its start at the latest

Mode: TypeAlias = Literal["reject", "replace", "debounce"]
_Window = Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_WINDOW))]
_Longest = Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_WINDOW * _WINDOWS))]


class Dedupe(NamedTuple):
    """The dedupe of a trigger, merged with its job's: the triggers with one key have one run in a window.

    Args:
        window: The time from the first trigger on; with `debounce` the time without a trigger.
        mode: A later trigger is dropped, replaces the inputs of the run, or replaces and postpones it.
        longest: With `debounce`: the longest time from the first trigger to the run.
    """

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
        refuse("dedupe.key", "neither the trigger nor the job has one", "write the key that the triggers share")
    if window is None:
        refuse("dedupe.window", "neither the trigger nor the job has one", "write a duration, such as 10m")
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
        raise InvalidValue(
            problem="it bounds a debounce", remedy="write mode: debounce, or leave it out", path="longest"
        )
    if longest < window:
        remedy = f"write {format_duration(window)} or more"
        raise InvalidValue(problem="it is shorter than window", remedy=remedy, path="longest")
