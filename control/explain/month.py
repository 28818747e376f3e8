"""The occurrences of jobs by day, and by the bins of a plot, counted by the arithmetic of schedules.

A day is one on the wall clock of the job's zone. A past day has the occurrences of the versions that were in force.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from typing import NamedTuple
from uuid import UUID

from tidewheel.control.explain.facts import VersionSpan, VersionTimeline, read_overrides_around, read_version_timeline
from tidewheel.control.explain.text import NO_FURTHER_OCCURRENCE
from tidewheel.control.explain.upcoming import occurrence_notes, upcoming_words
from tidewheel.control.reads.job_position import JobPosition, read_job_position
from tidewheel.control.reads.stored import readable
from tidewheel.errors import UnknownJob
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.nouns.jobs.model import JobSummary
from tidewheel.nouns.jobs.reads import read_plain_schedules
from tidewheel.nouns.runs.reads import count_runs_of_jobs
from tidewheel.postgres.session import Conn
from tidewheel.schedules.calendars import MAX_COUNTED
from tidewheel.schedules.decision import HoldReason, Override
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.open_days import open_days
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import TICK, FixedDelay, Schedule, at_second
from tidewheel.schedules.timer_state import TimerState
from tidewheel.schedules.zones import EPOCH_ORDINAL

_FIRST = 3
_LAST = datetime.max.replace(tzinfo=UTC)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """A day of a job.

    Args:
        date: The day on the wall clock of the job's zone.
        fires: The number of occurrences that fire on it, moved ones on the day to which they were moved.
        exact: False if that is a lower bound.
        first: The first three of these, in the job's zone.
        notes: The effects of a clock change.
        excluded_by: The calendars that keep occurrences of this day from firing.
        skipped: The number of its occurrences that a client has skipped.
        moved: The number of its occurrences that a client has moved to another time.
    """

    date: date
    fires: int
    exact: bool
    first: tuple[datetime, ...]
    notes: tuple[str, ...]
    excluded_by: tuple[str, ...]
    skipped: int
    moved: int


@dataclass(frozen=True, slots=True)
class JobCalendar:
    """The days of a month, of which `month` is the first.

    Args:
        words: The reason for a hold, or for no occurrence; empty without one.
    """

    key: str
    zone: str
    month: date
    now: datetime
    days: tuple[CalendarDay, ...]
    words: str


class Counted(NamedTuple):
    """A number of occurrences; not exact if there are more."""

    fires: int
    exact: bool


class InForce(NamedTuple):
    """A version's schedule, and the time in which it counts: later than `after`, up to `until`."""

    state: TimerState
    after: datetime
    until: datetime


def job_calendar(
    connection: Conn, tenant: str, key: str, month: date | None = None, *, weeks: int | None = None
) -> JobCalendar:
    """Return the days of a month of a job: that of any given day on its clock, or the present one.

    Args:
        weeks: Without a month, so many weeks from the present one on.
    """
    job = read_job_position(connection, tenant, key)
    at = job.now if month is None else datetime(month.year, month.month, 15, tzinfo=UTC)
    timeline = _timeline(connection, job, min(at, job.now))
    current = timeline.version_spans[-1]
    today = to_zone(job.now, current.zone).date()
    shown = (month or today).replace(day=1)
    following, span = (shown + 31 * _DAY).replace(day=1), f"{shown:%B %Y}"
    if month is None and weeks is not None:
        shown = today - today.weekday() * _DAY
        following, span = shown + 7 * weeks * _DAY, f"these {weeks} weeks"
    days = [shown + at * _DAY for at in range((following - shown).days)]
    begin = datetime(shown.year, shown.month, shown.day, tzinfo=UTC) - 2 * _DAY
    overrides = _overrides(connection, job, begin)
    in_force = _in_force(timeline, overrides)
    known_since = None if timeline.version_spans[0].row.version == 1 else timeline.version_spans[0].row.effective_at
    found = [_day(day, timeline.version_spans, in_force, overrides, known_since) for day in days]
    if isinstance(current.schedule, FixedDelay):
        found = [_with_next(day, job, current.zone) for day in found]
    freezes = freezes_of(connection, tenant, job.job_id)
    none = NO_FURTHER_OCCURRENCE if job.cursor_at is None else f"This job has no occurrence in {span}."
    words = upcoming_words(connection, job, current, freezes, "" if any(day.fires for day in found) else none)
    return JobCalendar(key, current.zone, shown, job.now, tuple(found), words)


