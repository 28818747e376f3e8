"""`job.backfill`, `backfill.pause`, `backfill.resume` and `backfill.cancel`.

The scheduler creates the runs. A backfill is checked and written under the job's lock. The lock covers the number of
its backfills, the versions of the range, and the time that is part of this backfill's run ids. A repeated request finds
the same backfill.

The other three are idempotent, and their replies have the backfill's state. A paused backfill creates no further run. A
cancellation ends the runs that never started in the same transaction; at most 1,000 are open at once. Started runs go
on, also between two attempts. Ended runs stay as they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Never, cast
from uuid import UUID, uuid4

from tidewheel.errors import InvalidInput, ScheduleRefused, UnknownBackfill, UnknownJob, refuse
from tidewheel.ids import hashed_id, run_range
from tidewheel.intake.locks import lock_jobs
from tidewheel.intake.request import ReceivedRequest, accepted
from tidewheel.intake.writing import Writing, one_by_one
from tidewheel.jobs.requests import BackfillCancel, BackfillPause, BackfillResume, JobBackfill
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import NOT_STARTED, Overlap, RunState
from tidewheel.schedules.decision import BackfillState
from tidewheel.schedules.ranges import Range, calendars_of, range_of
from tidewheel.schedules.schedule import TICK, FixedDelay, Manual, Schedule
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.backfills import (
    MAX_VERSIONS,
    Backfill,
    VersionInForce,
    append_backfill_event,
    read_covered_instants,
    read_versions,
)
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.kept_since import share_kept_since

_SQL = Statements("tidewheel.intake")
_READ_JOB_KEY = Statements("tidewheel.transitions")["read_job_key"]

_REASON = "backfill_cancelled"
_CHANGES: dict[type, tuple[tuple[BackfillState, ...], BackfillState]] = {
    BackfillPause: ((BackfillState.RUNNING,), BackfillState.PAUSED),
    BackfillResume: ((BackfillState.PAUSED,), BackfillState.RUNNING),
    BackfillCancel: ((BackfillState.RUNNING, BackfillState.PAUSED), BackfillState.CANCELLED),
}  # the states that a request changes, and the new one

MAX_UNFINISHED = 100
"""Unfinished backfills of one job: the scheduler reads each several times a second."""

TAKE_CURRENT = "write versions: current"
"""The remedy of a range that the versions in force then do not cover."""
TAKE_ALL = "what: all"
"""The remedy of a range whose recorded runs are dropped."""

MAX_OCCURRENCES = 100_000
"""The occurrences of one backfill, a day of a one-second job; to count them takes a second at most."""

_KEY, _FROM, _TO = "key", "from", "to"
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # run ids count from here
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _BackfilledJob:
    job_id: UUID
    key: str
    shard: int
    version: int
    deleted_at: datetime | None
    is_ordered: bool
    unfinished: int
    last_created_at: datetime | None


def apply_backfills(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Apply backfills."""
    ids = sorted({received.job_id for received in batch})
    lock_jobs(writing, batch)  # timers too: a later request of the transaction may pause the job
    found = writing.read_as(_BackfilledJob, _SQL["read_backfilled_jobs"], job_ids=ids)
    jobs = {job.job_id: job for job in found if job.version and job.deleted_at is None}
    return one_by_one(batch, lambda received: _accept(writing, received, jobs.get(received.job_id)))


def _accept(writing: Writing, received: ReceivedRequest, job: _BackfilledJob | None) -> Reply:
    request, connection = received.of(JobBackfill), writing.connection
    if job is None:
        raise UnknownJob(received.tenant, received.key or "")
    backfill_id = _backfill_id(received, job.job_id)
    existing = writing.read(_SQL["find_backfill"], backfill_id=backfill_id)
    if existing and not request.dry_run:
        facts = {"occurrences": existing[0][0], "backfill_id": str(backfill_id)}
        return _accepted(received, job, **facts, unchanged=True)
    now = writing.now()
    _ensure_not_too_many(job, request)
    if job.is_ordered and request.overlap not in {None, Overlap.ALLOW_ALL}:
        refuse("overlap", "the job has an ordering_key", "leave it out; ordered runs never overlap")
    _, expected = found = _find_occurrences(connection, job.job_id, job.version, request, now=now)
    if request.dry_run:
        return _accepted(received, job, occurrences=expected)
    backfill = _backfill(backfill_id, received, job, found, _created_at(job, now))
    connection.execute(_SQL["add_backfill"], asdict(backfill))
    key, why = job.key, request.reason
    append_backfill_event(
        connection, writing.installation, "job.backfill_started", backfill, job_key=key, now=now, reason=why
    )
    return _accepted(received, job, occurrences=expected, backfill_id=str(backfill_id))


