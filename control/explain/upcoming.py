"""`next`: the coming occurrences of a saved job, with what people, calendars and a pause make of them.

Walked by the schedules that firing walks, from where the timer stands; runs written ahead of their time come first.
What does not fire (left out, excluded, in a pause) is shown where it lies and not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.control.explain.dst_notes import occurrence_notes
from tidewheel.control.explain.explanation import MISFIRE_AFTER, Outcome
from tidewheel.control.explain.facts import JobPlace, Said, read_job_error, read_job_position, read_overrides_around
from tidewheel.control.explain.text import instant, length, said_by
from tidewheel.control.explain.version_timeline import Saying, read_versions_near
from tidewheel.errors import UnknownJob
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.schedules.calendars import excluded_spans, is_occurrence
from tidewheel.schedules.decide import MAX_COUNTED, decide
from tidewheel.schedules.decision import HoldReason, Override
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.policies import jittered
from tidewheel.schedules.simple import FixedDelay, Manual, Once
from tidewheel.schedules.timer_state import TimerState

_FIND_RUNS_AHEAD = Statements("tidewheel.control")["find_runs_ahead"]

MOST_SHOWN = 1_000
_TICK = timedelta(microseconds=1)
_YEAR = timedelta(days=366)  # how far ahead excluded days are told where nothing fires after them


@dataclass(frozen=True, slots=True)
class Coming:
    """A coming occurrence, or a span of them that does not fire.

    Args:
        at: Its nominal instant, in UTC; of a span the first.
        local: The same on the clock of the job's zone.
        outcome: What is to become of it.
        leaves_at: When its run may leave: later than `at` by jitter, or where it was moved to; None: never.
        run_id: The run that is written ahead of its time.
        last_at: Of a span, the last.
        occurrences: Of a span, how many.
        exact: False where a span has more than were worth counting.
        notes: What a change of the clock does to it; who has left it out or moved it, when and why.
    """

    at: datetime
    local: datetime
    outcome: Outcome
    leaves_at: datetime | None = None
    run_id: UUID | None = None
    last_at: datetime | None = None
    occurrences: int = 1
    exact: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What comes of a job.

    Args:
        key: The job.
        zone: On whose clock it goes.
        now: The database's clock.
        coming: In the order of their instants.
        words: Why there are none, or not as many as were asked for, or what holds them; empty where nothing does.
    """

    key: str
    zone: str
    now: datetime
    coming: tuple[Coming, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Walk:
    """Where to walk from, and what is in the way.

    Args:
        where: The schedule, with what was said about single occurrences.
        job_id: What jitter is spread by.
        zone: On whose clock it goes.
        after: Occurrences are later than this.
        paused: Whether a pause holds them.
        paused_until: When that ends by itself.
        said: What people said about single occurrences, by instant.
    """

    where: TimerState
    job_id: UUID
    zone: str
    after: datetime
    paused: bool = False
    paused_until: datetime | None = None
    said: Mapping[datetime, Said] = field(default_factory=dict[datetime, Said])

    def lines(self, n: int) -> Iterator[Coming]:
        """The next `n` that fire, or would but for a pause, with what lies between them and does not."""
        position, found = self.after, 0
        if self.paused and self.paused_until is not None:
            yield from self._in_pause(self.paused_until)
            position = max(position, self.paused_until)
        overdue = [(to, at) for at, to in self.where.moved.items() if at <= position]
        for to, nominal in sorted(overdue):
            yield self._moved(nominal, to)
            found += 1
        while found < n:
            at = self.where.effective.after(position)
            yield from self._excluded(position, at or position + _YEAR)
            if at is None:
                return
            line = self._of(at, position)
            if line is not None:
                found += line.outcome is not Outcome.COMING_SKIPPED
                yield line
            position = at

    def _of(self, at: datetime, since: datetime) -> Coming | None:
        """One occurrence; None where it was moved and has fired there."""
        if at in self.where.skipped:
            return self._line(at, Outcome.COMING_SKIPPED, None)
        held = self.paused and self.paused_until is None
        if at in self.where.moved:
            return self._moved(at, self.where.moved[at])
        if not is_occurrence(self.where.live, at):
            return None
        line = self._line(at, Outcome.PAUSED if held else Outcome.COMING, self._leaves(at))
        return replace(line, notes=occurrence_notes(self.where.schedule, at, since))

    def _moved(self, nominal: datetime, to: datetime) -> Coming:
        """A moved occurrence: a pause holds it by where it was moved to."""
        held = self.paused and (self.paused_until is None or to <= self.paused_until)
        return self._line(nominal, Outcome.PAUSED if held else Outcome.COMING_MOVED, to)

    def _line(self, at: datetime, outcome: Outcome, leaves_at: datetime | None) -> Coming:
        return Coming(at, to_zone(at, self.zone), outcome, leaves_at, notes=_told(self.said.get(at)))

    def _leaves(self, at: datetime) -> datetime:
        policies = self.where.policies
        if not policies.jitters:
            return at
        following = self.where.live.after(at)
        return jittered(at, following, self.job_id, longest=policies.jitter, percent=policies.jitter_percent)

    def _in_pause(self, until: datetime) -> Iterator[Coming]:
        first, last = self.where.live.after(self.after), self.where.live.before(until + _TICK)
        if first is not None and last is not None and first <= last:
            occurrences, exact = self.where.live.count(self.after, until, MAX_COUNTED)
            yield Coming(
                first, to_zone(first, self.zone), Outcome.PAUSED, last_at=last, occurrences=occurrences, exact=exact
            )

    def _excluded(self, position: datetime, until: datetime) -> Iterator[Coming]:
        for first, last, occurrences, exact in excluded_spans(
            self.where.schedule, self.where.effective, position, until
        ):
            yield Coming(
                first,
                to_zone(first, self.zone),
                Outcome.COMING_EXCLUDED,
                last_at=last,
                occurrences=occurrences,
                exact=exact,
            )


def upcoming(
    connection: Conn, tenant: str, key: str, n: int = 10, *, misfire_after: timedelta = MISFIRE_AFTER
) -> Upcoming:
    """The next `n` occurrences of a saved job.

    Args:
        connection: To read by; REPEATABLE READ, so that all of it is of one moment.
        tenant: Whose job.
        key: The job.
        n: How many, up to 1,000.
        misfire_after: How late an occurrence may be before it is missed, as the scheduler has it.

    Raises:
        UnknownJob: There is no such job.
        ScheduleRefused: The stored schedule cannot be read.
    """
    job = read_job_position(connection, tenant, key)
    if job.deleted_at is not None:
        raise UnknownJob(tenant, key)
    near = read_versions_near(
        connection, job.job_id, tenant, job.now, cursor=job.cursor_at, catch_up_end=job.catch_up_end
    )
    saying, n = near.sayings[-1], min(max(n, 0), MOST_SHOWN)
    said = read_overrides_around(connection, job.job_id, job.cursor_at or job.now, job.now)
    ahead = _runs_ahead(connection, job, n)
    lines = [*_queued(ahead, said, saying), *_from_timer(job, saying, said, n - len(ahead), misfire_after)]
    return Upcoming(key, saying.zone, job.now, tuple(lines), _words(connection, job, saying, len(lines)))


def _runs_ahead(connection: Conn, job: JobPlace, n: int) -> Sequence[tuple[UUID, datetime, datetime]]:
    columns = {"job_id": job.job_id, "states": [RunState.QUEUED], "now": job.now, "most": n}
    rows = connection.execute(_FIND_RUNS_AHEAD, columns, binary=True).fetchall()
    return cast("list[tuple[UUID, datetime, datetime]]", rows)


def _queued(ahead: Sequence[tuple[UUID, datetime, datetime]], said: Sequence[Said], saying: Saying) -> Iterator[Coming]:
    moved = {each.scheduled_at: each for each in said if each.moved_to is not None}
    for run, at, publish_at in ahead:
        outcome = Outcome.COMING_MOVED if at in moved else Outcome.COMING
        notes = (*occurrence_notes(saying.schedule, at), *_told(moved.get(at)))
        yield Coming(at, to_zone(at, saying.zone), outcome, publish_at, run, notes=notes)


def _from_timer(
    job: JobPlace, saying: Saying, said: Sequence[Said], n: int, misfire_after: timedelta
) -> Iterator[Coming]:
    """What is not written yet."""
    cursor = job.cursor_at
    if cursor is None or job.hold_reason == HoldReason.QUARANTINED:
        return
    overrides = [Override(each.scheduled_at, each.moved_to, each.done_at is not None) for each in said]
    where = saying.timer_state(overrides)
    if isinstance(where.schedule, FixedDelay | Once):
        if job.hold_reason != HoldReason.RUN:
            yield Coming(cursor, to_zone(cursor, saying.zone), _alone(job, cursor), cursor)
        return
    walk = Walk(
        where,
        job.job_id,
        saying.zone,
        max(job.now, cursor - _TICK),
        job.paused,
        job.paused_until,
        {each.scheduled_at: each for each in said},
    )
    if cursor <= job.now and job.hold_reason is None:
        decision = decide(where, now=job.now, horizon=job.now, misfire_after=misfire_after)
        for fire in decision.fires[:n]:
            yield Coming(fire.at, to_zone(fire.at, saying.zone), Outcome.WAITING, fire.publish_at)
            n -= 1
        walk = replace(walk, where=replace(where, moved={at: to for at, to in where.moved.items() if to > job.now}))
    yield from walk.lines(n)


def _told(said: Said | None) -> tuple[str, ...]:
    """Who has left an occurrence out or moved it."""
    if said is None:
        return ()
    return (f"{'skipped' if said.moved_to is None else 'moved'} {said_by(said)}",)


def _alone(job: JobPlace, at: datetime) -> Outcome:
    if job.hold_reason == HoldReason.PAUSE:
        return Outcome.PAUSED
    return Outcome.COMING if at > job.now else Outcome.WAITING


def _words(connection: Conn, job: JobPlace, saying: Saying, shown: int) -> str:
    if job.hold_reason == HoldReason.QUARANTINED:
        error = read_job_error(connection, job.job_id)
        why = f": {error[0]}" if error else ""
        return f"The job could not be fired and is set aside{why}. Mend it and submit it again."
    if job.paused:
        until = f"until {instant(job.paused_until)}" if job.paused_until else "until somebody resumes it"
        return f"The job is paused, {until}; on_resume is {saying.policies.on_resume}."
    if isinstance(saying.schedule, Manual):
        return "The job's schedule is manual: its runs come from triggers alone."
    if isinstance(saying.schedule, FixedDelay):
        every = length(timedelta(microseconds=saying.schedule.interval_us))
        return f"Each comes {every} after the end of the run before it, so only the next one is known."
    return "Nothing is left for it to fire." if not shown else ""
