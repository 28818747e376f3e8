"""Create jobs that do not exist.

A new job has no timer, run or override to consider. Most specs have a cached pattern and schedule
(`tidewheel.jobs.spec_cache`): their start is computed once per batch. Other specs take the path of `next_version`, with
the same refusals. Both have their rows written by `job_rows`. Jobs that exist, deleted ones among them, are edited by
`submit`.
"""

import logging
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.errors import Refused, Unavailable, VersionConflict
from tidewheel.intake.allowed_targets import ensure_allowed
from tidewheel.intake.calendars import unknown_calendars, write_job_calendars
from tidewheel.intake.freezes import keep_frozen_jobs
from tidewheel.intake.job_rows import NewJob, ScheduleStart, write_new_jobs
from tidewheel.intake.locks import absent_job
from tidewheel.intake.next_version import (
    NextVersion,
    VersionInputs,
    anchored,
    at_root,
    ensure_can_run,
    ensure_remembered,
    first_anchor,
    next_version,
    once_at,
)
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.spec_cache import CachedSpec, ScheduleTemplate
from tidewheel.jobs.strict_json import canonical
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.cron_parser import uses_hash
from tidewheel.schedules.parse import ensure_can_fire, parse_schedule, schedule_from_text
from tidewheel.schedules.policies import CatchUp
from tidewheel.schedules.schedule import TICK, FixedDelay, Once
from tidewheel.schedules.timer_state import DaySets
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.kept_since import share_kept_since

_LOG = logging.getLogger("tidewheel.intake")

_FIND_JOBS = Statements("tidewheel.intake")["find_jobs"]

_NO_JOB = UUID(int=0)  # for a schedule that does not depend on the job's id
_TRIES = 5  # each failed try means that another transaction has created one of the jobs


class Created(NamedTuple):
    """The new jobs of a batch, and the refusals of the others, by id."""

    jobs: dict[UUID, NewJob]
    refused: dict[UUID, Refused]


def create_jobs(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    day_sets: DaySets,
    *,
    spread: bool = False,
    emit_events: bool = True,
) -> Created:
    """Create the jobs of a batch that do not exist, in the caller's transaction.

    Args:
        batch: Submits of different jobs.
        day_sets: The calendars that the specs name, locked.
        spread: Spread the anchors of intervals, as `first_anchor` does.

    Raises:
        Unavailable: Other transactions have created some of the jobs again and again: roll back and try again.
    """
    for _ in range(_TRIES):
        existing = find_jobs(connection, [received.job_id for received in batch])
        new = [received for received in batch if received.job_id not in existing]
        if not new:
            return Created({}, {})
        creation = _Creation(connection, installation.allow_lists, read_now(connection), day_sets, spread=spread)
        created = creation.prepare(new)
        jobs = list(created.jobs.values())
        if write_new_jobs(connection, installation, jobs, creation.now, emit_events=emit_events):
            write_job_calendars(
                connection, {job.job_id: (job.tenant, named) for job in jobs if (named := _calendars(job))}
            )
            keep_frozen_jobs(connection, created.jobs)
            _warn_of_look_alikes(jobs)
            return created
    message = "other transactions have created some of these jobs at the same time"
    raise Unavailable(message)


def find_jobs(connection: Conn, job_ids: Collection[UUID]) -> set[UUID]:
    """Return the ids of those jobs that exist, deleted ones among them."""
    found = connection.execute(_FIND_JOBS, {"job_ids": uuids(job_ids)}, binary=True).fetchall()
    return {job for (job,) in cast("list[tuple[UUID]]", found)}


def _warn_of_look_alikes(jobs: Iterable[NewJob]) -> None:
    """Log the keys that look like others: with combining, full-width or other compatible characters."""
    for job in jobs:
        if not job.key.isascii() and (plain := unicodedata.normalize("NFKC", job.key)) != job.key:
            _LOG.warning("the key %a of tenant %s looks like %a, and is another job's", job.key, job.tenant, plain)


class _Creation:
    """One try to create jobs, at one time."""

    def __init__(
        self, connection: Conn, allow_lists: AllowLists, now: datetime, day_sets: DaySets, *, spread: bool
    ) -> None:
        self.now, self._allow_lists = now, allow_lists
        self._connection, self._day_sets, self._spread = connection, day_sets, spread
        self._starts = _ScheduleStarts(now, spread=spread)
        self._kept_since: dict[str, datetime | None] = {}

    def prepare(self, new: Iterable[ReceivedRequest]) -> Created:
        """Compute the jobs of these submits, or refuse them."""
        created = Created({}, {})
        for received in new:
            try:
                created.jobs[received.job_id] = self._job(received)
            except Refused as refused:
                created.refused[received.job_id] = refused
        return created

    def _job(self, received: ReceivedRequest) -> NewJob:
        request = received.request
        assert isinstance(request, JobSubmit)  # noqa: S101 - by the table of `apply`
        ensure_allowed(request.job.target, self._allow_lists)
        cached, job_id = request.cached, received.job_id
        start = self._starts.of(cached, job_id) if cached and received.key else None
        if start is None:
            cached, start = None, self._computed_start(received, request)
        return NewJob(
            job_id, str(job_id), received.tenant, received.key or "", request.job, received.spec_hash, cached, start
        )

    def _computed_start(self, received: ReceivedRequest, request: JobSubmit) -> ScheduleStart:
        """Compute the start of a spec that has no cached start."""
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
        if received.tenant not in self._kept_since:  # a job that does not exist has no limit of its own
            self._kept_since[received.tenant] = share_kept_since(self._connection, received.tenant, received.job_id)
        ensure_remembered(at, self._kept_since[received.tenant])


class _ScheduleStarts:
    """The starts of cached schedules at one time, each computed once."""

    def __init__(self, now: datetime, *, spread: bool = False) -> None:
        self._now, self._spread = now, spread
        self._starts: dict[tuple[ScheduleTemplate, datetime | None], ScheduleStart | None] = {}

    def of(self, cached: CachedSpec, job_id: UUID) -> ScheduleStart | None:
        """Return the start of a new job; None if it has to be computed for the job, or refused."""
        pattern, timing = cached
        anchor = first_anchor(timing.document, job_id, self._now, spread=self._spread)
        try:
            start = self._starts[timing, anchor]
        except KeyError:
            start = self._starts[timing, anchor] = _cached_start(timing, anchor, self._now)
        skips = pattern.spec.catch_up == CatchUp.SKIP.value
        late = skips and start and timing.kind == "once" and start.next_at and start.next_at <= self._now
        return None if late else start


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
    return ScheduleStart(
        version.schedule_text,
        version.kind,
        version.interval_us,
        version.anchor,
        next_at,
        version.due_at,
        fires_at,
    )
