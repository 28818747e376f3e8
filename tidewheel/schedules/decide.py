"""What is due of one timer: pure, so that scheduler, intake and preview decide alike.

An occurrence is missed when it is still unfired `misfire_after` past its instant; younger ones all fire, late. What
becomes of missed ones is decided once: with `fire_all` the end of the catch-up stays with the timer, and what lies
before it fires, some at a time, whatever the clock says by then.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from tidewheel.schedules.calendars import excluded_spans, is_occurrence
from tidewheel.schedules.decision import Decision, Fire, Held, Skip, SkipReason
from tidewheel.schedules.policies import CatchUp, jittered
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.simple import FixedDelay, Once
from tidewheel.schedules.timer_state import Standing

MOST_AT_ONCE = 100  # occurrences of one job in one transaction, so that one job's past does not hold up the others
MOST_MADE_UP = 1_000  # by `fire_all`, the newest
COUNTED = 100_000  # a longer span is recorded as "at least": counting it would take seconds

_TICK = timedelta(microseconds=1)
_YEAR = timedelta(days=366)


def decide(
    standing: Standing, *, now: datetime, horizon: datetime, misfire_after: timedelta, most: int = MOST_AT_ONCE
) -> Decision:
    """Decide about a timer.

    Args:
        standing: Where it stands.
        now: The database's clock.
        horizon: Instants up to here become runs (now plus the lookahead).
        misfire_after: How late an occurrence may be before it is missed.
        most: How many occurrences at once; the timer stays due when there are more.
    """
    if isinstance(standing.schedule, FixedDelay):
        return _fixed_delay(standing, standing.schedule, horizon)
    live, missed_until = standing.live, now - misfire_after
    first, end = live.after(standing.cursor - _TICK), standing.catch_up_end
    if end is None and first is not None and missed_until < first <= horizon and standing.plain:
        following = live.after(first)
        if following is None or following > horizon:
            # One occurrence, on time: nearly always, and what follows would come to the same.
            return Decision((Fire(first, first),), (), next_at=following)
    skips: list[Skip] = []
    if end is not None and (first is None or first > end):
        end = None
    if end is None and first is not None and first <= missed_until and not _always_fires(standing):
        end = live.before(missed_until + _TICK) or first
        skips, first = _made_up(
            standing, first, end, policy=standing.policies.catch_up, now=now, reason=SkipReason.MISFIRE
        )
    buffered = CatchUp.FIRE_ALL in {standing.policies.catch_up, standing.policies.on_resume}
    fires: list[Fire] = []
    position = standing.cursor if not skips else max(skip.last_at for skip in skips) + _TICK
    if first is None:
        first = live.after(position - _TICK)
    while first is not None and first <= horizon and len(fires) < most:
        if end is not None and end < first <= missed_until:
            break  # missed while the catch-up went on: for the next decision to say
        late = now - first if first <= missed_until or (end is not None and first <= end) else None
        fires.append(Fire(first, first, late, buffered=buffered and late is not None))
        position = first + _TICK
        first = live.after(first)
    fires = _one_after_another(fires, now)
    truncated = first is not None and first <= horizon
    recorded = position - _TICK if truncated else max(position - _TICK, horizon)
    done = Decision(tuple(fires), tuple(skips), next_at=first)
    if not standing.plain:
        done = _with_overrides(standing, done, recorded, now=now, horizon=horizon, missed_until=missed_until)
    still = end is not None and first is not None and first <= end
    return done._replace(catch_up_end=end if still else None)


def resume(standing: Standing, *, now: datetime) -> Decision:
    """What becomes of a timer when its job's pause ends: `on_resume` decides about the instants in it.

    What is to be made up for is left to the next firing, but for the single run of `fire_once`.
    """
    overdue = any(to <= now for to in standing.moved.values())
    if isinstance(standing.schedule, FixedDelay | Once) or (standing.cursor > now and not overdue):
        return _going_on(standing, standing.cursor)
    live = standing.live
    first, latest = live.after(standing.cursor - _TICK), live.before(now + _TICK)
    skips: list[Skip] = []
    end: datetime | None = None
    if first is not None and latest is not None and first <= latest:
        skips, first = _made_up(
            standing, first, latest, policy=standing.policies.on_resume, now=now, reason=SkipReason.PAUSED
        )
        end = None if first is None else latest
    # With the cursor ahead, all up to it is recorded already, and only what was moved into the pause is decided.
    recorded = max(now, standing.cursor - _TICK) if first is None or first > now else first - _TICK
    following = first if first is not None and first <= now else live.after(recorded)
    done = Decision((), tuple(skips), next_at=following)
    if not standing.plain:
        done = _with_overrides(standing, done, recorded, now=now, horizon=None, missed_until=now)
    return done._replace(catch_up_end=end)


def passed_by(standing: Standing, *, now: datetime, once_too: bool = False) -> Decision:
    """What becomes of a timer whose instants up to now are given up, as those of a paused job that is edited.

    A `once` goes on waiting for the end of the pause, unless the edit gives it up too.
    """
    waits = isinstance(standing.schedule, FixedDelay) or (isinstance(standing.schedule, Once) and not once_too)
    if waits or standing.cursor > now:
        return _going_on(standing, standing.cursor)
    live = standing.live
    first = live.after(standing.cursor - _TICK)
    skips = () if first is None else passed_over(live, first, now, reason=SkipReason.PAUSED)
    done = Decision((), skips, next_at=live.after(now))
    if standing.plain:
        return done
    given_up = replace(standing, policies=replace(standing.policies, on_resume=CatchUp.SKIP))
    return _with_overrides(given_up, done, now, now=now, horizon=None, missed_until=now)


def passed_over(live: Schedule, first_at: datetime, until: datetime, *, reason: SkipReason) -> tuple[Skip, ...]:
    """The occurrences from `first_at` (itself one) to `until`, inclusive, as one skip; empty where there is none."""
    if first_at > until:
        return ()
    last_at = live.before(until + _TICK) or first_at
    occurrences, exact = live.count(first_at - _TICK, until, COUNTED)
    return (Skip(reason, first_at, max(last_at, first_at), occurrences, exact),)


def with_jitter(decision: Decision, standing: Standing, job_id: UUID) -> Decision:
    """The decision with the delays of one job's runs; those that are late or moved have none."""
    policies = standing.policies
    if not policies.jitters or not decision.fires:
        return decision
    return decision._replace(
        fires=tuple(
            fire._replace(
                publish_at=jittered(
                    fire.at,
                    standing.live.after(fire.at),
                    job_id,
                    longest=policies.jitter,
                    percent=policies.jitter_percent,
                ),
            )
            if fire.late is None and fire.publish_at == fire.at
            else fire
            for fire in decision.fires
        ),
    )


