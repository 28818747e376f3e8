"""What can be asked of Tidewheel, each request a model of its own, told apart by `type`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.misfit import Misfit, Misread
from tidewheel.jobs.payload import WithPayload
from tidewheel.jobs.refusals import shown, validated
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.submitted import Submitted
from tidewheel.jobs.values import Instant, Key, Labels, Reason, RunId, Tenant, Traceparent, span

LONGEST_DELAY = timedelta(days=400)  # beyond that, a `once` job: a delayed trigger is an open run all the while

_IN_JOB = "write it inside job"


class RequestRefused(InvalidInput):
    """A request that can be read but is refused; `identity` says whom to answer.

    Args:
        errors: Every problem found.
        identity: What could be read of the request all the same.
    """

    def __init__(self, errors: tuple[FieldError, ...], identity: "RequestIdentity") -> None:
        self.identity = identity
        super().__init__(errors)


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What tells one request from another, each None where it is absent or cannot be read."""

    type: str | None
    request_id: str | None
    tenant: str | None
    key: str | None
    run_id: str | None


class _Asked(Submitted):
    """What every request may carry."""

    request_id: Key | None = None
    tenant: Tenant = "default"
    traceparent: Traceparent | None = None


class JobSubmit(_Asked):
    """Create a job, or change it to this spec."""

    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(JobSpec.model_fields, _IN_JOB)

    type: Literal["job.submit"]
    job: JobSpec


class JobTrigger(_Asked, WithPayload):
    """Run a job once: now, after a delay, or at an instant.

    Attributes:
        payload: In place of the job's.
        labels: In place of the job's.
    """

    later: ClassVar[Mapping[str, str]] = {
        "overlap": "the job's own overlap policy holds",
        "lane": "the job's own lane is used",
        "queue": "the job's own queue is used",
    }

    type: Literal["job.trigger"]
    key: Key
    delay: Annotated[timedelta, BeforeValidator(span(timedelta(0), LONGEST_DELAY))] | None = None
    run_at: Instant | None = None
    labels: Labels | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.delay is not None and self.run_at is not None:
            raise Misfit(problem="delay and run_at exclude each other", remedy="leave one of them out", path="delay")
        return self


class _AboutJob(_Asked):
    """What concerns one job by its key."""

    key: Key
    reason: Reason | None = None


class JobPause(_AboutJob):
    """Fire no occurrence of a job until it is resumed."""

    later: ClassVar[Mapping[str, str]] = {
        "until": "send job.resume at that time",
        "paused_until": "send job.resume at that time",
    }

    type: Literal["job.pause"]


class JobResume(_AboutJob):
    """Fire a paused job's occurrences again."""

    type: Literal["job.resume"]


class JobDelete(_AboutJob):
    """Remove a job; runs that have begun finish."""

    type: Literal["job.delete"]


class RunCancel(_Asked):
    """End a run, whatever state it is in."""

    type: Literal["run.cancel"]
    run_id: RunId
    reason: Reason | None = None


Request: TypeAlias = Annotated[
    JobSubmit | JobTrigger | JobPause | JobResume | JobDelete | RunCancel, Field(discriminator="type")
]

_MODELS: dict[str, type[JobSubmit | JobTrigger | JobPause | JobResume | JobDelete | RunCancel]] = {
    "job.submit": JobSubmit,
    "job.trigger": JobTrigger,
    "job.pause": JobPause,
    "job.resume": JobResume,
    "job.delete": JobDelete,
    "run.cancel": RunCancel,
}
_LATER_TYPES = {"job.backfill": "send one job.trigger for each instant"}


def parse_request(document: Mapping[str, object]) -> Request:
    """Return the request a document describes; `job` may be a `JobSpec` in place of an object.

    Raises:
        RequestRefused: It describes none that this release can carry out; an InvalidInput that knows whom to answer.
    """
    try:
        return validated(_model(document), dict(document))
    except Misfit as misfit:
        raise RequestRefused(misfit.errors, request_identity(document)) from misfit


def request_identity(document: Mapping[str, object]) -> RequestIdentity:
    """Return what can be read of who asked for what, however wrong the rest of a document is."""
    job = document.get("job")
    inner = {"key": job.key} if isinstance(job, JobSpec) else as_object(job) or {}
    kind = document.get("type")
    return RequestIdentity(
        type=kind if isinstance(kind, str) and kind in _MODELS else None,
        request_id=_readable(_KEY, document.get("request_id")),
        tenant=_readable(_TENANT, document.get("tenant", "default")),
        key=_readable(_KEY, document.get("key", inner.get("key"))),
        run_id=_readable(_RUN_ID, document.get("run_id")),
    )


_KEY: TypeAdapter[str] = TypeAdapter(Key)
_TENANT: TypeAdapter[str] = TypeAdapter(Tenant)
_RUN_ID: TypeAdapter[str] = TypeAdapter(RunId)


def _readable(kind: TypeAdapter[str], value: object) -> str | None:
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError:
        return None


def _model(
    document: Mapping[str, object],
) -> type[JobSubmit | JobTrigger | JobPause | JobResume | JobDelete | RunCancel]:
    kind = document.get("type")
    if isinstance(kind, str) and kind in _MODELS:
        return _MODELS[kind]
    if isinstance(kind, str) and kind in _LATER_TYPES:
        raise Misfit(problem=f"{kind!r} is not yet available in this release", remedy=_LATER_TYPES[kind], path="type")
    near = get_close_matches(kind, _MODELS, n=1) if isinstance(kind, str) and len(kind) <= 64 else []
    remedy = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(_MODELS)}"
    if isinstance(kind, Misread):
        raise Misfit(problem=kind.problem, remedy=kind.remedy, path="type")
    raise Misfit(
        problem="is missing" if "type" not in document else f"{shown(kind)} was read", remedy=remedy, path="type"
    )
