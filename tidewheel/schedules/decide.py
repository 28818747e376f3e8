"""Decide which occurrences of one timer fire and which are skipped.

Scheduler, intake and preview call the same pure functions, so they cannot disagree. An occurrence is missed when it is
still unfired `misfire_after` past its instant. Younger occurrences all fire, late. The catch-up policy is applied to
missed occurrences once. With `fire_all` the timer keeps the end of the catch-up. Every occurrence up to that end then
fires, `MAX_FIRES` at a time, however late it is by then.

Jobs that were submitted one by one have their own anchor or instant, so none shares its decision with another. The
general path takes 12 us. In `decide_on_time` arithmetic proves that the timer's instant is an occurrence: 3 us.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from tidewheel.runs import SkipReason
from tidewheel.schedules.calendars import excluded_spans, is_occurrence
from tidewheel.schedules.decision import CatchUp, Decision, Fire, HoldReason, Skip, jittered, policies_from_text
from tidewheel.schedules.parse import read_schedule
from tidewheel.schedules.schedule import TICK, FixedDelay, Interval, Once, Schedule
from tidewheel.schedules.timer_state import Timer, TimerState

MAX_FIRES = 100
"""Occurrences of one job in one transaction, so that one job's backlog does not delay the other jobs."""

MAX_CAUGHT_UP = 1_000
"""Occurrences that one catch-up by `fire_all` fires: the newest."""

MAX_COUNTED = 100_000
"""A longer span is recorded as "at least", because counting it would take seconds."""

_YEAR = timedelta(days=366)

_NOTHING = timedelta(0)
_ANY_ANCHOR = "2000-01-01T00:00:00+00:00"
_ONCE = ',"kind":"once"}'


def decide(
    state: TimerState, *, now: datetime, horizon: datetime, misfire_after: timedelta, limit: int = MAX_FIRES
) -> Decision:
    """Decide which occurrences of a timer fire now, which are skipped, and when the timer is due next.

    Args:
        horizon: Instants up to here become runs (now plus the lookahead).
        misfire_after: How late an occurrence may be before it is missed.
        limit: The most occurrences in one decision. The timer stays due when there are more.
    """
    if isinstance(state.schedule, FixedDelay):
        return _fixed_delay(state, state.schedule, horizon)
    live, missed_until = state.live, now - misfire_after
    first, end = live.after(state.cursor - TICK), state.catch_up_end
    if end is None and first is not None and missed_until < first <= horizon and state.plain:
        following = live.after(first)
        if following is None or following > horizon:
            # The common case, one occurrence on time. The general code below gives the same result.
            return Decision((Fire(first, first),), (), next_at=following)
    skips: list[Skip] = []
    if end is not None and (first is None or first > end):
        end = None
    if end is None and first is not None and first <= missed_until and not _always_fires(state):
        end = live.before(missed_until + TICK) or first
        skips, first = _catch_up(state, first, end, policy=state.policies.catch_up, now=now, reason=SkipReason.MISFIRE)
    buffered = CatchUp.FIRE_ALL in {state.policies.catch_up, state.policies.on_resume}
    fires: list[Fire] = []
    position = state.cursor if not skips else max(skip.last_at for skip in skips) + TICK
    if first is None:
        first = live.after(position - TICK)
    while first is not None and first <= horizon and len(fires) < limit:
        if end is not None and end < first <= missed_until:
            break  # missed during the catch-up: the next decision applies the policy to it
        late = now - first if first <= missed_until or (end is not None and first <= end) else None
        fires.append(Fire(first, first, late, buffered=buffered and late is not None))
        position = first + TICK
        first = live.after(first)
    fires = _buffer_late(fires, now)
    truncated = first is not None and first <= horizon
    recorded = position - TICK if truncated else max(position - TICK, horizon)
    done = Decision(tuple(fires), tuple(skips), next_at=first)
    if not state.plain:
        done = _with_overrides(state, done, recorded, now=now, horizon=horizon, missed_until=missed_until)
    still = end is not None and first is not None and first <= end
    return done._replace(catch_up_end=end if still else None)


