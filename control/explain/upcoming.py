"""`next`: the next occurrences of a job, with skips, moves, pauses, freezes and clock changes.

The scan uses the firing code's schedules, from the timer's position. Runs created ahead of their time come first. An
occurrence that does not fire (skipped, excluded, in a pause) is shown in its place and not counted. A freeze is shown
as a pause without an end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.control.explain.explanation import MISFIRE_AFTER, OccurrenceOutcome
from tidewheel.control.explain.facts import OverrideFacts, VersionSpan, read_overrides_around, read_version_timeline
from tidewheel.control.explain.text import (
    AWAITS_POLL,
    FOLLOWS,
    MANUAL,
    NO_FURTHER_OCCURRENCE,
    frozen,
    instant,
    next_delay,
    override_source,
    paused,
    policy_effect,
    postponed,
    quarantined,
)
from tidewheel.control.reads.job_position import JobPosition, read_job_error, read_job_position
from tidewheel.errors import UnknownJob
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.calendars import CalendarSchedule, excluded_spans, is_occurrence
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decide import MAX_COUNTED, decide
from tidewheel.schedules.decision import HoldReason, jittered
from tidewheel.schedules.describe import dst_effects, to_zone
from tidewheel.schedules.schedule import TICK, FixedDelay, Manual, Once, Schedule, whole_second
from tidewheel.schedules.timer_state import TimerState

_SQL = Statements("tidewheel.control")

MAX_SHOWN = 1_000
_NEAR = timedelta(days=2)  # a clock change further away does not concern the instant
_YEAR = timedelta(days=366)  # how far ahead excluded days are shown if no occurrence fires after them
_LAST = datetime.max.replace(tzinfo=UTC)


def occurrence_notes(schedule: Schedule, at: datetime, since: datetime | None = None) -> tuple[str, ...]:
    """Return the effects on an occurrence, and the local times that a clock change skipped before it."""
    bare = schedule.schedule if isinstance(schedule, CalendarSchedule) else schedule
    if not isinstance(bare, CronSchedule):
        return ()
    since = max(since or bare.before(at) or at - _NEAR, at - 2 * _NEAR)
    several = len(bare.entries) > 1
    return tuple(
        f"`{entry.fields.expression}`: {note}" if several else note
        for entry in bare.entries
        if entry.following(whole_second(at)) == whole_second(at)
        for note in dst_effects(entry, whole_second(since), whole_second(at))
    )


def no_occurrence_notes(schedule: Schedule, at: datetime) -> tuple[str, ...]:
    """Return the clock changes that may make a reader expect an occurrence at an instant without one."""
    bare = schedule.schedule if isinstance(schedule, CalendarSchedule) else schedule
    if not isinstance(bare, CronSchedule):
        return ()
    near = (each for each in (bare.before(at), bare.after(at)) if each is not None and abs(each - at) < _NEAR)
    return tuple(f"occurrence at {instant(each)}: {note}" for each in near for note in occurrence_notes(bare, each))


@dataclass(frozen=True, slots=True)
class UpcomingOccurrence:
    """A future occurrence, or a span of occurrences that do not fire.

    Args:
        at: Its nominal instant in UTC; for a span the first.
        local: The instant in the job's zone.
        outcome: Its future outcome.
        leaves_at: When its run may be published: `at` plus jitter, or the moved time; None if never.
        run_id: The run created ahead of its time.
        last_at: The last instant of a span.
        exact: False if the number of a span is a lower bound.
        notes: Effects of clock changes; author, time and reason of a skip or a move; what an overdue one waits for.
        overridden: True if a skip or a move is stored for it.
    """

    at: datetime
    local: datetime
    outcome: OccurrenceOutcome
    leaves_at: datetime | None = None
    run_id: UUID | None = None
    last_at: datetime | None = None
    occurrences: int = 1
    exact: bool = True
    notes: tuple[str, ...] = ()
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The next occurrences of a job, in the order of their instants.

    Args:
        words: The reason for fewer occurrences than requested, or for a hold; empty without one.
    """

    key: str
    zone: str
    now: datetime
    occurrences: tuple[UpcomingOccurrence, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class OccurrenceScan:
    """Scan of the occurrences from a start on, with overrides and a pause applied.

    Args:
        job_id: The seed of the jitter.
        override: Skips and moves by nominal instant.
    """

    state: TimerState
    job_id: UUID
    zone: str
    after: datetime
    paused: bool = False
    paused_until: datetime | None = None
    override: Mapping[datetime, OverrideFacts] = field(default_factory=dict[datetime, OverrideFacts])

    def lines(self, n: int) -> Iterator[UpcomingOccurrence]:
        """Yield the next `n` that fire or are held by a pause, with those between them that do not fire."""
        position, found = self.after, 0
        if self.paused and self.paused_until is not None:
            yield from self._in_pause(self.paused_until)
            position = max(position, self.paused_until)
        overdue = [(to, at) for at, to in self.state.moved.items() if at <= position]
        for to, nominal in sorted(overdue):
            yield self._moved(nominal, to)
            found += 1
        while found < n:
            at = self.state.effective.after(position)
            yield from self._excluded(position, at or position + min(_YEAR, _LAST - position))
            if at is None:
                return
            line = self._of(at, position)
            if line is not None:
                found += line.outcome is not OccurrenceOutcome.WILL_BE_SKIPPED
                yield line
            position = at

    def _of(self, at: datetime, since: datetime) -> UpcomingOccurrence | None:
        """Return one occurrence; None if it was moved and has fired."""
        if at in self.state.skipped:
            return self._line(at, OccurrenceOutcome.WILL_BE_SKIPPED, None)
        held = self.paused and self.paused_until is None
        if at in self.state.moved:
            return self._moved(at, self.state.moved[at])
        if not is_occurrence(self.state.live, at):
            return None
        line = self._line(at, OccurrenceOutcome.PAUSED if held else OccurrenceOutcome.SCHEDULED, self._leaves(at))
        return replace(line, notes=occurrence_notes(self.state.schedule, at, since))

    def _moved(self, nominal: datetime, to: datetime) -> UpcomingOccurrence:
        """Return a moved occurrence, which a pause holds by its new time."""
        held = self.paused and (self.paused_until is None or to <= self.paused_until)
        return self._line(nominal, OccurrenceOutcome.PAUSED if held else OccurrenceOutcome.WILL_BE_MOVED, to)

    def _line(self, at: datetime, outcome: OccurrenceOutcome, leaves_at: datetime | None) -> UpcomingOccurrence:
        override = self.override.get(at)
        return UpcomingOccurrence(
            at, to_zone(at, self.zone), outcome, leaves_at, notes=_override_notes(override),
            overridden=override is not None,
        )  # fmt: skip

    def _leaves(self, at: datetime) -> datetime:
        policies = self.state.policies
        if not policies.jitters:
            return at
        following = self.state.live.after(at)
        return jittered(at, following, self.job_id, longest=policies.jitter, percent=policies.jitter_percent)

    def _in_pause(self, until: datetime) -> Iterator[UpcomingOccurrence]:
        first, last = self.state.live.after(self.after), self.state.live.before(until + TICK)
        if first is not None and last is not None and first <= last:
            occurrences, exact = self.state.live.count(self.after, until, MAX_COUNTED)
            yield self._span(OccurrenceOutcome.PAUSED, first, last, occurrences, exact=exact)

    def _excluded(self, position: datetime, until: datetime) -> Iterator[UpcomingOccurrence]:
        spans = excluded_spans(self.state.schedule, self.state.effective, position, until)
        for first, last, occurrences, exact in spans:
            yield self._span(OccurrenceOutcome.WILL_BE_EXCLUDED, first, last, occurrences, exact=exact)

    def _span(
        self, outcome: OccurrenceOutcome, first: datetime, last: datetime, occurrences: int, *, exact: bool
    ) -> UpcomingOccurrence:
        local = to_zone(first, self.zone)
        return UpcomingOccurrence(first, local, outcome, last_at=last, occurrences=occurrences, exact=exact)


def upcoming(
    connection: Conn, tenant: str, key: str, n: int = 10, *, misfire_after: timedelta = MISFIRE_AFTER
) -> Upcoming:
    """Return the next `n` occurrences of a saved job, up to 1,000."""
    job = read_job_position(connection, tenant, key)
    if job.deleted_at is not None:
        raise UnknownJob(tenant, key)
    timeline = read_version_timeline(connection, job, job.now)
    version_span, n = timeline.version_spans[-1], min(max(n, 0), MAX_SHOWN)
    override = read_overrides_around(connection, job.job_id, job.cursor_at or job.now, job.now)
    ahead, freezes = _runs_ahead(connection, job, n), freezes_of(connection, tenant, job.job_id)
    held = replace(job, paused=True, paused_until=None) if freezes else job
    fired_later = _from_timer(held, version_span, override, n - len(ahead), misfire_after)
    lines = [*_queued(ahead, override, version_span), *fired_later]
    words = upcoming_words(connection, job, version_span, freezes, "" if lines else NO_FURTHER_OCCURRENCE)
    return Upcoming(key, version_span.zone, job.now, tuple(lines), words)


def next_times(connection: Conn, tenant: str, key: str) -> tuple[datetime | None, datetime | None]:
    """Return the time of the next occurrence that fires, and the time by which its timer must be due."""
    occurrences = upcoming(connection, tenant, key, 1).occurrences
    first = next((each for each in occurrences if each.leaves_at is not None), None)
    if first is None:
        return None, None
    next_at = first.leaves_at if first.outcome is OccurrenceOutcome.WILL_BE_MOVED else first.at
    return next_at, first.leaves_at if first.outcome is OccurrenceOutcome.WAITING else None


def _runs_ahead(connection: Conn, job: JobPosition, n: int) -> Sequence[tuple[UUID, datetime, datetime]]:
    columns = {"job_id": job.job_id, "states": [RunState.QUEUED], "now": job.now, "limit": n}
    rows = connection.execute(_SQL["find_runs_ahead"], columns, binary=True).fetchall()
    return cast("list[tuple[UUID, datetime, datetime]]", rows)


def _queued(
    ahead: Sequence[tuple[UUID, datetime, datetime]], override: Sequence[OverrideFacts], version_span: VersionSpan
) -> Iterator[UpcomingOccurrence]:
    moved = {each.scheduled_at: each for each in override if each.moved_to is not None}
    for run, at, publish_at in ahead:
        outcome = OccurrenceOutcome.WILL_BE_MOVED if at in moved else OccurrenceOutcome.SCHEDULED
        notes = (*occurrence_notes(version_span.schedule, at), *_override_notes(moved.get(at)))
        yield UpcomingOccurrence(
            at, to_zone(at, version_span.zone), outcome, publish_at, run, notes=notes, overridden=at in moved
        )


def _from_timer(
    job: JobPosition, version_span: VersionSpan, override: Sequence[OverrideFacts], n: int, misfire_after: timedelta
) -> Iterator[UpcomingOccurrence]:
    cursor = job.cursor_at
    if cursor is None or job.hold_reason == HoldReason.QUARANTINED:
        return
    state = version_span.timer_state([each.of_timer for each in override])
    if isinstance(state.schedule, FixedDelay | Once):
        if job.hold_reason != HoldReason.RUN:
            ahead = OccurrenceOutcome.SCHEDULED if cursor > job.now else OccurrenceOutcome.WAITING
            outcome = OccurrenceOutcome.PAUSED if job.paused else ahead
            notes = (_awaits(job, cursor),) if outcome is OccurrenceOutcome.WAITING else ()
            yield UpcomingOccurrence(cursor, to_zone(cursor, version_span.zone), outcome, cursor, notes=notes)
        return
    by_instant, position = {each.scheduled_at: each for each in override}, max(job.now, cursor - TICK)
    scan = OccurrenceScan(
        state, job.job_id, version_span.zone, position, job.paused, job.paused_until, override=by_instant
    )
    if cursor <= job.now and job.hold_reason is None and not job.paused:
        decision = decide(state, now=job.now, horizon=job.now, misfire_after=misfire_after)
        for fire in decision.fires[:n]:
            yield UpcomingOccurrence(
                fire.at, to_zone(fire.at, version_span.zone), OccurrenceOutcome.WAITING, fire.publish_at,
                notes=(_awaits(job, cursor),),
            )  # fmt: skip
            n -= 1
        scan = replace(scan, state=replace(state, moved={at: to for at, to in state.moved.items() if to > job.now}))
    yield from scan.lines(n)


def _override_notes(override: OverrideFacts | None) -> tuple[str, ...]:
    if override is None:
        return ()
    return (f"{'skipped' if override.moved_to is None else 'moved'} {override_source(override)}",)


def _awaits(job: JobPosition, cursor: datetime) -> str:
    return postponed(job.due_at) if job.due_at is not None and job.due_at > cursor else AWAITS_POLL


def upcoming_words(
    connection: Conn, job: JobPosition, version_span: VersionSpan, freezes: Sequence[Freeze], otherwise: str
) -> str:
    """Return the reason for a hold, or for no occurrence or only one; else what the caller has to say."""
    held = frozen(freezes) if freezes else ""
    return f"{held} {_words_without_freezes(connection, job, version_span) or otherwise}".strip()


def _words_without_freezes(connection: Conn, job: JobPosition, version_span: VersionSpan) -> str:
    if job.hold_reason == HoldReason.QUARANTINED:
        return quarantined(read_job_error(connection, job.job_id))
    if job.paused:
        policies = version_span.policies
        effect = policy_effect("on_resume", policies.on_resume, policies.window)
        return f"{paused(job.paused_until)} After the pause, {effect}."
    if isinstance(version_span.schedule, Manual):
        return FOLLOWS if version_span.schedule.follows else MANUAL
    if isinstance(version_span.schedule, FixedDelay):
        words = "Each occurrence follows the end of the previous run, so only the next one is known."
        return f"{words} {next_delay(version_span.schedule)}"
    return ""
