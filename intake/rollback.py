"""`job.rollback`: submit the spec and payload of an earlier version as a new version.

The stored spec is the submitted one, before defaults, in canonical form. In the form of
`submitted_form` it has the same hash.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, VersionConflict
from tidewheel.intake.calendars import lock_calendars
from tidewheel.intake.locks import JobRow, lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.timers import next_instants
from tidewheel.intake.writing import Writing
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.requests import JobRollback, JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.spec_cache import submitted_form
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, Reply, ReplyError, ReplyStatus

_SQL = Statements("tidewheel.intake")
_READ_REQUESTED_VERSIONS = _SQL["read_requested_versions"]
_READ_EARLIEST_VERSIONS = _SQL["read_earliest_versions"]


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """An earlier version, as it is stored."""

    spec: Mapping[str, object]
    definition: JobDefinition

    @property
    def calendars(self) -> list[str]:
        """The calendars that it names."""
        names = [self.spec.get("exclude_calendars", ()), self.spec.get("include_calendars", ())]
        return [name for some in names for name in cast("Sequence[str]", some)]


def apply_rollbacks(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Roll jobs back."""
    stored = _read(writing, batch)
    # Before any timer, as a submit does.
    named = {(one.definition.tenant, name) for one in stored.values() for name in one.calendars}
    lock_calendars(writing.connection, named)
    locked = lock_jobs(writing, batch)
    current = {job_id: job for job_id, job in locked.jobs.items() if job.exists}
    found = writing.read(_READ_EARLIEST_VERSIONS, job_ids=uuids(current))
    earliest = dict(cast("list[tuple[UUID, int]]", found))
    next_run_at = next_instants(writing, list(current))
    replies: dict[UUID, Reply] = {}
    submits: list[tuple[ReceivedRequest, ReceivedRequest]] = []
    for received in batch:
        job_id = received.job_id
        job = current.get(job_id)
        try:
            version = _target_version(received, job, earliest.get(job_id, 1))
            if job is not None and version == job.version:
                facts = {"job_id": str(job_id), "job_version": version, "next_run_at": next_run_at.get(job_id)}
                replies[job_id] = accepted(received, **facts, unchanged=True)
            else:
                submits.append((received, _submit(received, stored.get(job_id), version)))
        except Refused as refused:
            replies[job_id] = rejected(received, refused)
    reasons: dict[UUID, str] = {rollback.job_id: _reason(rollback.of(JobRollback)) for rollback, _ in submits}
    submitted = apply_submits(writing, [submit for _, submit in submits], reasons)
    for (rollback, _), reply in zip(submits, submitted, strict=True):
        replies[rollback.job_id] = _reply(rollback, reply)
    return [replies[received.job_id] for received in batch]


def stored_spec(spec: Mapping[str, object], definition: JobDefinition) -> JobSpec:
    """Return the spec that a version was submitted with; InvalidInput if it is not supported any more.

    The stored spec is canonical, without the payload, which the definition has.
    """
    form = submitted_form(spec)
    is_json = definition.payload_content_type == JSON_CONTENT
    if is_json and definition.payload:
        form = {**form, "payload": json.loads(definition.payload)}  # keys may be filled with its fields
    request = parse_request({"type": "job.submit", "job": form})
    assert isinstance(request, JobSubmit)  # noqa: S101 - by its type
    if is_json and not definition.payload:
        return request.job
    # The bytes as they were: a number may have been written in another form.
    return request.job.model_copy(update={"payload" if is_json else "payload_base64": definition.payload})


def _read(writing: Writing, batch: Sequence[ReceivedRequest]) -> dict[UUID, _StoredVersion]:
    """Return those of the requested versions that exist."""
    columns = {
        "job_ids": uuids(received.job_id for received in batch),
        "versions": integers(received.of(JobRollback).version for received in batch),
    }
    rows = writing.connection.execute(_READ_REQUESTED_VERSIONS, columns).fetchall()
    return {
        job_id: _StoredVersion(spec, decode(definition, JobDefinition))
        for job_id, spec, definition in cast("list[tuple[UUID, Mapping[str, object], bytes]]", rows)
    }


def _reason(request: JobRollback) -> str:
    return f"rollback to version {request.version}" + (f": {request.reason}" if request.reason else "")


def _target_version(received: ReceivedRequest, job: JobRow | None, earliest: int) -> int:
    """Return the requested version."""
    request = received.of(JobRollback)
    if job is None:
        raise UnknownJob(received.tenant, received.key or "")
    if request.if_version is not None and request.if_version != job.version:
        raise VersionConflict(request.if_version, job.version)
    if not earliest <= request.version <= job.version:
        problem = f"there is no version {request.version} of {job.key!r}"
        remedy = f"write {earliest} to {job.version}" if earliest < job.version else "it has no other version"
        raise InvalidInput([FieldError("version", problem, remedy)])
    return request.version


def _submit(received: ReceivedRequest, stored: _StoredVersion | None, version: int) -> ReceivedRequest:
    """Return the submit of an earlier version's spec."""
    if stored is None:
        problem = f"version {version} of {received.key!r} no longer exists"
        raise InvalidInput([FieldError("version", problem, "write another version, or submit the spec")])
    try:
        spec = stored_spec(stored.spec, stored.definition)
    except InvalidInput as refused:
        raise InvalidInput([_version_error(version, error) for error in refused.errors]) from refused
    # The spec of a job that was submitted without a key has none: the request_id names the job.
    request = JobSubmit(type="job.submit", tenant=received.tenant, request_id=received.key, job=spec)
    return replace(received, request=request)


def _version_error(version: int, error: FieldError | ReplyError) -> FieldError:
    problem = f"the {error.path} of version {version}: {error.problem}" if error.path else error.problem
    return FieldError("version", problem, error.remedy)


def _reply(received: ReceivedRequest, reply: Reply) -> Reply:
    """Return the reply to a rollback from the reply to its submit."""
    if reply.status is ReplyStatus.REJECTED:
        version = received.of(JobRollback).version
        return rejected(received, InvalidInput([_version_error(version, error) for error in reply.errors]))
    facts = {"job_id": reply.job_id, "job_version": reply.job_version, "next_run_at": reply.next_run_at}
    return accepted(received, **facts, unchanged=reply.unchanged)