def _accepted(received: ReceivedRequest, job: _BackfilledJob, **facts: object) -> Reply:
    return accepted(received, job_id=str(job.job_id), job_version=job.version, **facts)


def _backfill_id(received: ReceivedRequest, job_id: UUID) -> UUID:
    seed = received.seed()
    return hashed_id(b"backfill%b%b" % (job_id.bytes, seed)) if seed else uuid4()


def _ensure_not_too_many(job: _BackfilledJob, request: JobBackfill) -> None:
    if job.unfinished >= MAX_UNFINISHED and not request.dry_run:
        problem = f"the job has {job.unfinished} unfinished backfills; the limit is {MAX_UNFINISHED}"
        refuse("key", problem, "wait for them, or cancel some")


def _created_at(job: _BackfilledJob, now: datetime) -> datetime:
    """Return a millisecond that no other backfill of the job has; their run ids differ by it."""
    created_at = now.replace(microsecond=now.microsecond // 1000 * 1000)
    return created_at if job.last_created_at is None else max(created_at, job.last_created_at + _MILLISECOND)


def _backfill(
    backfill_id: UUID, received: ReceivedRequest, job: _BackfilledJob, found: tuple[int, int], created_at: datetime
) -> Backfill:
    request = received.of(JobBackfill)
    newest_first = request.order == "newest_first"
    return Backfill(
        backfill_id=backfill_id,
        tenant=request.tenant,
        job_id=job.job_id,
        shard=job.shard,
        job_version=job.version,
        state=BackfillState.RUNNING,
        first_at=request.from_at,
        last_at=request.to_at,
        what=request.what,
        versions=request.versions,
        overlap=request.overlap,
        newest_first=newest_first,
        max_concurrent=request.max_concurrent,
        occurrences=found[0],
        expected_count=found[1],
        cursor_at=request.to_at if newest_first else request.from_at,
        request_id=request.request_id,
        traceparent=received.traceparent,
        requested_from=received.requested_from,
        reason=request.reason,
        created_at=created_at,
    )


def change_backfill(writing: Writing, received: ReceivedRequest) -> Reply:
    """Pause, resume or cancel a backfill."""
    request = cast("BackfillPause | BackfillResume | BackfillCancel", received.request)
    rows = writing.read_as(
        Backfill, _SQL["lock_backfill"], backfill_id=UUID(request.backfill_id), tenant=received.tenant
    )
    if not rows:
        raise UnknownBackfill(request.backfill_id)
    backfill = rows[0]
    sources, target = _CHANGES[type(request)]
    state = BackfillState(backfill.state)
    changed = state in sources
    row = writing.read(_READ_JOB_KEY, job_id=backfill.job_id)
    key = str(row[0][0]) if row else ""
    if changed:
        state = target
        _write(writing, backfill, state, job_key=key, reason=request.reason)
    return accepted(
        received,
        key=key,
        job_id=str(backfill.job_id),
        backfill_id=request.backfill_id,
        backfill_status=state.value,
        occurrences=backfill.expected_count,
        unchanged=not changed,
    )


def _write(writing: Writing, backfill: Backfill, state: BackfillState, *, job_key: str, reason: str | None) -> None:
    now = writing.now()
    finished_at = now if state is BackfillState.CANCELLED else None
    writing.execute(
        _SQL["set_backfill_state"],
        backfill_id=backfill.backfill_id,
        state=state,
        reason=reason,
        finished_at=finished_at,
    )
    if state is BackfillState.CANCELLED:
        first, last = run_range(backfill.job_id, backfill.created_at)
        rows = writing.read(
            _SQL["lock_unstarted_backfill_runs"],
            job_id=backfill.job_id, first_run_id=first, last_run_id=last, states=NOT_STARTED,
        )  # fmt: skip
        ended = (cast("UUID", run) for (run,) in rows)
        writing.finish([RunEnd(run, 0, RunState.CANCELLED, reason=reason or _REASON) for run in ended])
    kind = f"job.backfill_{'resumed' if state is BackfillState.RUNNING else state}"
    append_backfill_event(
        writing.connection, writing.installation, kind, backfill, job_key=job_key, now=now, reason=reason
    )


def _find_occurrences(
    connection: Conn, job_id: UUID, version: int, request: JobBackfill, *, now: datetime
) -> tuple[int, int]:
    """Return how many occurrences a range has, within bounds, and how many would run; or refuse the range."""
    _ensure_known(connection, request)
    current = _range(connection, job_id, request, version)
    if request.to_at > now:
        _refuse_future(request, current, now)
    requested = current if request.versions == "current" else _range(connection, job_id, request, None)
    _ensure_computed(requested)
    count, exact = requested.count(MAX_OCCURRENCES)
    if not exact:
        problem = f"the range holds at least {count + 1} occurrences; a backfill runs at most {MAX_OCCURRENCES}"
        refuse(_TO, problem, "split the range into several")
    if not count:
        _refuse_empty(requested, current, request, now)
    missing = count if request.what == "all" else _missing(connection, job_id, requested, request, count)
    return count, missing


def _missing(connection: Conn, job_id: UUID, requested: Range, request: JobBackfill, count: int) -> int:
    accounted = read_covered_instants(connection, job_id, request.from_at, request.to_at)
    if accounted.is_empty:
        return count
    return sum(at not in accounted for at, _ in requested.iterate(None, newest_first=False))


def _range(connection: Conn, job_id: UUID, request: JobBackfill, version: int | None) -> Range:
    versions = read_versions(connection, job_id, version=version, first=request.from_at, last=request.to_at)
    if len(versions) > MAX_VERSIONS:
        problem = f"the job had more than {MAX_VERSIONS} versions in the range"
        refuse(_TO, problem, f"split the range, or {TAKE_CURRENT}")
    day_sets = read_day_sets(connection, calendars_of(request.tenant, versions))
    try:
        return range_of(job_id, request.tenant, versions, day_sets, first=request.from_at, last=request.to_at)
    except ScheduleRefused as refused:
        _refuse_unread(refused, versions)


def _refuse_unread(refused: ScheduleRefused, versions: Sequence[VersionInForce]) -> Never:
    error = refused.errors[0]
    if error.path == _FROM:
        raise InvalidInput([error]) from refused
    numbers = f"version {versions[0].version}" if len(versions) == 1 else "a version of the range"
    refuse(_FROM, f"{numbers} cannot be read: {error.problem}", "choose a range without it")


def _ensure_known(connection: Conn, request: JobBackfill) -> None:
    if request.from_at < _EARLIEST:
        problem = f"{format_timestamp(request.from_at)} is before 1970"
        refuse(_FROM, problem, f"write {format_timestamp(_EARLIEST)} or later")
    known_since = share_kept_since(connection, request.tenant) if request.what == "missing_only" else None
    if known_since is not None and request.from_at < known_since:
        problem = f"{format_timestamp(request.from_at)} is too long ago; runs of that time are deleted"
        refuse(_FROM, problem, f"write {format_timestamp(known_since)} or later, or {TAKE_ALL}")


def _ensure_computed(requested: Range) -> None:
    for stretch in requested.spans:
        if isinstance(stretch.nominal, FixedDelay):
            problem = f"version {stretch.version} is a fixed_delay, which has no occurrences to backfill"
            refuse(_KEY, problem, "trigger the job, or choose a range without that version")


def _refuse_future(request: JobBackfill, current: Range, now: datetime) -> Never:
    last = max((at for each in current.spans if (at := each.schedule.before(now + TICK))), default=now)
    clock = f"the database's clock is at {format_timestamp(now)}"
    problem = f"{format_timestamp(request.to_at)} is in the future; {clock}"
    refuse(_TO, problem, f"write {format_timestamp(last)} or earlier")


def _refuse_empty(requested: Range, current: Range, request: JobBackfill, now: datetime) -> Never:
    if requested is not current and current.count(1)[0]:
        problem = "no version has an occurrence in the range"
        if not requested.spans:
            problem = "no version of the job was in force in that range, or it is no longer stored"
        refuse(_FROM, problem, TAKE_CURRENT)
    schedules = [each.schedule for each in current.spans]
    if all(isinstance(schedule, Manual) for schedule in schedules):
        refuse(_KEY, "the job is manual and has no occurrences", "trigger it instead")
    nearest = _nearest(schedules, request, now)
    remedy = f"the nearest is {format_timestamp(nearest)}" if nearest else "the job has no past occurrence yet"
    refuse(_FROM, "there is no occurrence in the range", remedy)


def _nearest(schedules: Sequence[Schedule], request: JobBackfill, now: datetime) -> datetime | None:
    earlier = [at for each in schedules if (at := each.before(request.from_at))]
    later = [at for each in schedules if (at := each.after(request.to_at)) and at <= now]
    by_distance = {request.from_at - at: at for at in earlier} | {at - request.to_at: at for at in later}
    return by_distance[min(by_distance)] if by_distance else None
