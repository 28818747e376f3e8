"""Parse a document into a request, or refuse it with all its problems."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.requests import AnyRequest, Freeze, JobSubmit, Request, Thaw
from tidewheel.jobs.schedule import CronSpec
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.spec_cache import construct, read_job, schedule_in_zone
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import shown, validate
from tidewheel.jobs.values import Key, RunId, Tenant, is_plain_key, is_tenant, is_traceparent

_MODELS: dict[str, type[AnyRequest]] = {
    str(get_args(model.model_fields["type"].annotation)[0]): model for model in get_args(AnyRequest)
}
_SUBMIT_NAMES = frozenset({"type", "request_id", "tenant", "traceparent", "job"})
_KEY: TypeAdapter[str] = TypeAdapter(Key)
_TENANT: TypeAdapter[str] = TypeAdapter(Tenant)
_RUN_ID: TypeAdapter[str] = TypeAdapter(RunId)


class RequestRefused(InvalidInput):
    """A request that is refused; `identity` holds what the reply needs."""

    def __init__(self, errors: tuple[FieldError, ...], identity: "RequestIdentity") -> None:
        self.identity = identity
        super().__init__(errors)


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """The fields that identify a request; each is None if it is absent or unreadable."""

    type: str | None
    request_id: str | None
    tenant: str | None
    key: str | None
    run_id: str | None


def parse_request(document: Mapping[str, object]) -> Request:
    """Return the request a document describes, or raise RequestRefused; `job` may be a `JobSpec`."""
    try:
        if (quick := _submit_at_once(document)) is not None:
            return quick
    except InvalidValue as invalid:
        document = _without_payload(document, invalid)
    try:
        return validate(_model(document), dict(document))
    except InvalidValue as invalid:
        raise RequestRefused(invalid.errors, request_identity(document)) from invalid


def own_request(document: Mapping[str, object]) -> Request:
    """Return the request that a program of this process describes; its traceback shows one error."""
    try:
        return parse_request(document)
    except RequestRefused as refused:
        raise InvalidInput(refused.errors) from None


def parse_request_of(tenant: str, document: Mapping[str, object]) -> Request:
    """Return the request a document on a tenant's own topic describes: it is of this tenant, or refused.

    Raises:
        RequestRefused: As by `parse_request`, or the document names another tenant, or the fleet. The identity has the
            tenant of the topic.
    """
    named = document.get("tenant", tenant)
    document = {**document, "tenant": tenant}
    if named != tenant:
        raise RequestRefused((_not_of(tenant, named),), request_identity(document))
    request = parse_request(document)
    if isinstance(request, Freeze | Thaw) and request.scope == "fleet":
        problem = f"'fleet' is not {tenant}, the tenant of this topic"
        raise RequestRefused((FieldError("scope", problem, "write tenant"),), request_identity(document))
    return request


def _not_of(tenant: str, named: object) -> FieldError:
    if isinstance(named, UnreadableValue):
        return FieldError("tenant", named.problem, named.remedy)
    problem = f"{shown(named)} is not {tenant}, the tenant of this topic"
    return FieldError("tenant", problem, "leave it out, or send the request to the topic of its tenant")


def _submit_at_once(document: Mapping[str, object]) -> JobSubmit | None:
    """Return a plain `job.submit` without running its model; None for a document that the model must read.

    The result equals what the model returns.
    """
    job = as_object(document.get("job"))
    if not job or document.get("type") != "job.submit" or not document.keys() <= _SUBMIT_NAMES:
        return None
    request_id, tenant = document.get("request_id"), document.get("tenant", "default")
    traceparent = document.get("traceparent")
    named = is_plain_key(request_id) or "request_id" not in document
    if not (named and is_tenant(tenant) and (is_traceparent(traceparent) or "traceparent" not in document)):
        return None
    if (read := read_job(job)) is None:
        return None
    spec, cached = read
    fields = {
        "request_id": request_id,
        "tenant": tenant,
        "traceparent": traceparent,
        "type": "job.submit",
        "job": spec,
        "if_version": None,
        "cached": cached,
    }
    return construct(JobSubmit, fields, set(document))


def _without_payload(document: Mapping[str, object], invalid: InvalidValue) -> dict[str, object]:
    """Return a submit's document with the payload replaced by its error, so that it is found once."""
    [error] = invalid.errors
    job = as_object(document["job"]) or {}
    return {**document, "job": {**job, "payload": UnreadableValue(error.problem, error.remedy)}}


def in_zone(request: JobSubmit, zone: str) -> JobSubmit:
    """Return a submit whose cron schedule has a zone: this one, unless it names another."""
    job, cached = request.job, request.cached
    if not isinstance(job.schedule, CronSpec) or "timezone" in job.schedule.model_fields_set:
        return request
    timing = None if cached is None else schedule_in_zone(cached.schedule, zone)
    schedule = job.schedule.model_copy(update={"timezone": zone}) if timing is None else timing.schedule
    found = request.model_copy(update={"job": job.model_copy(update={"schedule": schedule})})
    if cached is not None and timing is not None:
        vars(found)["cached"] = cached._replace(schedule=timing)
    return found


def request_identity(document: Mapping[str, object]) -> RequestIdentity:
    """Return the readable fields that identify a request, however wrong the rest of its document is."""
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


def _readable(kind: TypeAdapter[str], value: object) -> str | None:
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError:
        return None


def _model(document: Mapping[str, object]) -> type[AnyRequest]:
    kind = document.get("type")
    if isinstance(kind, str) and kind in _MODELS:
        return _MODELS[kind]
    near = get_close_matches(kind, _MODELS, n=1) if isinstance(kind, str) and len(kind) <= 64 else []
    remedy = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(_MODELS)}"
    if isinstance(kind, UnreadableValue):
        raise InvalidValue(problem=kind.problem, remedy=kind.remedy, path="type")
    raise InvalidValue(
        problem="is missing" if "type" not in document else f"{shown(kind)} is not valid", remedy=remedy, path="type"
    )
