"""Create jobs that do not exist, within the limits of their tenant; refuse what exceeds them.

A new job has no timer, run or override to consider. Most specs have a cached pattern and schedule
(`tidewheel.jobs.spec_cache`): their start is computed once per batch. Other specs take the path of `next_version`, with
the same refusals. Both have their rows written by `job_rows`. Jobs that exist, deleted ones among them, are edited by
`submit`.

A bulk load has no request_id, no reply and, by default, no events. Each job is checked like a submit. A batch is one
transaction. A load that is repeated creates the missing jobs only, since a job's id is derived from its key.

One statement reads the tenants of a batch, with limits and zones. A tenant without a quota of jobs is not locked. With
a quota, a batch with submits locks the quota. The lock comes before any timer, and lasts until the commit: two submits
of such a tenant come one after another. They count the tenant's jobs once, and store the room that is left. The next
ones take from that, and count again when it is too small: meanwhile jobs may have been deleted.
"""

import logging
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.audit import Actor, Change, process_actor, record_change
from tidewheel.errors import FieldError, InvalidInput, Refused, TenantLimitExceeded, Unavailable, VersionConflict
from tidewheel.intake.calendars import lock_calendars, named_calendars, unknown_calendars, write_job_calendars
from tidewheel.intake.group_requests import keep_frozen_jobs
from tidewheel.intake.job_rows import NewJob, ScheduleStart, write_new_jobs
from tidewheel.intake.locks import absent_job
from tidewheel.intake.next_version import (
    NextVersion,
    VersionInputs,
    anchored,
    at_root,
    ensure_allowed,
    ensure_can_run,
    ensure_remembered,
    first_anchor,
    next_version,
    once_at,
)
from tidewheel.intake.request import ReceivedRequest, rejected
from tidewheel.intake.writing import Writing
from tidewheel.jobs.parsing import in_zone
from tidewheel.jobs.payload import Payload, too_large
from tidewheel.jobs.requests import BatchAdd, BatchSubmit, JobSubmit, JobTrigger
from tidewheel.jobs.schedule import AfterSpec
from tidewheel.jobs.spec_cache import CachedSpec, ScheduleTemplate
from tidewheel.jobs.strict_json import canonical
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.pg_binary import texts, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.decision import CatchUp
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule, schedule_from_text
from tidewheel.schedules.schedule import TICK, FixedDelay, Once
from tidewheel.schedules.timer_state import DaySets
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.kept_since import share_kept_since
from tidewheel.transitions.tenant_refusals import refusals_of

_LOG = logging.getLogger("tidewheel.intake")

_SQL = Statements("tidewheel.intake")

_TenantRow = tuple[str, int | None, int | None, str | None]

_NO_JOB = UUID(int=0)  # for a schedule that does not depend on the job's id
_TRIES = 5  # each failed try means that another transaction has created one of the jobs

_UNCHECKED = FieldError("job.schedule.after", "a bulk load does not check graphs", "leave out --bulk")


def exceeded(writing: Writing, batch: Sequence[ReceivedRequest]) -> dict[int, Refused]:
    """Return the refusals of a batch by position: unknown tenants, payloads, jobs beyond a quota.

    The zones of its tenants are kept in `writing`.
    """
    tenants = sorted({received.tenant for received in batch})
    rows = cast("list[_TenantRow]", writing.execute(_SQL["find_tenants"], tenants=texts(tenants)).fetchall())
    payloads = {tenant: most for tenant, _, most, _ in rows if most is not None}
    quotas = {tenant: most for tenant, most, _, _ in rows if most is not None}
    writing.zones = {tenant: zone for tenant, _, _, zone in rows if zone is not None}
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


def zoned(writing: Writing, received: ReceivedRequest) -> ReceivedRequest:
    """Return a request whose cron schedule has its tenant's zone, unless it names one."""
    zone = writing.zones.get(received.tenant)
    if zone is None or not isinstance(received.request, JobSubmit):
        return received
    return replace(received, request=in_zone(received.request, zone))


def tenant_zone(connection: Conn, tenant: str) -> str | None:
    """Return the zone of a tenant; None if it has none."""
    row = cast("_TenantRow | None", connection.execute(_SQL["find_tenants"], {"tenants": texts([tenant])}).fetchone())
    return None if row is None else row[3]


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
        writing.execute(_SQL["lock_old_job_quota"], tenant=tenant)
        writing.execute(_SQL["lock_job_quota"], tenant=tenant, quota=quotas[tenant])
    # A later statement than the lock: it sees the jobs that the wait has let commit.
    job_ids = uuids({received.job_id for _, received in submits})
    live = {cast("UUID", row[0]) for row in writing.read(_SQL["find_live_jobs"], job_ids=job_ids)}
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
        problem = f"tenant {tenant} has reached its limit of {most} jobs"
        remedy = "delete unused jobs, or raise the limit with `tidewheel admin tenant limits NAME --jobs`"
        error = TenantLimitExceeded(FieldError("job.key", problem, remedy))
        refused |= {index: error for indexes in list(new.values())[room:] for index in indexes}
    return refused


