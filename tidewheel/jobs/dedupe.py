"""Dedupe of triggers as submitted: the key that they share, and what the later ones do."""

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from tidewheel.jobs.concurrency import ConcurrencyKeyName
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import format_duration, span

LONGEST_WINDOW = timedelta(days=30)
_WINDOWS = 10  # of a debounced run, from its first trigger to its start at the latest
_WINDOW = span(timedelta(milliseconds=1), LONGEST_WINDOW)


class Dedupe(StrictModel):
    """Triggers of one job with one key, of which a window has one run.

    Attributes:
        key: The key, in its job.
        window: The time from the first trigger on; with `debounce` the time without a trigger.
        mode: A later trigger is dropped, replaces the inputs of the run, or replaces and postpones it.
        longest: With `debounce`: the longest time from the first trigger to the run; ten windows by default.
    """

    key: ConcurrencyKeyName
    window: Annotated[timedelta, BeforeValidator(_WINDOW)]
    mode: Literal["reject", "replace", "debounce"] = "reject"
    longest: (
        Annotated[timedelta, BeforeValidator(span(timedelta(milliseconds=1), LONGEST_WINDOW * _WINDOWS))] | None
    ) = None

    @property
    def bound(self) -> timedelta:
        """The longest time from the first trigger to the run."""
        return self.window * _WINDOWS if self.longest is None else self.longest

    @model_validator(mode="after")
    def _longest_of_a_debounce(self) -> Self:
        if self.longest is not None and self.mode != "debounce":
            remedy = "write mode: debounce, or leave it out"
            raise InvalidValue(problem="it bounds a debounce", remedy=remedy, path="longest")
        if self.longest is not None and self.longest < self.window:
            remedy = f"write {format_duration(self.window)} or more"
            raise InvalidValue(problem="it is shorter than window", remedy=remedy, path="longest")
        return self
