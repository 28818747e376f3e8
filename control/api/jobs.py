"""Routes of jobs by hand: those with a whole job as their body, triggers and releases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import (
    ENTITY_TAG,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LOCATION,
    READ_FROM,
    TRACEPARENT,
    answer,
    as_json_response,
    call,
    entity_tag,
    expected_version,
    idempotency_key,
    location,
)
from tidewheel.control.api.authorization import SPEND, Caller, Operator, Reader, Writer
from tidewheel.control.api.openapi import IN_ADDRESS, add_route, body_of, patch_of
from tidewheel.control.api.request_input import (
    ELSEWHERE,
    TenantQuery,
    Text,
    as_key,
    read_body,
    read_document,
    read_key,
    read_query,
    read_verb,
)
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection, drop_none
from tidewheel.control.explain.preview import Preview, preview
from tidewheel.errors import FieldError, Refused, RequestConflict, VersionConflict, refuse
from tidewheel.jobs.parsing import RequestRefused, parse_request
from tidewheel.jobs.requests import JobTrigger
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.validation import StrictModel, place_of
from tidewheel.jobs.values import Instant, Key
from tidewheel.nouns.jobs.changes import ReleaseResult, patch_job, release
from tidewheel.nouns.jobs.model import ChangedJob, job_of
from tidewheel.nouns.jobs.operations import JOB, JOBS
from tidewheel.nouns.jobs.web import SPEC
from tidewheel.schemas.generated.records import Reply, ReplyStatus

_MOST_JOBS = 500  # of one bulk: about as many fit into a body, and one transaction
_SPEC = {"$ref": "#/components/schemas/JobSpec"}
_MERGE_PATCH = "application/merge-patch+json"
_KEYLESS = {name: part for name, part in SPEC.items() if name != "key"}


class PreviewBody(StrictModel):
    """Body of a preview."""

    job: Annotated[dict[str, object], Field(description="The job as in a submit; its key may be left out.")]
    limit: Annotated[int, Field(ge=1, le=100, description="How many occurrences.")] = 10
    after: Annotated[Instant | None, Field(description="The occurrences after this instant; by default now.")] = None


class BulkBody(StrictModel):
    """Body of a bulk."""

    jobs: list[dict[str, object]] = Field(
        min_length=1, max_length=_MOST_JOBS, description="The jobs, each as in a submit."
    )


class ReleaseBody(StrictModel):
    """Body of a release of quarantined jobs."""

    keys: list[Key] = Field(default_factory=list[str], max_length=_MOST_JOBS, description="Only these jobs.")
    error: Annotated[Text | None, Field(description="Only jobs whose error contains this text.")] = None
    everything: Annotated[bool, Field(description="True to release all.")] = False
    dry_run: Annotated[bool, Field(description="Only count them.")] = False


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """A run that a request has created."""

    run_id: Annotated[UUID, Field(description="The run; of a trigger with dedupe it may be that of an earlier one.")]
    dedupe: Annotated[
        str | None,
        Field(description="Of a trigger with dedupe: `accepted`, `deduplicated`, `replaced` or `debounced`."),
    ]
    runs_at: Annotated[datetime | None, Field(description="Of a trigger with dedupe: when the run is due.")]


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Result of one job of a bulk: a changed job, or the errors of a rejected one."""

    key: str | None
    accepted: bool
    job: ChangedJob | None
    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class BulkResults:
    """Results of a bulk, in the order of its jobs."""

    accepted: int
    rejected: int
    results: tuple[BulkResult, ...]