def on_resume(state: TimerState, *, now: datetime, reason: SkipReason = SkipReason.PAUSED) -> Decision:
    """Decide about a timer when its job's pause or its freeze ends, by the policy `on_resume`.

    The decision fires nothing. It skips instants of the pause, and leaves the rest to the next firing.
    """
    if isinstance(state.schedule, FixedDelay | Once) or _has_none_until(state, now):
        return _keep_position(state, state.cursor)
    live = state.live
    first, latest = live.after(state.cursor - TICK), live.before(now + TICK)
    skips: list[Skip] = []
    end: datetime | None = None
    if first is not None and latest is not None and first <= latest:
        skips, first = _catch_up(state, first, latest, policy=state.policies.on_resume, now=now, reason=reason)
        end = None if first is None else latest
    recorded = _recorded(state, now) if first is None or first > now else first - TICK
    following = first if first is not None and first <= now else live.after(recorded)
    done = Decision((), tuple(skips), next_at=following)
    if not state.plain:
        done = _with_overrides(state, done, recorded, now=now, horizon=None, missed_until=now, reason=reason)
    return done._replace(catch_up_end=end)


def skip_paused(
    state: TimerState, *, now: datetime, once_too: bool = False, reason: SkipReason = SkipReason.PAUSED
) -> Decision:
    """Skip a timer's instants up to now, as an edit of a paused or quarantined job does.

    An occurrence that was moved to an instant up to now is skipped too, even if its own instant is ahead. A `once`
    keeps waiting for the end of the pause, unless `once_too`.
    """
    waits = isinstance(state.schedule, FixedDelay) or (isinstance(state.schedule, Once) and not once_too)
    if waits or _has_none_until(state, now):
        return _keep_position(state, state.cursor)
    live, recorded = state.live, _recorded(state, now)
    first = live.after(state.cursor - TICK)
    skips = () if first is None else skip_span(live, first, now, reason=reason)
    done = Decision((), skips, next_at=live.after(recorded))
    if state.plain:
        return done
    skipping = replace(state, policies=replace(state.policies, on_resume=CatchUp.SKIP))
    return _with_overrides(skipping, done, recorded, now=now, horizon=None, missed_until=now)


def skip_span(live: Schedule, first_at: datetime, until: datetime, *, reason: SkipReason) -> tuple[Skip, ...]:
    """Return one skip of the occurrences from `first_at` (itself one) to `until` inclusive, or none."""
    if first_at > until:
        return ()
    last_at = live.before(until + TICK) or first_at
    occurrences, exact = live.count(first_at - TICK, until, MAX_COUNTED)
    return (Skip(reason, first_at, max(last_at, first_at), occurrences, exact),)


