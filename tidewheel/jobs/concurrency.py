"""Concurrency keys as submitted: the places of a key, and its rate of starts."""

import re
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import StrictModel, shown
from tidewheel.jobs.values import Key, microseconds

MOST_AT_ONCE = 100_000
MOST_BURST = 100_000
FASTEST, SLOWEST = 10_000, Fraction(1, 86_400)  # starts a second

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/(s|sec|second|m|min|minute|h|hour|d|day)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_rate(value: object) -> timedelta:
    """Return the time between two starts of a rate.

    >>> parse_rate("100/min").total_seconds()
    0.6

    Raises:
        InvalidValue: It is no rate, or out of bounds.
    """
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    remedy = "write a number of starts and a unit, such as 100/min, 5/s, 20/h or 1/day"
    if match is None:
        raise InvalidValue(problem=f"{shown(value)} is not a rate", remedy=remedy)
    count, seconds = Fraction(match.group(1)), _UNITS[match.group(2)[0]]
    if not SLOWEST <= count / seconds <= FASTEST:
        raise InvalidValue(problem=f"{shown(value)} is out of bounds", remedy="write 1/day to 10000/s")
    return timedelta(microseconds=round(seconds * 1_000_000 / count))


def _plain_key(key: str) -> str:
    if "{" in key or "}" in key:
        problem = "a key with braces is not yet available in this release"
        raise InvalidValue(problem=problem, remedy="write the key itself; a job.trigger may set another one")
    return key


ConcurrencyKeyName = Annotated[Key, AfterValidator(_plain_key)]


class ConcurrencyKey(StrictModel):
    """A key whose runs, of whatever jobs of the tenant, share places.

    Attributes:
        at_once: The number of runs with this key that are active at once; 1 without a rate, else unbounded.
        rate: The number of attempts with this key that start in a time, such as `100/min`.
        burst: With a rate: the number of starts at once after a rest.
    """

    key: ConcurrencyKeyName
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] | None = None
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
            raise InvalidValue(problem="it bounds a rate", remedy="write a rate, or leave it out", path="burst")
        return self


def _object(value: object) -> object:
    if isinstance(value, str):
        return {"key": value}
    if value is None or isinstance(value, ConcurrencyKey) or as_object(value) is not None:
        return value
    remedy = 'write a key, or {"key": ..., "at_once": 1}'
    raise InvalidValue(problem=f"{shown(value)} is not a key", remedy=remedy)


ConcurrencyKeyField = Annotated[ConcurrencyKey | None, BeforeValidator(_object)]
