"""Refuse requests of unknown and of deleted tenants, and those that exceed the limits of their tenant.

One statement reads the tenants of a batch with their limits. A tenant without a quota of jobs is not locked. With a
quota, a batch with submits locks the quota. The lock comes before any timer, and lasts until the commit: two submits
of such a tenant come one after another. They count the tenant's jobs once, and store the room that is left. The next
ones take from that, and count again when it is too small: meanwhile jobs may have been deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, Refused, TenantLimitExceeded
from tidewheel.intake.request import ReceivedRequest
from tidewheel.intake.writing import Writing
from tidewheel.jobs.payload import Payload, too_large
from tidewheel.jobs.requests import BatchAdd, BatchSubmit, JobSubmit, JobTrigger
from tidewheel.postgres.pg_binary import texts, uuids
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.tenant_refusals import refusals_of

_SQL = Statements("tidewheel.intake")
_FIND_TENANTS = _SQL["find_tenants"]
_LOCK_JOB_QUOTA = _SQL["lock_job_quota"]
_TAKE_JOB_ROOM = _SQL["take_job_room"]
_LEAVE_JOB_ROOM = _SQL["leave_job_room"]
_COUNT_JOBS = _SQL["count_jobs"]
_FIND_LIVE_JOBS = _SQL["find_live_jobs"]

_TenantRow = tuple[str, int | None, int | None]


def exceeded(writing: Writing, batch: Sequence[ReceivedRequest]) -> dict[int, Refused]:
    """Return the refusals of a batch by position: unknown tenants, payloads, jobs beyond a quota."""
    tenants = sorted({received.tenant for received in batch})
    rows = cast("list[_TenantRow]", writing.execute(_FIND_TENANTS, tenants=texts(tenants)).fetchall())
    payloads = {tenant: most for tenant, _, most in rows if most is not None}
    quotas = {tenant: most for tenant, most, _ in rows if most is not None}
    unknown = set(tenants) - {row[0] for row in rows}
    refusals = refusals_of(writing.connection, unknown) if unknown else {}
    refused: dict[int, Refused] = {}
    for index, received in enumerate(batch):
        if received.tenant in refusals:
            refused[index] = refusals[received.tenant]
        elif received.tenant in payloads and (error := _too_large(received, payloads[received.tenant])):
            refused[index] = error
    submits = [
        (index, received)
        for index, received in enumerate(batch)
        if received.tenant in quotas and index not in refused and isinstance(received.request, JobSubmit)
    ]
    if submits:
        refused |= _beyond_quota(writing, submits, quotas)
    return refused


def _too_large(received: ReceivedRequest, most: int) -> Refused | None:
    found = (too_large(path, payload, received.tenant, most) for path, payload in _payloads(received.request))
    return next(filter(None, found), None)


def _payloads(request: object) -> Iterator[tuple[str, Payload | None]]:
    match request:
        case JobSubmit():
            yield "job.payload", request.job.carried
        case JobTrigger():
            yield "payload", request.carried
        case BatchSubmit() | BatchAdd():
            for index, run in enumerate(request.runs):
                yield f"runs.{index}.payload", run.carried
            if isinstance(request, BatchSubmit) and request.on is not None:
                for name, callback in request.on:
                    if callback is not None:
                        yield f"on.{name}.payload", callback.carried
        case _:
            pass


def _beyond_quota(
    writing: Writing, submits: Sequence[tuple[int, ReceivedRequest]], quotas: Mapping[str, int]
) -> dict[int, Refused]:
    tenants = sorted({received.tenant for _, received in submits})
    for tenant in tenants:
        writing.execute(_LOCK_JOB_QUOTA, tenant=tenant, quota=quotas[tenant])
    # A later statement than the lock: it sees the jobs that the wait has let commit.
    job_ids = uuids({received.job_id for _, received in submits})
    live = {cast("UUID", row[0]) for row in writing.read(_FIND_LIVE_JOBS, job_ids=job_ids)}
    refused: dict[int, Refused] = {}
    for tenant in tenants:
        most = quotas[tenant]
        new: dict[UUID, list[int]] = {}
        for index, received in submits:
            if received.tenant == tenant and received.job_id not in live:
                new.setdefault(received.job_id, []).append(index)
        if not new:
            continue
        room = _room(writing, tenant, most, len(new))
        problem = f"tenant {tenant} has its {most} jobs"
        remedy = "delete jobs that are not used, or raise the limit by `tidewheel admin tenant limits NAME --jobs`"
        error = TenantLimitExceeded(FieldError("job.key", problem, remedy))
        refused |= {index: error for indexes in list(new.values())[room:] for index in indexes}
    return refused


def _room(writing: Writing, tenant: str, most: int, jobs: int) -> int:
    """Return how many of so many new jobs fit, and take the room for these."""
    if writing.execute(_TAKE_JOB_ROOM, tenant=tenant, quota=most, jobs=jobs).rowcount:
        return jobs
    [(counted,)] = cast("list[tuple[int]]", writing.read(_COUNT_JOBS, tenant=tenant, limit=most))
    left = most - counted
    room = min(left, jobs)
    writing.execute(_LEAVE_JOB_ROOM, tenant=tenant, quota=most, room=left - room)
    return room