def waits_for_run(decision: Decision) -> Decision:
    """The decision about a fixed_delay whose last run is open: what comes next waits for its end."""
    return decision._replace(held=Held.RUN, due_at=None)


def next_look(standing: Standing, after: datetime) -> datetime | None:
    """When a timer must be looked at next, all up to `after` being recorded; None when nothing is left."""
    by_hand = (at for at in standing.skipped if at > after and is_occurrence(standing.effective, at))
    candidates = [*by_hand, *standing.moved.values()]
    following = standing.live.after(after)
    found = min([*candidates, following] if following is not None else candidates, default=None)
    return found or _last_look(standing, after)


def next_cursor(standing: Standing, after: datetime) -> datetime | None:
    """The first instant that is to be recorded, all up to `after` being it; None when there is none.

    What is shifted to another day may come before the schedule's own next instant.
    """
    coming = (standing.schedule.after(after), standing.effective.after(after))
    return min((at for at in coming if at is not None), default=None)


def _last_look(standing: Standing, after: datetime) -> datetime | None:
    """When what calendars leave out at the end is to be recorded: when it is over, or once a year."""
    if standing.effective is standing.schedule:
        return None
    following = standing.schedule.after(after)
    if following is None:
        return None
    return max(following, standing.schedule.before(after + _YEAR) or following)


def _one_after_another(fires: list[Fire], now: datetime) -> list[Fire]:
    """Several that are late at once would skip one another where runs may not overlap: they wait for each other."""
    if len(fires) < 2 or fires[1].at > now:
        return fires
    return [fire._replace(buffered=True) if fire.at <= now else fire for fire in fires]


def _always_fires(standing: Standing) -> bool:
    return isinstance(standing.schedule, Once) and standing.policies.catch_up is not CatchUp.SKIP


