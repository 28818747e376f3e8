"""From a document to the request it describes, or to why it is refused and whom to answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.invalid import InvalidValue, UnreadableValue
from tidewheel.jobs.requests import AnyRequest, JobSubmit, Request
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.spec_cache import made, read_job
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import shown, validate
from tidewheel.jobs.values import Key, RunId, Tenant, is_plain_key, is_tenant, is_traceparent

_MODELS: dict[str, type[AnyRequest]] = {
    str(get_args(model.model_fields["type"].annotation)[0]): model for model in get_args(AnyRequest)
}


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


def parse_request(document: Mapping[str, object]) -> Request:
    """Return the request a document describes; `job` may be a `JobSpec` in place of an object.

    Raises:
        RequestRefused: It describes none that this release can carry out; an InvalidInput that knows whom to answer.
    """
    try:
        if (quick := _submit_at_once(document)) is not None:
            return quick
    except InvalidValue as invalid:
        document = _without_payload(document, invalid)
    try:
        return validate(_model(document), dict(document))
    except InvalidValue as invalid:
        raise RequestRefused(invalid.errors, request_identity(document)) from invalid


_SUBMIT_NAMES = frozenset({"type", "request_id", "tenant", "traceparent", "job"})


def _submit_at_once(document: Mapping[str, object]) -> JobSubmit | None:
    """The submit that a document is beyond doubt, exactly as its model reads it; of any other the model decides."""
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
    spec, known = read
    fields = {
        "request_id": request_id,
        "tenant": tenant,
        "traceparent": traceparent,
        "type": "job.submit",
        "job": spec,
        "if_version": None,
        "known": known,
    }
    return made(JobSubmit, fields, set(document))


def _without_payload(document: Mapping[str, object], invalid: InvalidValue) -> dict[str, object]:
    """A submit's document with what is wrong with its payload, found once, in the payload's place."""
    [error] = invalid.errors
    job = as_object(document["job"]) or {}
    return {**document, "job": {**job, "payload": UnreadableValue(error.problem, error.remedy)}}


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


def _model(document: Mapping[str, object]) -> type[AnyRequest]:
    kind = document.get("type")
    if isinstance(kind, str) and kind in _MODELS:
        return _MODELS[kind]
    near = get_close_matches(kind, _MODELS, n=1) if isinstance(kind, str) and len(kind) <= 64 else []
    remedy = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(_MODELS)}"
    if isinstance(kind, UnreadableValue):
        raise InvalidValue(problem=kind.problem, remedy=kind.remedy, path="type")
    raise InvalidValue(
        problem="is missing" if "type" not in document else f"{shown(kind)} was read", remedy=remedy, path="type"
    )