@dataclass(frozen=True, slots=True)
class JobsApi:
    """Calls about jobs."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        submitted = body_of(JobSpec)
        route = partial(add_route, router, query=TenantQuery)
        change = partial(route, scope=Scope.WRITE)
        edit = partial(change, answer=ChangedJob, headers=IDEMPOTENCY_KEY | IF_MATCH | IF_NONE_MATCH)
        submit = partial(edit, also=HTTPStatus.CREATED, sets=ENTITY_TAG | LOCATION, body=submitted)
        submit("POST", JOBS, self.create_job, sent=SPEC)
        # A job that does not fit is no reason to refuse the others.
        any_job = {"anyOf": [_SPEC, {"type": "object", "additionalProperties": True}]}
        jobs = {"type": "array", "items": any_job, "minItems": 1, "maxItems": _MOST_JOBS}
        change("POST", f"{JOBS}:bulk", self.submit_jobs, answer=BulkResults, headers=IDEMPOTENCY_KEY,
               body=body_of(BulkBody, typed={"jobs": jobs}), sent={"jobs": [SPEC]})  # fmt: skip
        route("POST", f"{JOBS}:preview", self.preview_job, scope=Scope.READ, answer=Preview, sets=READ_FROM,
              body=body_of(PreviewBody, typed={"job": _SPEC}), sent={"job": SPEC, "limit": 3})  # fmt: skip
        route("POST", f"{JOBS}:release", self.release_jobs, scope=Scope.OPERATE, answer=ReleaseResult,
              body=body_of(ReleaseBody), sent={"keys": ["nightly"]})  # fmt: skip
        change("POST", f"{JOB}:trigger", self.trigger_job, headers=IDEMPOTENCY_KEY | TRACEPARENT,
               status=HTTPStatus.CREATED, sets=LOCATION, answer=CreatedRun,
               body=body_of(JobTrigger, without=IN_ADDRESS),
               sent={"payload": {"to": "a@example.org"}, "delay": "10s"})  # fmt: skip
        submit("PUT", JOB, self.put_job, sent=_KEYLESS)
        edit("PATCH", JOB, self.patch_job, sets=ENTITY_TAG, body=patch_of(submitted, "JobPatch"),
             sent={"labels": {"team": "billing"}}, content=("application/json", _MERGE_PATCH))  # fmt: skip

    async def preview_job(self, request: Request, caller: Reader) -> Response:
        """Return what an unsaved job would do: its policies in words, and its next occurrences."""
        read_query(request, TenantQuery)
        body = await read_body(request, PreviewBody)

        def read(connection: Connection) -> Preview:
            allowed, late = connection.installation.allow_lists, connection.installation.misfire_after
            with connection.snapshot() as reading:
                return preview(
                    reading, caller.tenant, body.job, body.limit, body.after, allow_lists=allowed, misfire_after=late
                )

        return await answer(self.reads, caller, read)

    async def create_job(self, request: Request, caller: Writer) -> Response:
        """Create a job, or change it to this spec; an identical spec changes nothing."""
        read_query(request, TenantQuery)
        return await self._submit(request, caller, await read_document(request))

    async def put_job(self, request: Request, caller: Writer) -> Response:
        """Create the job of this key, or change it to this spec."""
        read_query(request, TenantQuery)
        key, body = read_key(request), await read_document(request)
        if body.setdefault("key", key) != key:
            refuse("key", "differs from the key in the URL", "leave it out")
        return await self._submit(request, caller, body)

    async def patch_job(self, request: Request, caller: Writer) -> Response:
        """Change single fields of a job, by a JSON merge patch (RFC 7396)."""
        read_query(request, TenantQuery)
        key, expected, request_id = read_key(request), expected_version(request), idempotency_key(request)
        patch = await read_document(request, kinds=("application/json", _MERGE_PATCH))

        def change(connection: Connection) -> Reply:
            return patch_job(connection, key, patch, if_version=expected, request_id=request_id)

        return await self._changed(caller, change)

    async def trigger_job(self, request: Request, caller: Writer) -> Response:
        """Run a job once, now or later."""
        sent, request_id = await read_verb(request, "job.trigger", key=read_key(request)), idempotency_key(request)
        reply = await call(self.writes, caller, lambda each: each.request(sent, request_id))
        where = location(caller, f"/api/v1/runs/{reply.run_id}")
        runs_at = None if reply.dedupe is None else reply.next_run_at
        body = {"run_id": reply.run_id, "dedupe": reply.dedupe, "runs_at": runs_at}
        return as_json_response(body, HTTPStatus.CREATED, where)

    async def release_jobs(self, request: Request, caller: Operator) -> Response:
        """Release quarantined jobs."""
        read_query(request, TenantQuery)
        body = await read_body(request, ReleaseBody)

        def change(connection: Connection) -> ReleaseResult:
            return release(connection, body.keys, error=body.error, everything=body.everything, dry_run=body.dry_run)

        return await answer(self.writes, caller, change)

    async def submit_jobs(self, request: Request, caller: Writer) -> Response:
        """Submit up to 500 jobs in one transaction; a rejected job does not affect the others."""
        read_query(request, TenantQuery)
        body, request_id = await read_body(request, BulkBody), idempotency_key(request)
        if request_id is not None:
            as_key(f"{request_id}/{_MOST_JOBS}", "Idempotency-Key")
        if (spend := request.scope.get(SPEND)) is not None:
            spend(len(body.jobs) - 1)
        documents = [
            {"type": "job.submit", "job": job, "request_id": request_id and f"{request_id}/{number}"}
            for number, job in enumerate(body.jobs)
        ]
        return await answer(self.writes, caller, lambda connection: _bulk(connection, documents))

    async def _submit(self, request: Request, caller: Caller, job: Mapping[str, object]) -> Response:
        expected, request_id = expected_version(request, creates=True), idempotency_key(request)
        document = {"type": "job.submit", "job": job, "if_version": expected}
        return await self._changed(caller, lambda each: each.request(document, request_id), creates=True)

    async def _changed(
        self, caller: Caller, change: Callable[[Connection], Reply], *, creates: bool = False
    ) -> Response:
        reply = await call(self.writes, caller, partial(_with_body_paths, change))
        job = job_of(reply)
        if not (creates and job.version == 1 and not job.unchanged):
            return as_json_response(job, headers=entity_tag(job.version))
        where = location(caller, f"{JOBS}/{quote(job.key, safe='')}")
        return as_json_response(job, HTTPStatus.CREATED, entity_tag(job.version) | where)


def _with_body_paths(change: Callable[[Connection], Reply], connection: Connection) -> Reply:
    """Apply a change whose `job` is the body: the paths of a refusal begin in the body."""
    try:
        return change(connection)
    except VersionConflict:
        raise
    except Refused as error:
        refused = Refused(_in_body(error.errors))
        refused.code = error.code
        raise refused from error


def _in_body(errors: Sequence[FieldError], at: str = "") -> list[FieldError]:
    """Return errors of `job` as errors of a body that has the job at this path."""
    found: list[FieldError] = []
    for each in errors:
        head, dot, name = each.path.partition(".")
        if head == "job":
            path, remedy = f"{at}{dot}{name}" if at else name, place_of(name, ELSEWHERE) or each.remedy
            found.append(FieldError(path, each.problem, remedy))
        else:
            found.append(each)
    return found


def _bulk(connection: Connection, documents: Sequence[Mapping[str, object]]) -> BulkResults:
    """Submit jobs; a document that is no request is rejected here, the others by intake."""
    refused: dict[int, RequestRefused] = {}
    for number, each in enumerate(documents):
        try:
            parse_request(drop_none({**each, "tenant": connection.tenant}))
        except RequestRefused as error:
            refused[number] = error.without_frames()
    replies = iter(connection.request_all([each for at, each in enumerate(documents) if at not in refused]))
    results = [
        _bulk_refused(at, refused[at].identity.key, refused[at].errors)
        if at in refused
        else _bulk_result(at, next(replies))
        for at in range(len(documents))
    ]
    accepted = sum(each.accepted for each in results)
    return BulkResults(accepted, len(results) - accepted, tuple(results))


def _bulk_result(at: int, reply: Reply) -> BulkResult:
    if reply.status is ReplyStatus.ACCEPTED:
        return BulkResult(reply.key, accepted=True, job=job_of(reply), errors=())
    errors = [FieldError(each.path, each.problem, each.remedy) for each in reply.errors]
    if reply.code == RequestConflict.code:
        errors = [replace(each, path="Idempotency-Key") for each in errors]
    return _bulk_refused(at, reply.key, errors)


def _bulk_refused(at: int, key: str | None, errors: Sequence[FieldError]) -> BulkResult:
    return BulkResult(key, accepted=False, job=None, errors=tuple(_in_body(errors, f"jobs.{at}")))
