"""The retry policy as submitted."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import Finite, Key, few, format_duration, parse_percentage, span

DEFAULT_ATTEMPTS = 4
MAX_ATTEMPTS = 1000
SHORTEST_DELAY = timedelta(milliseconds=1)
LONGEST_DELAY = timedelta(days=30)

_Delay = Annotated[timedelta, BeforeValidator(span(SHORTEST_DELAY, LONGEST_DELAY))]


def _fraction(value: object) -> float:
    return parse_percentage(value) / 100


class RetryPolicy(StrictModel):
    """Retry policy of a job: the number of attempts and the delays between them.

    Attributes:
        initial: The delay before the second attempt; with `fixed`, before every one.
        factor: With `exponential`: the factor from each delay to the next.
        max: With `exponential`: the longest delay, before jitter.
        jitter: The largest random deviation of a delay, earlier or later (±), as a percentage such as `10%`.
        intervals: The delays before attempts 2, 3, ...; the last one repeats.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"start_to_close": "write it beside retry, in job"}

    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] | None = None
    backoff: Literal["exponential", "fixed", "intervals"] | None = None
    initial: _Delay = timedelta(seconds=2)
    factor: Annotated[Finite, Field(ge=1, le=1000)] = 2.0
    max: _Delay = timedelta(hours=1)
    jitter: Annotated[float, BeforeValidator(_fraction), WithJsonSchema({"type": "string"}, mode="validation")] = 0.1
    intervals: Annotated[tuple[_Delay, ...], Field(min_length=1), BeforeValidator(few)] | None = None
    non_retryable: Annotated[tuple[Key, ...], BeforeValidator(few)] = ()

    @property
    def kind(self) -> Literal["exponential", "fixed", "intervals"]:
        """The backoff in force: as given, else `intervals` if there are any, else `exponential`."""
        return self.backoff or ("exponential" if self.intervals is None else "intervals")

    @property
    def attempts(self) -> int:
        """The limit on counted attempts: as given, else one more than the intervals, else four."""
        if self.max_attempts is not None:
            return self.max_attempts
        return DEFAULT_ATTEMPTS if self.intervals is None else len(self.intervals) + 1

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.intervals is not None and self.kind != "intervals":
            problem = f"backoff {self.kind!r} and intervals cannot be combined"
            raise InvalidValue(problem=problem, remedy="leave one out", path="intervals")
        if self.intervals is None and self.kind == "intervals":
            raise InvalidValue(
                problem="is missing", remedy='add the delays, such as ["1s", "10s", "1m"]', path="intervals"
            )
        if self.kind == "exponential" and self.initial > self.max:
            problem = f"{format_duration(self.initial)} is longer than max, {format_duration(self.max)}"
            raise InvalidValue(problem=problem, remedy="raise max, or lower initial", path="initial")
        return self