def coming_counts(connection: Conn, tenant: str, key: str, edges: Sequence[datetime]) -> list[Counted]:
    """Return how many occurrences of a job are to come in each bin; its timer's position is the first.

    While a pause without an end, a freeze or a quarantine stops the job, none is.
    """
    job = read_job_position(connection, tenant, key)
    is_stopped = job.hold_reason == HoldReason.QUARANTINED or (job.paused and job.paused_until is None)
    if job.cursor_at is None or is_stopped or freezes_of(connection, tenant, job.job_id):
        return [Counted(0, exact=True) for _ in edges[1:]]
    timeline = _timeline(connection, job, job.now)
    first = max(job.now, job.paused_until or job.now)
    if isinstance(timeline.version_spans[-1].schedule, FixedDelay):
        return [Counted(int(begin <= job.cursor_at < end), exact=True) for begin, end in pairwise(edges)]
    state = timeline.version_spans[-1].timer_state(_overrides(connection, job, min(job.cursor_at, job.now)))
    of_current = [InForce(state, first, _LAST)]
    return [count_fires(of_current, begin, end) for begin, end in pairwise(edges)]


class JobBins(NamedTuple):
    """The runs of a job by bin up to now and by state; True for each bin ahead in which the job is due."""

    runs: Sequence[Mapping[str, int]]
    due: Sequence[bool]
    is_sample: bool


def job_bins(
    connection: Conn, jobs: Sequence[JobSummary], edges: Sequence[datetime], behind: int
) -> Mapping[UUID, JobBins]:
    """Return the bins of each job; now is in the last one of those `behind`."""
    job_ids = [job.job_id for job in jobs]
    counted = count_runs_of_jobs(connection, job_ids, edges[: behind + 1])
    texts = read_plain_schedules(connection, job_ids)

    def due(job: JobSummary) -> list[bool]:
        text = texts.get(job.job_id)
        if text is None:
            return due_bins(job.next_at, None, edges[behind:])
        schedule = readable("schedule", f"job {job.key}", lambda: schedule_from_text(text, job.job_id), None)
        return due_bins(job.next_at, schedule, edges[behind:])

    return {job.job_id: JobBins(counted[job.job_id].bins, due(job), counted[job.job_id].is_sample) for job in jobs}


def due_bins(next_at: datetime | None, schedule: Schedule | None, edges: Sequence[datetime]) -> list[bool]:
    """Return True for each bin with the next occurrence, or with one of a schedule that leaves none out."""
    found = [False] * (len(edges) - 1)
    while next_at is not None and next_at < edges[-1]:
        at = bisect_right(edges, next_at) - 1
        if at >= 0:
            found[at] = True
        next_at = None if schedule is None else schedule.after(edges[at + 1] - TICK)
    return found


def count_fires(in_force: Sequence[InForce], begin: datetime, end: datetime) -> Counted:
    """Count the occurrences that fire in ``[begin, end)``, moved ones where they were moved to."""
    fires, exact = 0, True
    for each in in_force:
        after, until = max(begin - TICK, each.after), min(end - TICK, each.until)
        if after < until:
            found, whole = each.state.live.count(after, until, MAX_COUNTED)
            moved = sum(after < to <= until for to in each.state.moved.values())
            fires, exact = fires + found + moved, exact and whole
    return Counted(fires, exact)


def first_fires(in_force: Sequence[InForce], begin: datetime, end: datetime) -> list[datetime]:
    """Return the first three occurrences that fire in ``[begin, end)``."""
    found: list[datetime] = []
    for each in in_force:
        after, until = max(begin - TICK, each.after), min(end - TICK, each.until)
        if after < until:
            found += islice(each.state.live.between(after, until), _FIRST)
            found += [to for to in each.state.moved.values() if after < to <= until]
    return sorted(found)[:_FIRST]