def _fixed_delay(standing: Standing, schedule: FixedDelay, horizon: datetime) -> Decision:
    at = max(standing.cursor, schedule.bounds.start_at or standing.cursor)
    if not schedule.bounds.holds(at):
        return Decision()
    if at > horizon:
        return Decision(next_at=at)
    # Its occurrences are those that fire: a late one was not missed.
    return Decision((Fire(at, at),), next_at=at, held=Held.RUN)


def _going_on(standing: Standing, at: datetime) -> Decision:
    look = at if standing.plain else next_look(standing, at - _TICK)
    return Decision(next_at=at, due_at=look, overridden=standing.overridden_until is not None)


def _made_up(
    standing: Standing, first: datetime, latest: datetime, *, policy: CatchUp, now: datetime, reason: SkipReason
) -> tuple[list[Skip], datetime | None]:
    """What is passed over of the occurrences from `first` to `latest`, and the first that is not; None: all are."""
    live = standing.live
    if policy is CatchUp.SKIP:
        return list(passed_over(live, first, latest, reason=reason)), None
    if policy is CatchUp.FIRE_ONCE:
        return list(passed_over(live, first, latest - _TICK, reason=reason)), latest
    start = first
    if first < now - standing.policies.window:
        start = live.after(now - standing.policies.window - _TICK) or latest + _TICK
    if start > latest:
        return list(passed_over(live, first, latest, reason=reason)), None
    skips = list(passed_over(live, first, start - _TICK, reason=reason))
    if not live.count(start - _TICK, latest, MOST_MADE_UP)[1]:
        newest = latest
        for _ in range(MOST_MADE_UP - 1):
            newest = live.before(newest) or newest
        skips += passed_over(live, start, newest - _TICK, reason=SkipReason.LIMIT)
        start = newest
    return skips, start


def _with_overrides(
    standing: Standing,
    done: Decision,
    recorded: datetime,
    *,
    now: datetime,
    horizon: datetime | None,
    missed_until: datetime,
) -> Decision:
    """The decision with what calendars and people have left out or moved, up to `recorded`.

    Without a horizon no moved occurrence fires: it is passed over where the pause swallowed it, or left to firing.
    """
    fires, skips = list(done.fires), list(done.skips)
    moved: list[datetime] = []
    skips += [Skip(SkipReason.MANUAL, at, at, 1) for at in _by_hand(standing, recorded)]
    skips += _excluded(standing, recorded, now)
    pending = dict(standing.moved)
    policy = standing.policies.catch_up if horizon is not None else standing.policies.on_resume
    for nominal, to in sorted(standing.moved.items(), key=lambda pair: pair[1]):
        late = now - to if to <= missed_until else None
        if late is not None and policy is CatchUp.SKIP and not _always_fires(standing):
            reason = SkipReason.MISFIRE if horizon is not None else SkipReason.PAUSED
            skips.append(Skip(reason, nominal, nominal, 1))
        elif horizon is not None and to <= horizon:
            fires.append(Fire(nominal, to, late))
        else:
            continue
        moved.append(nominal)
        del pending[nominal]
    look = next_look(replace(standing, moved=pending), recorded)
    following = next_cursor(standing, recorded) if look is not None else None
    next_at = following or (None if look is None else max(look, recorded + _TICK))
    # The cursor never passes what was moved and is no occurrence any more: behind it, it would count as one that was.
    dropped = sorted(at for at in standing.dropped if next_at is None or at < next_at)
    until = standing.overridden_until
    return done._replace(
        fires=tuple(fires),
        skips=tuple(skips),
        next_at=next_at,
        due_at=look,
        moved=(*moved, *dropped),
        overridden=bool(pending) or (until is not None and until > recorded),
    )


def _by_hand(standing: Standing, until: datetime) -> list[datetime]:
    """The occurrences that people have left out, from the cursor to `until`."""
    return sorted(
        at for at in standing.skipped if standing.cursor <= at <= until and is_occurrence(standing.effective, at)
    )


def _excluded(standing: Standing, recorded: datetime, now: datetime) -> Iterable[Skip]:
    """What calendars have left out; what is ahead of now apart, since an edit takes it back."""
    if standing.effective is standing.schedule:
        return
    start = standing.cursor - _TICK
    for low, high in pairwise(sorted({start, min(max(now, start), recorded), recorded})):
        for first_at, last_at, occurrences, exact in excluded_spans(standing.schedule, standing.effective, low, high):
            yield Skip(SkipReason.EXCLUDED, first_at, last_at, occurrences, exact)
