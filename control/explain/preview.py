"""`preview`: the effect of an unsaved job.

The code that would accept and fire the job computes it. Nothing is written.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from psycopg.rows import class_row

from tidewheel.control.explain.explanation import MISFIRE_AFTER, OccurrenceOutcome
from tidewheel.control.explain.text import instant, paused, policy_effect
from tidewheel.control.explain.upcoming import MAX_SHOWN, OccurrenceScan, UpcomingOccurrence
from tidewheel.control.reads.stored import readable
from tidewheel.control.words import duration
from tidewheel.errors import Refused, refuse
from tidewheel.ids import job_id
from tidewheel.intake.calendars import lost_moves, read_upcoming_overrides, unknown_calendars
from tidewheel.intake.locks import JobRow, absent_job
from tidewheel.intake.new_jobs import tenant_zone
from tidewheel.intake.next_version import (
    NextVersion,
    VersionInputs,
    at_root,
    ensure_allowed,
    ensure_can_run,
    ensure_remembered,
    next_version,
    once_at,
)
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.parsing import in_zone, own_request
from tidewheel.jobs.requests import JobSubmit
from tidewheel.jobs.schedule import AfterSpec
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_object
from tidewheel.jobs.validation import ensure_text_names, shown
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn, read_row
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OVERLAP_EFFECTS
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.describe import describe, to_zone
from tidewheel.schedules.schedule import TICK, FixedDelay, Interval, Once, Schedule
from tidewheel.schedules.timer_state import DaySets, TimerPosition, TimerState, timer_state, zone_name
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.kept_since import read_kept_since

_READ_JOBS = Statements("tidewheel.intake")["read_locked_jobs"]  # intake's statement, here without row locks

NOT_FIRING = {OccurrenceOutcome.WILL_BE_EXCLUDED, OccurrenceOutcome.WILL_BE_SKIPPED}
"""Outcomes of the instants between those that fire."""

_NAMED = 10  # parents in a sentence


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of an unsaved job.

    Args:
        version: The version it would become.
        words: Its schedule in words, and the effects of overlap, catch_up and on_resume, a sentence each.
        occurrences: Its next occurrences in order, also those that a pause or a freeze holds. Those between them that
            are excluded or skipped are not counted, nor is the span up to the end of a pause.
        exhausted: True if there are no more.
        drops: A sentence about the requested moves that a save drops; empty without one.
    """

    key: str | None
    version: int
    zone: str
    now: datetime
    words: tuple[str, ...]
    occurrences: tuple[UpcomingOccurrence, ...]
    exhausted: bool
    drops: str = ""


def preview(
    connection: Conn,
    tenant: str,
    job: Mapping[str, object] | JobSpec,
    n: int = 10,
    after: datetime | None = None,
    *,
    allow_lists: AllowLists | None = None,
    misfire_after: timedelta = MISFIRE_AFTER,
) -> Preview:
    """Return the effect of an unsaved job: as a new job, or as the next version of the job of its key.

    Args:
        n: How many occurrences, up to 1,000.
        after: All occurrences are later than this; by default now.
        allow_lists: The targets that a submit allows; by default any.
    """
    given = job if isinstance(job, JobSpec) else as_mapping(job, "job")
    request = own_request({"type": "job.submit", "tenant": tenant, "job": given})
    assert isinstance(request, JobSubmit)  # noqa: S101 - by its type
    if allow_lists is not None:
        ensure_allowed(request.job.target, allow_lists)
    if (of_tenant := tenant_zone(connection, tenant)) is not None:
        request = in_zone(request, of_tenant)
    now = read_now(connection)
    version = _version(connection, tenant, request.job, now)
    row, begin = version.job, after or now
    overrides = read_upcoming_overrides(connection, [row.job_id], now)[row.job_id] if row.exists else {}
    lost = lost_moves(overrides, version.effective, now)
    kept = [each for at, each in overrides.items() if at > begin and at not in lost]
    days = read_day_sets(connection, {(tenant, name) for name in version.calendars})
    place = TimerPosition(row.job_id, tenant, version.schedule_text, version.policy_text, begin)
    state = timer_state(place, days, kept)
    schedule, zone, n = state.schedule, zone_name(state.schedule), min(max(n, 0), MAX_SHOWN)
    freezes = freezes_of(connection, tenant, row.job_id) if row.exists else ()
    lines = tuple(_lines(state, version, begin, now, n, frozen=bool(freezes)))
    counted = sum(line.outcome not in NOT_FIRING and line.last_at is None for line in lines)
    held = [f"The job is {'; '.join(freeze.words for freeze in freezes)}."] if freezes else []
    words = (*_words(version, state, now, misfire_after), *held)
    return Preview(
        request.job.key, version.number, zone, now, words, lines,
        exhausted=counted < n and not isinstance(schedule, FixedDelay),
        drops=_drops(lost),
    )  # fmt: skip


def as_mapping(value: object, name: str) -> dict[str, object]:
    """Return a mapping as a document."""
    if not isinstance(value, Mapping):
        refuse(name, f"{shown(value)} is not a mapping", f"pass the fields of the {name} by name")
    document = cast("Mapping[str, object]", value)
    ensure_text_names(document, name)
    return dict(document)