def _room(writing: Writing, tenant: str, most: int, jobs: int) -> int:
    """Return how many of so many new jobs fit, and take the room for these."""
    if writing.execute(_SQL["take_job_room"], tenant=tenant, quota=most, jobs=jobs).rowcount:
        return jobs
    [(counted,)] = cast("list[tuple[int]]", writing.read(_SQL["count_jobs"], tenant=tenant, limit=most))
    left = most - counted
    room = min(left, jobs)
    writing.execute(_SQL["leave_job_room"], tenant=tenant, quota=most, room=left - room)
    return room


class Created(NamedTuple):
    """The new jobs of a batch, and the refusals of the others, by id."""

    jobs: dict[UUID, NewJob]
    refused: dict[UUID, Refused]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a batch of a bulk load; `refused` has the replies by the position in the batch.

    Deleted jobs count as `existing`.
    """

    created: int
    existing: int
    refused: dict[int, Reply]


def load_jobs(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    emit_events: bool = False,
    actor: Actor | None = None,
) -> Loaded:
    """Create the jobs of a batch that do not exist, and leave the others, in the caller's transaction.

    Of several submits of one job the first counts. The audit log gets a row for the batch.

    Raises:
        Unavailable: Other transactions have created some of the jobs again and again: roll back and try again.
    """
    writing = Writing(connection, installation, actor)
    refused = {index: rejected(batch[index], refusal) for index, refusal in exceeded(writing, batch).items()}
    refused |= {
        index: rejected(received, InvalidInput([_UNCHECKED]))
        for index, received in enumerate(batch)
        if isinstance(received.request, JobSubmit) and isinstance(received.request.job.schedule, AfterSpec)
    }
    first: dict[UUID, int] = {}
    for index, received in enumerate(batch):
        if index not in refused:
            first.setdefault(received.job_id, index)
    submits = [zoned(writing, batch[index]) for index in first.values()]
    day_sets = lock_calendars(connection, named_calendars(submits))
    created = create_jobs(writing, submits, day_sets, spread=True, emit_events=emit_events)
    if created.jobs:
        change = Change(submits[0].tenant, "job.load", "jobs", objects=len(created.jobs), adds_up=True)
        record_change(connection, actor or process_actor(), change)
    refused |= {first[job]: rejected(batch[first[job]], error) for job, error in created.refused.items()}
    return Loaded(len(created.jobs), len(batch) - len(refused) - len(created.jobs), refused)


def create_jobs(
    writing: Writing,
    batch: Sequence[ReceivedRequest],
    day_sets: DaySets,
    *,
    spread: bool = False,
    emit_events: bool = True,
) -> Created:
    """Create the jobs of a batch that do not exist; their calendars are locked.

    Raises:
        Unavailable: Other transactions have created some of the jobs again and again: roll back and try again.
    """
    for _ in range(_TRIES):
        existing = _find_jobs(writing, [received.job_id for received in batch])
        new = [received for received in batch if received.job_id not in existing]
        if not new:
            return Created({}, {})
        creation = _Creation(writing, writing.now(), day_sets, spread=spread)
        created = creation.prepare(new)
        jobs = list(created.jobs.values())
        if write_new_jobs(writing, jobs, creation.now, emit_events=emit_events):
            named = ((job, _calendars(job)) for job in jobs)
            write_job_calendars(writing, {job.job_id: (job.tenant, names) for job, names in named if names})
            keep_frozen_jobs(writing.connection, created.jobs)
            _warn_of_look_alikes(jobs)
            return created
    raise Unavailable("other transactions created some of these jobs at the same time")


def _find_jobs(writing: Writing, job_ids: Collection[UUID]) -> set[UUID]:
    found = writing.read(_SQL["find_jobs"], job_ids=uuids(job_ids))
    return {job for (job,) in cast("list[tuple[UUID]]", found)}


def _warn_of_look_alikes(jobs: Iterable[NewJob]) -> None:
    for job in jobs:
        if not job.key.isascii() and (plain := unicodedata.normalize("NFKC", job.key)) != job.key:
            _LOG.warning("the key %a of tenant %s looks like %a but names a different job", job.key, job.tenant, plain)


class _Creation:
    """One try to create jobs, at one time; the start of each cached schedule is computed once."""

    def __init__(self, writing: Writing, now: datetime, day_sets: DaySets, *, spread: bool) -> None:
        self.now, self._allow_lists = now, writing.installation.allow_lists
        self._connection, self._day_sets, self._spread = writing.connection, day_sets, spread
        self._starts: dict[tuple[ScheduleTemplate, datetime | None], ScheduleStart | None] = {}
        self._kept_since: dict[str, datetime | None] = {}

    def prepare(self, new: Iterable[ReceivedRequest]) -> Created:
        created = Created({}, {})
        for received in new:
            try:
                created.jobs[received.job_id] = self._job(received)
            except Refused as refused:
                created.refused[received.job_id] = refused
        return created

    def _job(self, received: ReceivedRequest) -> NewJob:
        request = received.of(JobSubmit)
        ensure_allowed(request.job.target, self._allow_lists)
        cached, job_id = request.cached, received.job_id
        start = self._shared_start(cached, job_id) if cached and received.key else None
        if start is None:
            cached, start = None, self._computed_start(received, request)
        return NewJob(
            job_id, str(job_id), received.tenant, received.key or "", request.job, received.spec_hash, cached, start
        )

    def _shared_start(self, cached: CachedSpec, job_id: UUID) -> ScheduleStart | None:
        """Return the start of a cached schedule; None if it has to be computed for the job, or refused."""
        pattern, timing = cached
        anchor = first_anchor(timing.document, job_id, self.now, spread=self._spread)
        try:
            start = self._starts[timing, anchor]
        except KeyError:
            start = self._starts[timing, anchor] = _cached_start(timing, anchor, self.now)
        skips = pattern.spec.catch_up == CatchUp.SKIP.value
        late = skips and start and timing.kind == "once" and start.next_at and start.next_at <= self.now
        return None if late else start

    def _computed_start(self, received: ReceivedRequest, request: JobSubmit) -> ScheduleStart:
        if request.if_version:
            raise VersionConflict(request.if_version, None)
        unknown = unknown_calendars(self._connection, received.tenant, request.job, self._day_sets)
        if unknown is not None:
            raise unknown
        job = absent_job(received.job_id, received.tenant, received.key or "", self.now)
        try:
            ensure_can_run(request.job, job, self.now, self._day_sets, spread=self._spread)
            self._ensure_remembered(received, request)
            inputs = VersionInputs(self.now, spread_anchor=self._spread)
            return _start_of(next_version(request.job, job, inputs, self._day_sets))
        except Refused as refused:
            raise at_root(refused) from refused

    def _ensure_remembered(self, received: ReceivedRequest, request: JobSubmit) -> None:
        at = once_at(request.job, received.job_id)
        if at is None or at >= start_of(day_of(self.now)):
            return
        if received.tenant not in self._kept_since:
            self._kept_since[received.tenant] = share_kept_since(self._connection, received.tenant)
        ensure_remembered(at, self._kept_since[received.tenant])


def _calendars(job: NewJob) -> tuple[str, ...]:
    return () if job.cached is not None else (*job.spec.exclude_calendars, *job.spec.include_calendars)


def _cached_start(timing: ScheduleTemplate, anchor: datetime | None, now: datetime) -> ScheduleStart | None:
    if any(uses_hash(str(each)) for each in cast("list[object]", timing.document.get("expressions", ()))):
        return None  # `H` depends on the job's id
    document = anchored(timing.document, anchor)
    text = canonical(document).decode()
    try:
        # The parsed form of a cron is cached; a schedule that has its own instant is not worth a cache entry.
        schedule = schedule_from_text(text, _NO_JOB) if timing.kind == "cron" else parse_schedule(document)
        ensure_can_fire(schedule, now)
    except Refused:
        return None
    match schedule:
        case Once():
            if schedule.at < start_of(day_of(now)):
                return None  # its run may be dropped
            anchor, next_at = None, cast("datetime | None", schedule.at)
        case FixedDelay():
            next_at = schedule.due(now, None)
        case _:
            next_at = schedule.after(now)
    return ScheduleStart(text, timing.kind, timing.interval_us, anchor, next_at, next_at, next_at)


def _start_of(version: NextVersion) -> ScheduleStart:
    next_at = version.next_at
    # A timer with calendars is also due to record excluded days, which have no run.
    fires_at = version.effective.after(next_at - TICK) if version.calendars and next_at else version.due_at
    text, kind, every = version.schedule_text, version.kind, version.interval_us
    return ScheduleStart(text, kind, every, version.anchor, next_at, version.due_at, fires_at)