def _day(
    day: date,
    version_spans: Sequence[VersionSpan],
    in_force: Sequence[InForce],
    overrides: Sequence[Override],
    known_since: datetime | None,
) -> CalendarDay:
    zone = version_spans[-1].zone
    pieces = list(local_pieces(day, zone))
    counted = [count_fires(in_force, begin, end) for begin, end in pieces]
    first = sorted(at for begin, end in pieces for at in first_fires(in_force, begin, end))[:_FIRST]
    known = known_since is None or not pieces or pieces[0][0] >= known_since
    of_day = [each for each in overrides if any(begin <= each.scheduled_at < end for begin, end in pieces)]
    return CalendarDay(
        date=day,
        fires=sum(each.fires for each in counted),
        exact=known and all(each.exact for each in counted),
        first=tuple(to_zone(at, zone) for at in first),
        notes=tuple(dict.fromkeys(_notes(in_force, pieces, zone))),
        excluded_by=tuple(dict.fromkeys(_closing(version_spans, day, pieces))),
        skipped=sum(each.moved_to is None for each in of_day),
        moved=sum(each.moved_to is not None for each in of_day),
    )


def local_pieces(day: date, zone_name: str) -> Iterator[tuple[datetime, datetime]]:
    """Yield the begin and end of each piece of a day; a clock change cuts it, a zone may lack it.

    >>> [f"{begin:%d %H:%M} {end:%d %H:%M}" for begin, end in local_pieces(date(2026, 3, 29), "Europe/Berlin")]
    ['28 23:00 29 01:00', '29 01:00 29 22:00']
    """
    for begin, end, _ in open_days((), (), zone_name).pieces(day.toordinal() - EPOCH_ORDINAL):
        yield at_second(begin), at_second(end)


def _notes(in_force: Sequence[InForce], pieces: Sequence[tuple[datetime, datetime]], zone: str) -> Iterator[str]:
    """Yield the clock change of a day, and its effects on the occurrences around it."""
    if not pieces:
        yield "the zone has no such day"
    for (_, before), (change, end) in pairwise(pieces):
        earlier, later = to_zone(before - timedelta(seconds=1), zone) + timedelta(seconds=1), to_zone(change, zone)
        yield f"the clock goes from {earlier:%H:%M} to {later:%H:%M}"
        for each in in_force:
            for at in _near(each, change, end):
                if each.after < at <= each.until:
                    yield from occurrence_notes(each.state.schedule, at)


def _near(each: InForce, change: datetime, end: datetime) -> Iterator[datetime]:
    after, before = each.state.live.after(change - TICK), each.state.live.before(change)
    if before is not None and change - before <= timedelta(hours=1):
        yield before
    if after is not None and after < end:
        yield after


def _closing(
    version_spans: Sequence[VersionSpan], day: date, pieces: Sequence[tuple[datetime, datetime]]
) -> Iterator[str]:
    for each in version_spans:
        since, until = each.row.effective_at, each.until or _LAST
        spans = [(max(begin - TICK, since), min(end - TICK, until)) for begin, end in pieces]
        if not any(after < last and each.schedule.count(after, last, 1)[0] for after, last in spans):
            continue
        tenant, policies = each.place.tenant, each.policies
        yield from (name for name in policies.exclude if day in each.days[tenant, name])
        if policies.include and not any(day in each.days[tenant, name] for name in policies.include):
            yield f"not in {', '.join(policies.include)}"


def _timeline(connection: Conn, job: JobPosition, at: datetime) -> VersionTimeline:
    timeline = read_version_timeline(connection, job, at)
    if job.deleted_at is not None or not timeline.version_spans:
        raise UnknownJob(job.tenant, job.key)
    return timeline


def _overrides(connection: Conn, job: JobPosition, since: datetime) -> list[Override]:
    begin = min(since, job.cursor_at or since)
    return [each.of_timer for each in read_overrides_around(connection, job.job_id, begin, begin)]


def _in_force(timeline: VersionTimeline, overrides: Sequence[Override]) -> list[InForce]:
    """Return the versions in order, each with its state; the moves are those of the last one."""
    last = timeline.version_spans[-1]
    return [
        InForce(
            each.timer_state(overrides if each is last else [one for one in overrides if one.moved_to is None]),
            each.row.effective_at,
            each.until or _LAST,
        )
        for each in timeline.version_spans
    ]


def _with_next(day: CalendarDay, job: JobPosition, zone: str) -> CalendarDay:
    """Return a day of a fixed_delay, whose next occurrence alone is known."""
    if job.cursor_at is None or job.hold_reason in {HoldReason.RUN, HoldReason.QUARANTINED}:
        return day
    local = to_zone(job.cursor_at, zone)
    return replace(day, fires=1, exact=False, first=(local,)) if day.date == local.date() else day