def _version(connection: Conn, tenant: str, spec: JobSpec, now: datetime) -> NextVersion:
    job = job_id(tenant, spec.key or "")
    stored = read_row(connection, class_row(JobRow), _READ_JOBS, {"job_ids": [job]})
    row = _with_readable_policy(stored or absent_job(job, tenant, spec.key or "", now))
    days = read_day_sets(connection, {(tenant, name) for name in (*spec.exclude_calendars, *spec.include_calendars)})
    unknown = unknown_calendars(connection, tenant, spec, days)
    if unknown is not None:
        raise unknown
    version = version_of(spec, row, now, days)
    if (at := once_at(spec, row.job_id)) is not None and at <= now and version.schedule_text != row.schedule_json:
        try:
            ensure_remembered(at, read_kept_since(connection, tenant))
        except Refused as refused:
            raise at_root(refused) from refused
    return version


def _with_readable_policy(row: JobRow) -> JobRow:
    """Return a job without its stored policy if that cannot be read: the next version keeps nothing of it."""
    text = row.policy_json or "{}"
    known = readable("policy", f"job {row.key}", lambda: as_object(json.loads(text)), None)
    return replace(row, policy_json=None) if known is None else row


def version_of(spec: JobSpec, row: JobRow, now: datetime, days: DaySets) -> NextVersion:
    """Return the version that a spec would become, without any read."""
    try:
        ensure_can_run(spec, row, now, days)
    except Refused as refused:
        raise at_root(refused) from refused
    return next_version(spec, row, VersionInputs(now), days)


def _lines(
    state: TimerState, version: NextVersion, after: datetime, now: datetime, n: int, *, frozen: bool
) -> Iterator[UpcomingOccurrence]:
    zone, first = zone_name(state.schedule), version.next_at
    if isinstance(state.schedule, FixedDelay | Once):
        if n and first is not None and (after <= now or first > after):
            outcome = OccurrenceOutcome.SCHEDULED if first >= now else OccurrenceOutcome.WAITING
            outcome = OccurrenceOutcome.PAUSED if version.paused or frozen else outcome
            yield UpcomingOccurrence(first, to_zone(first, zone), outcome, first)
        return
    until = None if frozen else version.job.paused_until
    scan = OccurrenceScan(state, version.job.job_id, zone, after, version.paused or frozen, until)
    yield from scan.lines(n)


def _drops(lost: Sequence[datetime]) -> str:
    if not lost:
        return ""
    moves = "requested move" if len(lost) == 1 else "requested moves, the first"
    return f"This drops {len(lost):,} {moves} at {instant(lost[0])}: the new schedule does not have them."


def _words(version: NextVersion, state: TimerState, now: datetime, misfire_after: timedelta) -> Iterator[str]:
    if isinstance(version.spec.schedule, AfterSpec):
        yield _parent_words(version.spec.schedule)
    else:
        yield from _schedule_words(state.schedule, now)
    policies, spec = state.policies, version.spec
    if spec.recurring:
        effect = OVERLAP_EFFECTS[spec.overlap_policy]
        yield f"overlap is {spec.overlap_policy}: if another run of the job is active, {effect}."
    if not isinstance(state.schedule, FixedDelay | Once) and spec.recurring:
        yield f"After downtime, {policy_effect('catch_up', policies.catch_up, policies.window)}."
        limit = duration(misfire_after, exact=True)
        yield f"An occurrence is missed once it is {limit} late (misfire_after of the schedulers)."
        yield f"After a pause, {policy_effect('on_resume', policies.on_resume, policies.window)}."
    if version.paused:
        yield paused(version.job.paused_until) if version.job.exists else "The job starts paused."


def _parent_words(schedule: AfterSpec) -> str:
    named = [one.job if one.when == "success" else f"{one.job} ({one.when})" for one in schedule.after[:_NAMED]]
    more = f" and {len(schedule.after) - _NAMED} more" if len(schedule.after) > _NAMED else ""
    return f"After {', '.join(named)}{more}: one run for each occurrence of their root. The submit checks the parents."


def _schedule_words(schedule: Schedule, now: datetime) -> Iterator[str]:
    match schedule:
        case CronSchedule(entries=entries):
            for entry in entries:
                gap = {} if entry.gap is None else {"dst_gap": entry.gap}
                overlap = {} if entry.overlap is None else {"dst_overlap": entry.overlap}
                override = describe(entry.fields.expression, entry.zone_name, **gap, **overlap)
                yield f"{entry.fields.expression}: {override}"
        case Interval(interval_us=interval_us, anchor=anchor):
            every = duration(interval_us * TICK, exact=True)
            yield f"Every {every}, counted from {instant(anchor)}. Clock changes have no effect."
        case FixedDelay(interval_us=interval_us):
            delay = duration(interval_us * TICK, exact=True)
            yield f"The first run starts at once, each next run {delay} after the previous one ends."
        case Once(at=at):
            late = f" That was {duration(now - at)} ago: the job fires at once, marked late." if at < now else ""
            yield f"Once, at {instant(at)}.{late}"
        case _:
            yield "Manual: only triggers create runs."