def with_jitter(decision: Decision, state: TimerState, job_id: UUID) -> Decision:
    """Add one job's jitter to a decision. Late and moved runs get none."""
    policies = state.policies
    if not policies.jitters or not decision.fires:
        return decision
    return decision._replace(
        fires=tuple(
            fire._replace(
                publish_at=jittered(
                    fire.at,
                    state.live.after(fire.at),
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


def hold_for_run(decision: Decision) -> Decision:
    """Make the timer of a fixed_delay job wait for the end of its open run."""
    return decision._replace(hold_reason=HoldReason.RUN, due_at=None)


def next_wakeup(state: TimerState, after: datetime) -> datetime | None:
    """Return the instant at which a timer is due next, with all up to `after` recorded; None at the end."""
    skipped = (at for at in state.skipped if at > after and is_occurrence(state.effective, at))
    candidates = [*skipped, *state.moved.values()]
    following = state.live.after(after)
    found = min([*candidates, following] if following is not None else candidates, default=None)
    return found or _final_wakeup(state, after)


def next_cursor(state: TimerState, after: datetime) -> datetime | None:
    """Return the first instant to record, with all up to `after` recorded; None when there is none.

    An occurrence shifted to another day may come before the schedule's own next instant.
    """
    coming = (state.schedule.after(after), state.effective.after(after))
    return min((at for at in coming if at is not None), default=None)


def _final_wakeup(state: TimerState, after: datetime) -> datetime | None:
    """Return the instant to record final occurrences that calendars exclude: the last, or once a year."""
    if state.effective is state.schedule:
        return None
    following = state.schedule.after(after)
    if following is None:
        return None
    return max(following, state.schedule.before(after + _YEAR) or following)


def _buffer_late(fires: list[Fire], now: datetime) -> list[Fire]:
    """Buffer several late occurrences: without it a job whose runs may not overlap would skip all but one."""
    if len(fires) < 2 or fires[1].at > now:
        return fires
    return [fire._replace(buffered=True) if fire.at <= now else fire for fire in fires]


def _always_fires(state: TimerState) -> bool:
    return isinstance(state.schedule, Once) and state.policies.catch_up is not CatchUp.SKIP


def _fixed_delay(state: TimerState, schedule: FixedDelay, horizon: datetime) -> Decision:
    at = max(state.cursor, schedule.bounds.start_at or state.cursor)
    if not schedule.bounds.holds(at):
        return Decision()
    if at > horizon:
        return Decision(next_at=at)
    # Only fired instants are occurrences of a fixed_delay, so a late one is never missed.
    return Decision((Fire(at, at),), next_at=at, hold_reason=HoldReason.RUN)


def _has_none_until(state: TimerState, now: datetime) -> bool:
    """Return True if no occurrence is due up to now, by its own instant or by one it was moved to."""
    return state.cursor > now and not any(to <= now for to in state.moved.values())


def _recorded(state: TimerState, now: datetime) -> datetime:
    """Return the end of the recorded instants: now, or the cursor where it is ahead of now."""
    return max(now, state.cursor - TICK)


def _keep_position(state: TimerState, at: datetime) -> Decision:
    due_at = at if state.plain else next_wakeup(state, at - TICK)
    return Decision(next_at=at, due_at=due_at, overridden=state.overridden_until is not None)


def _catch_up(
    state: TimerState, first: datetime, latest: datetime, *, policy: CatchUp, now: datetime, reason: SkipReason
) -> tuple[list[Skip], datetime | None]:
    """Apply the catch-up policy to `first..latest`; return skipped spans and the first to fire, if any."""
    live = state.live
    if policy is CatchUp.SKIP:
        return list(skip_span(live, first, latest, reason=reason)), None
    if policy is CatchUp.FIRE_ONCE:
        return list(skip_span(live, first, latest - TICK, reason=reason)), latest
    start = first
    if first < now - state.policies.window:
        start = live.after(now - state.policies.window - TICK) or latest + TICK
    if start > latest:
        return list(skip_span(live, first, latest, reason=reason)), None
    skips = list(skip_span(live, first, start - TICK, reason=reason))
    if not live.count(start - TICK, latest, MAX_CAUGHT_UP)[1]:
        newest = latest
        for _ in range(MAX_CAUGHT_UP - 1):
            newest = live.before(newest) or newest
        skips += skip_span(live, start, newest - TICK, reason=SkipReason.CATCH_UP_LIMIT)
        start = newest
    return skips, start


def _with_overrides(
    state: TimerState,
    done: Decision,
    recorded: datetime,
    *,
    now: datetime,
    horizon: datetime | None,
    missed_until: datetime,
    reason: SkipReason = SkipReason.PAUSED,
) -> Decision:
    """Add skips by calendars and users, and moved occurrences, up to `recorded`.

    Without a horizon no moved occurrence fires. One inside the pause is skipped for `reason`, and a later one is left
    to firing.
    """
    fires, skips = list(done.fires), list(done.skips)
    moved: list[datetime] = []
    skips += [Skip(SkipReason.MANUAL, at, at, 1) for at in _skipped_by_user(state, recorded)]
    skips += _skips_by_calendars(state, recorded, now)
    pending = dict(state.moved)
    policy = state.policies.catch_up if horizon is not None else state.policies.on_resume
    for nominal, to in sorted(state.moved.items(), key=lambda pair: pair[1]):
        late = now - to if to <= missed_until else None
        if late is not None and policy is CatchUp.SKIP and not _always_fires(state):
            skips.append(Skip(SkipReason.MISFIRE if horizon is not None else reason, nominal, nominal, 1))
        elif horizon is not None and to <= horizon:
            fires.append(Fire(nominal, to, late))
        else:
            continue
        moved.append(nominal)
        del pending[nominal]
    due_at = next_wakeup(replace(state, moved=pending), recorded)
    following = next_cursor(state, recorded) if due_at is not None else None
    next_at = following or (None if due_at is None else max(due_at, recorded + TICK))
    # Drop a moved instant that is no occurrence any more before the cursor passes it: behind the cursor it would count
    # as an occurrence.
    dropped = sorted(at for at in state.dropped if next_at is None or at < next_at)
    until = state.overridden_until
    return done._replace(
        fires=tuple(fires),
        skips=tuple(skips),
        next_at=next_at,
        due_at=due_at,
        moved=(*moved, *dropped),
        overridden=bool(pending) or (until is not None and until > recorded),
    )


def _skipped_by_user(state: TimerState, until: datetime) -> list[datetime]:
    """Return the occurrences that users have skipped, from the cursor to `until`."""
    return sorted(at for at in state.skipped if state.cursor <= at <= until and is_occurrence(state.effective, at))


def _skips_by_calendars(state: TimerState, recorded: datetime, now: datetime) -> Iterable[Skip]:
    """Yield the spans that calendars exclude; those ahead of now separately: an edit retracts them."""
    if state.effective is state.schedule:
        return
    start = state.cursor - TICK
    for low, high in pairwise(sorted({start, min(max(now, start), recorded), recorded})):
        for first_at, last_at, occurrences, exact in excluded_spans(state.schedule, state.effective, low, high):
            yield Skip(SkipReason.EXCLUDED, first_at, last_at, occurrences, exact)


def decide_on_time(timer: Timer, *, now: datetime, horizon: datetime, misfire_after: timedelta) -> Decision | None:
    """Return the decision of `decide` for an interval or a `once` without a hold or overrides.

    Returns:
        None if the decision needs more, as jitter and calendars do, or if the schedule cannot be read. The general path
        then decides, or refuses.

    Raises:
        ValueError: The stored policy cannot be read.
    """
    at = timer.scheduled_at
    if (
        not now - misfire_after < at <= horizon
        or timer.catch_up_end is not None
        or not _fires_exactly(timer.policy_json)
    ):
        return None
    try:
        following = _following(timer.schedule_json, at)
    except (ValueError, TypeError, OverflowError):
        return None
    if following is not None and following <= horizon:
        return None
    return Decision((Fire(at, at),), (), following)


@lru_cache(maxsize=4096)  # distinct policies in use: a handful
def _fires_exactly(policy: str) -> bool:
    """Return True if every occurrence fires at exactly its instant."""
    policies = policies_from_text(policy)
    return not (policies.jitters or policies.calendars)


class _IntervalStep(NamedTuple):
    """An interval without its anchor."""

    every: timedelta
    anchor_fires: bool
    start_at: datetime | None
    end_at: datetime | None


def _following(text: str, at: datetime) -> datetime | None:
    """Return the occurrence after `at` of an interval or a `once`; None if there is none."""
    # The canonical text has sorted names, so the instant comes first.
    _, name, _, instant, rest = text.split('"', 4)
    if name == "anchor":
        every, anchor_fires, start_at, end_at = _interval_step(rest)
        since = at - datetime.fromisoformat(instant)
        fires = since > _NOTHING or (anchor_fires and since == _NOTHING)
        if fires and not since % every and (start_at is None or start_at <= at) and (end_at is None or at <= end_at):
            following = at + every
            return following if end_at is None or following <= end_at else None
    elif name == "at" and rest == _ONCE and datetime.fromisoformat(instant) == at:
        return None
    raise ValueError


@lru_cache(maxsize=4096)  # distinct intervals in use, apart from their anchors: a few hundred
def _interval_step(rest: str) -> _IntervalStep:
    """Parse the text of an interval behind the instant of its anchor."""
    interval = read_schedule(f'{{"anchor":"{_ANY_ANCHOR}"{rest}')
    if not isinstance(interval, Interval):
        raise ValueError  # noqa: TRY004 - it means that the general path must decide
    bounds = interval.bounds
    return _IntervalStep(
        timedelta(microseconds=interval.interval_us), interval.anchor_fires, bounds.start_at, bounds.end_at
    )
