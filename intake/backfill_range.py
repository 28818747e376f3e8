"""Count the occurrences of a backfill's range within bounds, or refuse the range."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused
from tidewheel.jobs.requests import JobBackfill
from tidewheel.jobs.values import format_timestamp
from tidewheel.postgres.session import Conn
from tidewheel.schedules.ranges import Range, calendars_of, range_of
from tidewheel.schedules.schedule import TICK, FixedDelay, Manual, Schedule
from tidewheel.transitions.backfills import MAX_VERSIONS, VersionInForce, read_covered_instants, read_versions
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.kept_since import share_kept_since

TAKE_CURRENT = "let `versions` be `current`"
"""The remedy of a range that the versions in force then do not cover."""
TAKE_ALL = "`what: all`"
"""The remedy of a range whose recorded runs are dropped."""

MAX_OCCURRENCES = 100_000
"""The occurrences of one backfill, a day of a one-second job; to count them takes a second at most."""

_KEY, _FROM, _TO = "key", "from", "to"
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # run ids count from here


@dataclass(frozen=True, slots=True)
class RangeCount:
    """The occurrences of a range."""

    occurrences: int
    expected: int


def find_occurrences(
    connection: Conn, job_id: UUID, version: int, request: JobBackfill, *, now: datetime
) -> RangeCount:
    """Count the occurrences that a backfill would run; the caller has locked the job."""
    _ensure_known(connection, job_id, request)
    current = _range(connection, job_id, request, version)
    if request.to_at > now:
        raise _in_the_future(request, current, now)
    requested = current if request.versions == "current" else _range(connection, job_id, request, None)
    _ensure_computed(requested)
    count, exact = requested.count(MAX_OCCURRENCES)
    if not exact:
        problem = f"the range holds at least {count + 1} occurrences; a backfill runs {MAX_OCCURRENCES} at most"
        raise _refused(_TO, problem, "split the range into several")
    if not count:
        raise _no_occurrences(requested, current, request, now)
    return RangeCount(
        count, count if request.what == "all" else _missing(connection, job_id, requested, request, count)
    )


def _missing(connection: Conn, job_id: UUID, requested: Range, request: JobBackfill, count: int) -> int:
    accounted = read_covered_instants(connection, job_id, request.from_at, request.to_at)
    if accounted.is_empty:
        return count
    return sum(at not in accounted for at, _ in requested.iterate(None, newest_first=False))


def _range(connection: Conn, job_id: UUID, request: JobBackfill, version: int | None) -> Range:
    versions = read_versions(connection, job_id, version=version, first=request.from_at, last=request.to_at)
    if len(versions) > MAX_VERSIONS:
        problem = f"more than {MAX_VERSIONS} versions of the job were in force in the range"
        raise _refused(_TO, problem, f"split the range, or {TAKE_CURRENT}")
    day_sets = read_day_sets(connection, calendars_of(request.tenant, versions))
    try:
        return range_of(job_id, request.tenant, versions, day_sets, first=request.from_at, last=request.to_at)
    except ScheduleRefused as refused:
        raise _at_range(refused, versions) from refused


def _at_range(refused: ScheduleRefused, versions: Sequence[VersionInForce]) -> InvalidInput:
    error = refused.errors[0]
    if error.path == _FROM:
        return InvalidInput([error])
    numbers = f"version {versions[0].version}" if len(versions) == 1 else "a version of the range"
    return _refused(_FROM, f"{numbers} cannot be read: {error.problem}", "choose a range without it")


def _ensure_known(connection: Conn, job_id: UUID, request: JobBackfill) -> None:
    if request.from_at < _EARLIEST:
        problem = f"{format_timestamp(request.from_at)} lies before 1970"
        raise _refused(_FROM, problem, f"write {format_timestamp(_EARLIEST)} or later")
    known_since = share_kept_since(connection, request.tenant, job_id) if request.what == "missing_only" else None
    if known_since is not None and request.from_at < known_since:
        problem = f"{format_timestamp(request.from_at)} is too long ago: the runs of that time are dropped"
        raise _refused(_FROM, problem, f"write {format_timestamp(known_since)} or later, or {TAKE_ALL}")


def _ensure_computed(requested: Range) -> None:
    for stretch in requested.spans:
        if isinstance(stretch.nominal, FixedDelay):
            problem = f"version {stretch.version} is a fixed_delay: its occurrences are those recorded, none is missing"
            raise _refused(_KEY, problem, "trigger the job, or choose a range without that version")


def _in_the_future(request: JobBackfill, current: Range, now: datetime) -> InvalidInput:
    last = max((at for each in current.spans if (at := each.schedule.before(now + TICK))), default=now)
    problem = (
        f"{format_timestamp(request.to_at)} is in the future: it is {format_timestamp(now)} by the database's clock"
    )
    return _refused(_TO, problem, f"write {format_timestamp(last)} or earlier")


def _no_occurrences(requested: Range, current: Range, request: JobBackfill, now: datetime) -> InvalidInput:
    if requested is not current and current.count(1)[0]:
        problem = "no version in force then has an occurrence in the range"
        if not requested.spans:
            problem = "no version of the job was in force in that range, or Tidewheel no longer stores it"
        return _refused(_FROM, problem, TAKE_CURRENT)
    schedules = [each.schedule for each in current.spans]
    if all(isinstance(schedule, Manual) for schedule in schedules):
        return _refused(_KEY, "the job is manual: it has no occurrences", "trigger it instead")
    nearest = _nearest(schedules, request, now)
    remedy = f"the nearest is {format_timestamp(nearest)}" if nearest else "no occurrence of the job has passed yet"
    return _refused(_FROM, "there is no occurrence in the range", remedy)


def _nearest(schedules: Sequence[Schedule], request: JobBackfill, now: datetime) -> datetime | None:
    earlier = [at for each in schedules if (at := each.before(request.from_at))]
    later = [at for each in schedules if (at := each.after(request.to_at)) and at <= now]
    by_distance = {request.from_at - at: at for at in earlier} | {at - request.to_at: at for at in later}
    return by_distance[min(by_distance)] if by_distance else None


def _refused(path: str, problem: str, remedy: str) -> InvalidInput:
    return InvalidInput([FieldError(path, problem, remedy)])
