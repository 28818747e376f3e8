"""`job.rollback`: a new version with the spec and payload of an earlier one, made by the very path of a submit.

The stored spec is what was submitted, before defaults, in its canonical form; read again it has the hash it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, VersionConflict
from tidewheel.intake.calendars import lock_calendars
from tidewheel.intake.locks import JobRow, job_id_of, lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.submit import apply_submits
from tidewheel.intake.timers import next_instants
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.requests import JobRollback, JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition, Reply, ReplyError, ReplyStatus
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_READ_WANTED_VERSIONS = _SQL["read_wanted_versions"]
_READ_EARLIEST_VERSIONS = _SQL["read_earliest_versions"]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A version as it is stored."""

    spec: Mapping[str, object]
    definition: JobDefinition

    @property
    def calendars(self) -> list[str]:
        """The calendars it names."""
        names = [self.spec.get("exclude_calendars", ()), self.spec.get("include_calendars", ())]
        return [name for some in names for name in cast("Sequence[str]", some)]


def apply_rollbacks(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Go back to earlier versions, in the caller's transaction; an answer for each request, in their order."""
    stored = _read(connection, batch)
    # As a submit does, before any timer.
    lock_calendars(connection, {(one.definition.tenant, name) for one in stored.values() for name in one.calendars})
    locked = lock_jobs(connection, installation, batch)
    current = {job_id: job for job_id, job in locked.jobs.items() if job.exists}
    earliest = _earliest(connection, list(current))
    following = next_instants(connection, list(current))
    answers: dict[UUID, Reply] = {}
    submits: list[tuple[ReceivedRequest, ReceivedRequest]] = []
    for received in batch:
        job_id = job_id_of(received)
        job = current.get(job_id)
        try:
            version = _wanted(received, job, earliest.get(job_id, 1))
            if job is not None and version == job.version:
                facts = {"job_id": str(job_id), "job_version": version, "next_run_at": following.get(job_id)}
                answers[job_id] = accepted(received, **facts, unchanged=True)
            else:
                submits.append((received, _submit(received, stored.get(job_id), version)))
        except Refused as refused:
            answers[job_id] = rejected(received, refused)
    reasons = {job_id_of(asked): _reason(asked) for asked, _ in submits}
    replies = apply_submits(connection, installation, [submit for _, submit in submits], reasons=reasons)
    answers |= {job_id_of(asked): _answer(asked, reply) for (asked, _), reply in zip(submits, replies, strict=True)}
    return [answers[job_id_of(received)] for received in batch]


def stored_spec(spec: Mapping[str, object], definition: JobDefinition) -> JobSpec:
    """The spec that a version was made from.

    Args:
        spec: As `job_versions` has it: canonical, without the payload.
        definition: What its runs carry, the payload among it.

    Raises:
        InvalidInput: This release cannot carry it out.
    """
    document = dict(spec)
    retry = document.get("retry")
    if isinstance(retry, dict) and "jitter" in retry:
        # Canonical as a fraction, submitted as a percentage.
        share = cast("float", retry["jitter"])  # pyright: ignore[reportUnknownArgumentType]
        document["retry"] = {**cast("dict[str, object]", retry), "jitter": f"{share * 100:.6f}%"}
    request = parse_request({"type": "job.submit", "job": document})
    assert isinstance(request, JobSubmit)  # noqa: S101 - its type says so
    if not definition.payload and definition.payload_content_type == JSON_CONTENT:
        return request.job
    field = "payload" if definition.payload_content_type == JSON_CONTENT else "payload_base64"
    return request.job.model_copy(update={field: definition.payload})


def _read(connection: Conn, batch: Sequence[ReceivedRequest]) -> dict[UUID, _Stored]:
    """The versions asked for, of those that there are."""
    columns = {
        "job_ids": uuids(job_id_of(received) for received in batch),
        "versions": integers(_version(received) for received in batch),
    }
    rows = connection.execute(_READ_WANTED_VERSIONS, columns).fetchall()
    return {
        job_id: _Stored(spec, decode(definition, JobDefinition))
        for job_id, spec, definition in cast("list[tuple[UUID, Mapping[str, object], bytes]]", rows)
    }


def _earliest(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, int]:
    rows = connection.execute(_READ_EARLIEST_VERSIONS, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return dict(cast("list[tuple[UUID, int]]", rows))


def _version(received: ReceivedRequest) -> int:
    assert isinstance(received.request, JobRollback)  # noqa: S101 - by accept's table
    return received.request.version


def _reason(received: ReceivedRequest) -> str:
    assert isinstance(received.request, JobRollback)  # noqa: S101 - by accept's table
    said = received.request.reason
    return f"rollback to version {received.request.version}" + (f": {said}" if said else "")


def _wanted(received: ReceivedRequest, job: JobRow | None, earliest: int) -> int:
    """The version asked for.

    Raises:
        Refused: It is not to be had.
    """
    request = received.request
    assert isinstance(request, JobRollback)  # noqa: S101 - by accept's table
    if job is None:
        raise UnknownJob(received.tenant, received.key or "")
    if request.if_version is not None and request.if_version != job.version:
        raise VersionConflict(request.if_version, job.version)
    if not earliest <= request.version <= job.version:
        problem = f"there is no version {request.version} of {job.key!r}"
        remedy = f"write {earliest} to {job.version}" if earliest < job.version else "it has no other than this"
        raise InvalidInput([FieldError("version", problem, remedy)])
    return request.version


def _submit(received: ReceivedRequest, stored: _Stored | None, version: int) -> ReceivedRequest:
    """The submit that a rollback is."""
    if stored is None:
        problem = f"there is no version {version} of {received.key!r} any more"
        raise InvalidInput([FieldError("version", problem, "write another one, or submit the spec")])
    try:
        spec = stored_spec(stored.spec, stored.definition)
    except InvalidInput as refused:
        raise InvalidInput([_of_version(version, error) for error in refused.errors]) from refused
    # A job that was submitted without a key is named by what stands in its place.
    request = JobSubmit(type="job.submit", tenant=received.tenant, request_id=received.key, job=spec)
    return replace(received, request=request)


def _of_version(version: int, error: FieldError | ReplyError) -> FieldError:
    problem = f"the {error.path} of version {version}: {error.problem}" if error.path else error.problem
    return FieldError("version", problem, error.remedy)


def _answer(received: ReceivedRequest, reply: Reply) -> Reply:
    """A submit's answer as the rollback's."""
    if reply.status is ReplyStatus.REJECTED:
        refused = InvalidInput([_of_version(_version(received), error) for error in reply.errors])
        return rejected(received, refused)
    return accepted(
        received,
        job_id=reply.job_id,
        job_version=reply.job_version,
        next_run_at=reply.next_run_at,
        unchanged=reply.unchanged,
    )
