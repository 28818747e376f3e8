"""Models of the requests of executors in other languages; unknown fields are refused by name."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidewheel.executor.message_check import MessageCheck
from tidewheel.executor.outcome import (
    CANCELLED,
    NOT_STARTED,
    OUTPUT_BYTES,
    RELEASED,
    Outcome,
    Output,
    failed,
    succeeded,
    timed_out,
    waiting,
)
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.schedule import Interval
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import MAX_RESULT_BYTES, Key, Queue, RunId, bounded_json, few, one_line, span
from tidewheel.message_signatures import SIGNATURE_CHARACTERS
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.claim import Claim

MAX_SWEEP = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MICROS = 1 << 53
_LONGEST = timedelta(days=400)  # as of a delayed trigger

Status = Literal["succeeded", "failed", "timed_out", "cancelled", "snoozed", "released", "waiting"]
Timeout = Literal["start_to_close", "schedule_to_close", "heartbeat"]

# Fields of each status, besides the fence and the output.
_FIELDS: Mapping[Status, frozenset[str]] = {
    "succeeded": frozenset({"result", "next_in"}),
    "failed": frozenset({"error_type", "error_message", "trace", "permanent", "retry_after", "started", "next_in"}),
    "timed_out": frozenset({"timeout", "next_in"}),
    "cancelled": frozenset({"next_in"}),
    "snoozed": frozenset({"delay"}),
    "released": frozenset({"started"}),
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
    """Registration of an executor.

    Attributes:
        name: A display name, such as host and process.
        queues: The queues it serves.
        handlers: The handlers it has, which limit its sweeps.
        slots: How many attempts it executes at once.
    """

    name: Annotated[str, AfterValidator(one_line(255))]
    queues: Annotated[tuple[Queue, ...], BeforeValidator(few), Field(min_length=1)] = ("default",)
    handlers: Annotated[tuple[Key, ...], BeforeValidator(few), Field(min_length=1)]
    slots: Annotated[int, Field(ge=1, le=10000)]


class Heartbeat(StrictModel):
    """Heartbeat of an executor.

    Attributes:
        stopping: True while it shuts down.
    """

    stopping: bool = False


class RunToClaim(StrictModel):
    """Request to claim a run, from a message of it.

    Attributes:
        run_id: As in the message.
        attempt: As in the message.
        job_version: As in the message.
        claimed_from: `<topic>/<partition>/<offset>@<timestamp>` of the message.
        signature: The content of the message's header `signature`.
        digest: SHA-256 of the message's value, in hexadecimal digits.
        publish_at: As in the message, in microseconds since 1970. Without it a run whose inputs a trigger has replaced
            comes by a sweep.
    """

    run_id: RunId
    attempt: AttemptNumber
    job_version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    claimed_from: Annotated[str, AfterValidator(one_line(512))]
    signature: Annotated[str, Field(pattern=rf"^[!-~]{{{SIGNATURE_CHARACTERS}}}$")] | None = None
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    publish_at: Annotated[int, Field(ge=0, le=_LATEST_MICROS)] | None = None

    def is_accepted(self, check: MessageCheck) -> bool:
        """Return True if the executor may use the message."""
        topic, _, _ = self.claimed_from.partition("/")
        signature = None if self.signature is None or self.digest is None else self.signature.encode()
        digest = bytes.fromhex(self.digest or "")
        key = str(UUID(self.run_id)).encode()
        return check.accepts_parts(signature, topic, key, digest, source=self.claimed_from)

    def claim(self) -> Claim:
        """Return the request in the form of the claim code."""
        publish_at = None if self.publish_at is None else _EPOCH + timedelta(microseconds=self.publish_at)
        return Claim(UUID(self.run_id), self.attempt, self.job_version, self.claimed_from, publish_at=publish_at)


class ClaimRequest(StrictModel):
    """Request to claim runs.

    Attributes:
        claim_id: A rising number; a repeated number returns that claim's response again.
        runs: The runs of its messages.
        sweep: The number of due runs to claim from the table instead.
    """

    claim_id: Annotated[int, Field(ge=1, le=2**53)]
    runs: Annotated[tuple[RunToClaim, ...], BeforeValidator(few)] = ()
    sweep: Annotated[int, Field(ge=0, le=MAX_SWEEP)] = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.runs) == bool(self.sweep):
            raise InvalidValue(problem="runs and sweep cannot be combined", remedy="send exactly one", path="sweep")
        return self


class ReportedOutcome(StrictModel):
    """Outcome of one attempt.

    Attributes:
        run_id: The run.
        attempt: The attempt's number; with the executor's id it is the fence.
        status: Its outcome.
        result: Any JSON value.
        error_type: Compared with the job's non_retryable.
        error_message: The error's text, cut off after 4,096 characters.
        trace: The traceback; only the last 32 Ki characters are kept.
        permanent: True for an error that no retry can correct.
        retry_after: The shortest delay of the next attempt.
        started: False if the work certainly did not start.
        timeout: The timeout that fired.
        delay: The duration of a snooze.
        within: How long an external completion by task token may take.
        output: Its output; only the last 64 KiB are kept.
        next_in: The time from the run's end to the next run of its fixed_delay job, if this attempt ends the run;
            bounded by the job's `min` and `max`.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {"token": "leave it out; the executor's id is enough"}

    run_id: RunId
    attempt: AttemptNumber
    status: Status
    result: Annotated[bytes | None, BeforeValidator(bounded_json(MAX_RESULT_BYTES))] = None
    error_type: Key | None = None
    error_message: str = ""
    trace: str = ""
    permanent: bool = False
    retry_after: Annotated[timedelta | None, BeforeValidator(span(timedelta(0), _LONGEST))] = None
    started: bool = True
    timeout: Timeout | None = None
    delay: Annotated[timedelta | None, BeforeValidator(span(timedelta(0), _LONGEST))] = None
    within: Annotated[timedelta | None, BeforeValidator(span(timedelta(seconds=1), _LONGEST))] = None
    output: str | None = None
    next_in: Interval | None = None

    @model_validator(mode="after")
    def _fits_its_status(self) -> Self:
        for name in sorted(self.model_fields_set - _ALWAYS - _FIELDS[self.status]):
            raise InvalidValue(problem=f"is not allowed with {self.status!r}", remedy="leave it out", path=name)
        needed = _NEEDED.get(self.status)
        if needed is not None and getattr(self, needed) is None:
            raise InvalidValue(problem=f"is required with {self.status!r}", remedy="add it", path=needed)
        return self

    @property
    def fence(self) -> tuple[UUID, int]:
        """The run's id and the attempt's number."""
        return UUID(self.run_id), self.attempt

    def read(self, definition: JobDefinition) -> tuple[Outcome, Output | None]:
        """Return the outcome, and the output of the attempt."""
        output = None
        if self.output:
            output = Output()
            output.write(self.output.encode("utf-8", "backslashreplace")[-OUTPUT_BYTES:])
        outcome = self._outcome(definition)
        return outcome if self.next_in is None else replace(outcome, next_in=self.next_in), output

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
                not_started=not self.started,
            )
        if self.status == "released":
            return RELEASED if self.started else NOT_STARTED
        return CANCELLED if self.status == "cancelled" else succeeded(self.result)


class OutcomesRequest(StrictModel):
    """Outcomes of attempts.

    Attributes:
        outcomes: At most 100 outcomes.
    """

    outcomes: Annotated[tuple[ReportedOutcome, ...], BeforeValidator(few), Field(min_length=1)]


def _seconds(definition: JobDefinition, which: Timeout) -> float:
    limits = {
        "start_to_close": definition.start_to_close_ms,
        "schedule_to_close": definition.schedule_to_close_ms,
        "heartbeat": definition.heartbeat_ms,
    }
    return (limits[which] or 0) / 1000
