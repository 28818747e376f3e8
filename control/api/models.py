"""What executors in other languages send, as models; unknown fields are refused by name."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidewheel.executor.attempt_output import OUTPUT_BYTES, Output
from tidewheel.executor.outcome import CANCELLED, NOT_STARTED, RELEASED, Outcome, failed, succeeded, timed_out, waiting
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import MAX_RESULT_BYTES, Key, Queue, RunId, bounded_json, few, one_line, span
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.claim import Claim

MOST_SWEPT = 100

_LONGEST = timedelta(days=400)  # as of a delayed trigger

Status = Literal["succeeded", "failed", "timed_out", "cancelled", "snoozed", "released", "waiting"]
Timeout = Literal["start_to_close", "schedule_to_close", "heartbeat"]

# What goes with which status, beside the fence and the output.
_FIELDS: Mapping[Status, frozenset[str]] = {
    "succeeded": frozenset({"result"}),
    "failed": frozenset({"error_type", "error_message", "trace", "permanent", "retry_after", "begun"}),
    "timed_out": frozenset({"timeout"}),
    "cancelled": frozenset(),
    "snoozed": frozenset({"delay"}),
    "released": frozenset({"begun"}),
    "waiting": frozenset({"within"}),
}
_NEEDED: Mapping[Status, str] = {
    "failed": "error_type",
    "timed_out": "timeout",
    "snoozed": "delay",
    "waiting": "within",
}
_ALWAYS = frozenset({"run_id", "attempt", "status", "output"})

AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Registration(StrictModel):
    """An executor that wants to enter.

    Attributes:
        name: For people, such as host and process.
        queues: The queues it serves.
        handlers: The handlers it has: what a sweep brings it.
        slots: How many attempts it has at once.
    """

    name: Annotated[str, AfterValidator(one_line(255))]
    queues: Annotated[tuple[Queue, ...], BeforeValidator(few), Field(min_length=1)] = ("default",)
    handlers: Annotated[tuple[Key, ...], BeforeValidator(few), Field(min_length=1)]
    slots: Annotated[int, Field(ge=1, le=10000)]


class Heartbeat(StrictModel):
    """An executor lives.

    Attributes:
        stopping: It is on its way out.
    """

    stopping: bool = False


class RunToClaim(StrictModel):
    """A run that an executor has a message of.

    Attributes:
        run_id: As in the message.
        attempt: As in the message.
        job_version: As in the message.
        claimed_from: `<topic>/<partition>/<offset>@<timestamp>` of the message.
    """

    run_id: RunId
    attempt: AttemptNumber
    job_version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    claimed_from: Annotated[str, AfterValidator(one_line(512))]

    def claim(self) -> Claim:
        """The wish as claims have it."""
        return Claim(UUID(self.run_id), self.attempt, self.job_version, self.claimed_from)


class ClaimRequest(StrictModel):
    """A claim.

    Attributes:
        claim_id: A number that rises; the same again to be told the answer of that claim again.
        wishes: What there are messages of.
        sweep: How many due runs to take from the table instead.
    """

    claim_id: Annotated[int, Field(ge=1, le=2**53)]
    wishes: Annotated[tuple[RunToClaim, ...], BeforeValidator(few)] = ()
    sweep: Annotated[int, Field(ge=0, le=MOST_SWEPT)] = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.wishes) == bool(self.sweep):
            raise InvalidValue(problem="wishes and sweep exclude each other", remedy="send one of them", path="sweep")
        return self


class ReportedOutcome(StrictModel):
    """How one attempt ended.

    Attributes:
        run_id: The run.
        attempt: The attempt: with the executor's id the fence.
        status: How it ended.
        result: Any JSON value.
        error_type: Compared with the job's non_retryable.
        error_message: What went wrong; what lies beyond 4,096 characters is cut off.
        trace: Where; of more than 32 Ki characters the last are kept.
        permanent: No further attempt makes sense.
        retry_after: The next attempt comes no sooner.
        begun: Whether the work may have begun.
        timeout: Which timeout struck.
        delay: How long it snoozes.
        within: How long the end may take that is told with the task token.
        output: What it wrote; of more than 64 KiB the last are kept.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"token": "an executor is known by its id; leave it out"}

    run_id: RunId
    attempt: AttemptNumber
    status: Status
    result: Annotated[bytes | None, BeforeValidator(bounded_json(MAX_RESULT_BYTES))] = None
    error_type: Key | None = None
    error_message: str = ""
    trace: str = ""
    permanent: bool = False
    retry_after: Annotated[timedelta | None, BeforeValidator(span(timedelta(0), _LONGEST))] = None
    begun: bool = True
    timeout: Timeout | None = None
    delay: Annotated[timedelta | None, BeforeValidator(span(timedelta(0), _LONGEST))] = None
    within: Annotated[timedelta | None, BeforeValidator(span(timedelta(seconds=1), _LONGEST))] = None
    output: str | None = None

    @model_validator(mode="after")
    def _fits_its_status(self) -> Self:
        for name in sorted(self.model_fields_set - _ALWAYS - _FIELDS[self.status]):
            raise InvalidValue(problem=f"{self.status!r} has none", remedy="leave it out", path=name)
        needed = _NEEDED.get(self.status)
        if needed is not None and getattr(self, needed) is None:
            raise InvalidValue(problem=f"is missing, with {self.status!r}", remedy="add it", path=needed)
        return self

    @property
    def fence(self) -> tuple[UUID, int]:
        """Run and attempt."""
        return UUID(self.run_id), self.attempt

    def read(self, definition: JobDefinition) -> tuple[Outcome, Output | None]:
        """The outcome, and what was written meanwhile."""
        output = None
        if self.output:
            output = Output()
            output.write(self.output.encode("utf-8", "backslashreplace")[-OUTPUT_BYTES:])
        return self._outcome(definition), output

    def _outcome(self, definition: JobDefinition) -> Outcome:
        if self.timeout is not None:
            return timed_out(self.timeout, _seconds(definition, self.timeout))
        if self.delay is not None:
            return Outcome(AttemptOutcome.SNOOZED, snooze=self.delay)
        if self.within is not None:
            return waiting(self.within)
        if self.error_type is not None:
            return failed(
                self.error_type,
                self.error_message,
                trace=self.trace,
                permanent=self.permanent,
                retry_after=self.retry_after,
                not_started=not self.begun,
            )
        if self.status == "released":
            return RELEASED if self.begun else NOT_STARTED
        return CANCELLED if self.status == "cancelled" else succeeded(self.result)


class OutcomesRequest(StrictModel):
    """How attempts ended.

    Attributes:
        outcomes: At most 100.
    """

    outcomes: Annotated[tuple[ReportedOutcome, ...], BeforeValidator(few), Field(min_length=1)]


def _seconds(definition: JobDefinition, which: Timeout) -> float:
    limits = {
        "start_to_close": definition.start_to_close_ms,
        "schedule_to_close": definition.schedule_to_close_ms,
        "heartbeat": definition.heartbeat_ms,
    }
    return (limits[which] or 0) / 1000
