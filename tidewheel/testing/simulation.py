"""`simulate`: the outcome of a job's occurrences in a time span, without any service.

It is accepted by the code that accepts submits and decided by the code that decides what fires (`recurrence.due`),
stepped from one look at its timer to the next as a scheduler would be. Nothing runs, so nothing overlaps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from tidewheel.control.explain.explanation import MISFIRE_AFTER
from tidewheel.control.explain.preview import version_of
from tidewheel.control.explain.upcoming import occurrence_notes
from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.ids import job_id
from tidewheel.intake.locks import absent_job
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.requests import CalendarPut, JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.runs import SkipReason
from tidewheel.schedules.decide import decide, with_jitter
from tidewheel.schedules.decision import DaySet, Decision, Fire, Skip
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.schedule import FixedDelay
from tidewheel.schedules.timer_state import DaySets, TimerPosition, TimerState, timer_state, zone_name

MAX_WAKEUPS = 100_000
"""Occurrences in one simulation: what has more is better simulated in parts."""

_TENANT = "default"

Downtime = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of an occurrence, or of several skipped in a row.

    Args:
        at: Its nominal instant, in UTC; of several the first.
        local: The same on the clock of the job's zone.
        fires_at: When its run may start: later than `at` by jitter or downtime; None where it does not fire.
        reason: Why it does not fire, such as `misfire` or `excluded`; None where it does.
        late: How late it is made up for; None where it was not missed.
        notes: What a change of the clock does to it.
    """

    at: datetime
    local: datetime
    fires_at: datetime | None
    reason: SkipReason | None = None
    late: timedelta | None = None
    last_at: datetime | None = None
    occurrences: int = 1
    notes: tuple[str, ...] = ()

    @property
    def fired(self) -> bool:
        """True if it becomes a run."""
        return self.fires_at is not None


def simulate(
    job: Mapping[str, object] | JobSpec,
    start: datetime,
    end: datetime,
    *,
    calendars: Mapping[str, Sequence[date | str]] | None = None,
    down: Sequence[Downtime] = (),
    taking: timedelta = timedelta(0),
    misfire_after: timedelta = MISFIRE_AFTER,
) -> list[Simulated]:
    """Return the outcomes of the occurrences of a job submitted at `start`, up to `end`, as decided.

    Args:
        job: As in a `job.submit`.
        start: When it is submitted, with its zone's offset.
        end: Up to when, inclusive.
        calendars: The days of the calendars that it names, such as `{"holidays": ["2026-12-25"]}`.
        down: Spans in which no scheduler runs; what falls in there is decided by `catch_up` when they end.
        taking: How long each run takes; what comes next of a `fixed_delay` depends on it.
        misfire_after: How late an occurrence may be before it is missed.

    Raises:
        Refused: As a submit would be, or an argument does not fit; `errors` names each field and its remedy.
    """
    _check(start, end, down)
    request = parse_request({"type": "job.submit", "job": job if isinstance(job, JobSpec) else dict(job)})
    assert isinstance(request, JobSubmit)  # noqa: S101 - by its type
    spec, days = request.job, _day_sets(calendars or {})
    for name in (*spec.exclude_calendars, *spec.include_calendars):
        if (_TENANT, name) not in days:
            problem, remedy = f"{name!r} is not given", f'pass its days: calendars={{"{name}": ["2026-12-25"]}}'
            refuse("calendars", problem, remedy)
    return list(_Timeline(spec, start, end, days, sorted(down), taking, misfire_after).lines())


@dataclass(frozen=True, slots=True)
class _Timeline:
    spec: JobSpec
    start: datetime
    end: datetime
    days: DaySets
    down: Sequence[Downtime]
    taking: timedelta
    misfire_after: timedelta

    def lines(self) -> Iterator[Simulated]:
        key = self.spec.key or "simulated"
        job = job_id(_TENANT, key)
        version = version_of(self.spec, absent_job(job, _TENANT, key, self.start), self.start, self.days)
        place = TimerPosition(job, _TENANT, version.schedule_text, version.policy_text, version.next_at or self.end)
        state, wakeup = timer_state(place, self.days), None if version.paused else version.due_at
        now = self.start
        for _ in range(MAX_WAKEUPS):
            if wakeup is None or wakeup > self.end:
                yield from self._excluded(state)
                return
            now = self._up(max(now, wakeup))
            if now > self.end:
                return
            decided = decide(state, now=now, horizon=now, misfire_after=self.misfire_after)
            decided = with_jitter(decided, state, job)
            yield from self._outcomes(state, decided, now)
            wakeup, state = self._next(state, decided, now)
        refuse("end", f"more than {MAX_WAKEUPS:,} wakeups of the job's timer", "simulate a shorter span")

    def _up(self, now: datetime) -> datetime:
        """Return the first instant from `now` at which a scheduler runs."""
        for begins, ends in self.down:
            if begins <= now < ends:
                now = ends
        return now

    def _excluded(self, state: TimerState) -> Iterator[Simulated]:
        """Yield the occurrences that calendars exclude between the last look and the end."""
        if not state.plain and state.cursor <= self.end == self._up(self.end):
            decided = decide(state, now=self.end, horizon=self.end, misfire_after=self.misfire_after)
            yield from self._outcomes(state, decided, self.end)

    def _next(self, state: TimerState, decided: Decision, now: datetime) -> tuple[datetime | None, TimerState]:
        if isinstance(state.schedule, FixedDelay) and decided.fires:
            following = state.schedule.due(self.start, now + self.taking)
        else:
            following = decided.next_at
        if following is None:
            return None, state
        return decided.due_at or following, replace(state, cursor=following, catch_up_end=decided.catch_up_end)

    def _outcomes(self, state: TimerState, decided: Decision, now: datetime) -> Iterator[Simulated]:
        outcomes: list[tuple[datetime, Skip | Fire]] = [(skip.first_at, skip) for skip in decided.skips]
        outcomes += [(fire.at, fire) for fire in decided.fires]
        zone = zone_name(state.schedule)
        for at, each in sorted(outcomes, key=lambda pair: pair[0]):
            match each:
                case Fire():
                    notes = occurrence_notes(state.schedule, at)
                    fires_at = max(each.publish_at, now)
                    yield Simulated(at, to_zone(at, zone), fires_at, late=each.late, notes=notes)
                case Skip():
                    last = each.last_at if each.occurrences > 1 else None
                    yield Simulated(
                        at, to_zone(at, zone), None, each.reason, last_at=last, occurrences=each.occurrences
                    )


def _check(start: datetime, end: datetime, down: Sequence[Downtime]) -> None:
    errors: list[FieldError] = []
    instants = {"start": start, "end": end}
    instants |= {f"down[{n}]": at for n, span in enumerate(down) for at in span}
    for path, at in instants.items():
        if at.tzinfo is None:
            errors.append(FieldError(path, f"{at.isoformat()} has no offset", "give it one, such as tzinfo=UTC"))
    if not errors and end < start:
        errors.append(FieldError("end", "is before start", "swap them"))
    if errors:
        raise InvalidInput(errors)


def _day_sets(calendars: Mapping[str, Sequence[date | str]]) -> DaySets:
    sets: dict[tuple[str, str], DaySet] = {}
    for name, days in calendars.items():
        texts = [day if isinstance(day, str) else day.isoformat() for day in days]
        put = parse_request({"type": "calendar.put", "name": name, "days": texts})
        assert isinstance(put, CalendarPut)  # noqa: S101 - by its type
        sets[_TENANT, name] = DaySet(frozenset(put.days), frozenset())
    return sets
