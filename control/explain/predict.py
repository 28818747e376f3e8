"""What is to become of an instant that nothing is recorded of yet: from where the timer stands on.

Decided by the scheduler's own code for the moment of the question; nothing of it is written.
"""

from datetime import datetime, timedelta

from tidewheel.control.explain.explanation import MOVED, Answer, Outcome
from tidewheel.control.explain.facts import Asked, Said
from tidewheel.control.explain.text import by_hand, excluded, instant, length, paused_by, said_by, waiting_for
from tidewheel.control.explain.version_timeline import Saying
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import HoldReason, SkipReason
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.policies import CatchUp, jittered
from tidewheel.schedules.simple import FixedDelay, Once

_LOOK = "See that a `tidewheel scheduler` process runs."


def not_recorded(asked: Asked, saying: Saying) -> Answer:
    """An occurrence of the current version that nothing is written of yet; not one that was moved."""
    past = asked.at <= asked.job.now
    if not saying.fires(asked.at):
        outcome = Outcome.SKIPPED if past else Outcome.COMING_EXCLUDED
        return Answer(outcome, excluded(saying, asked), SkipReason.EXCLUDED)
    if asked.about_it is not None:
        return Answer(Outcome.SKIPPED if past else Outcome.COMING_SKIPPED, by_hand(asked), SkipReason.MANUAL)
    if asked.job.cursor_at is None:
        words = f"The job has lost its timer; a scheduler gives it back within minutes. {_LOOK}"
        return Answer(Outcome.WAITING, words)
    return _held(asked, asked.at) or _ahead_or_late(asked, _leaves(asked, saying))


def moved_ahead(asked: Asked, said: Said, saying: Saying) -> Answer:
    """An occurrence that was moved and has not fired yet."""
    to, now = said.moved_to or asked.at, asked.job.now
    local = f" ({to_zone(to, saying.zone).isoformat()})" if saying.zone != "UTC" else ""
    held = _held(asked, to)
    if held is not None:
        into = ", into a pause" if held.outcome is Outcome.PAUSED else ""
        words = f"It was moved to {instant(to)}{local}{into}, {said_by(said)}. {held.words}"
        return Answer(held.outcome, words, MOVED, moved_to=to)
    words = f"It is to fire at {instant(to)}{local}: it was moved, {said_by(said)}."
    if to > now:
        return Answer(Outcome.COMING_MOVED, f"{words} unskip takes that back.", MOVED, moved_to=to)
    words = f"{words} That is {length(now - to)} ago, and it has not been fired yet. {_LOOK}"
    return Answer(Outcome.WAITING, words, MOVED, moved_to=to)


def chained(asked: Asked, schedule: FixedDelay) -> Answer:
    """An instant of a fixed_delay for which there is no run."""
    job, every = asked.job, length(timedelta(microseconds=schedule.interval_us))
    if asked.at == job.cursor_at and job.hold_reason != HoldReason.RUN and asked.near.sayings[-1] is asked.saying:
        return _held(asked, asked.at) or _ahead_or_late(asked, f"It comes {every} after the end of the last run.")
    following = ""
    if job.hold_reason == HoldReason.RUN:
        following = f" The next comes {every} after the end of the run that is open now."
    elif job.cursor_at is not None:
        following = f" The next is {instant(job.cursor_at)}."
    words = f"The schedule is a fixed_delay of {every}: its occurrences are those recorded, and this is none."
    return Answer(Outcome.NO_OCCURRENCE, f"{words}{following}")


def _held(asked: Asked, due: datetime) -> Answer | None:
    """Of a timer that does not go on by itself; `due` is when it would fire, which is where it was moved to."""
    job = asked.job
    if job.hold_reason == HoldReason.QUARANTINED:
        error = asked.error()
        why = f": {error[0]} (at {instant(error[1])})" if error else ""
        words = f"The job could not be fired and is set aside{why}. Mend it and submit it again."
        return Answer(Outcome.WAITING, words)
    if job.hold_reason == HoldReason.PAUSE and (job.paused_until is None or due <= job.paused_until):
        return Answer(Outcome.PAUSED, _paused(asked, due), SkipReason.PAUSED)
    return None


def _paused(asked: Asked, due: datetime) -> str:
    job, saying = asked.job, asked.saying
    who = f" by {paused_by(job.paused_by)}" if job.paused_by else ""
    why = f" ({job.pause_reason})" if job.pause_reason else ""
    since = f" since {instant(job.paused_at)}" if job.paused_at else ""
    until = f"until {instant(job.paused_until)}" if job.paused_until else "until somebody resumes it"
    return f"The job is paused{since}{who}{why}, {until}.{_on_resume(asked, saying, due) if saying else ''}"


def _on_resume(asked: Asked, saying: Saying, due: datetime) -> str:
    if isinstance(saying.schedule, Once | FixedDelay):
        return " It fires when the pause ends."
    policy = waiting_for(saying.policies.on_resume, saying.policies.window)
    if due != asked.at:
        moved = "passed over" if saying.policies.on_resume is CatchUp.SKIP else "fired"
        policy = f"It is {saying.policies.on_resume}: what was moved is {moved}."
    if due > asked.job.now:
        return f" If it still is then, on_resume decides when the pause ends. {policy}"
    return f" When the pause ends, on_resume decides. {policy}"


def _ahead_or_late(asked: Asked, leaves: str) -> Answer:
    job = asked.job
    if asked.at > job.now:
        return Answer(Outcome.COMING, f"It is to fire. {leaves}".strip())
    words = [f"It is {length(job.now - asked.at)} late and has not been fired yet.", _to_be(asked)]
    if job.cursor_at is not None and job.cursor_at != asked.at:
        words.append(f"The timer stands at {instant(job.cursor_at)}.")
    return Answer(Outcome.WAITING, " ".join([*words, _LOOK]))


def _to_be(asked: Asked) -> str:
    """What the next look at the timer makes of what is late, by the scheduler's own code."""
    saying = asked.saying
    assert saying is not None  # noqa: S101 - who calls has looked
    now, where = asked.job.now, saying.timer_state(asked.overrides)
    decision = decide(where, now=now, horizon=now, misfire_after=asked.misfire_after)
    if any(fire.at == asked.at for fire in decision.fires):
        return "The next look at it makes its run."
    if any(skip.first_at <= asked.at <= skip.last_at for skip in decision.skips):
        policy = waiting_for(saying.policies.catch_up, saying.policies.window)
        return f"It is missed, and the next look at it passes it over: catch_up decides. {policy}"
    return "So many are that it takes several looks."


def _leaves(asked: Asked, saying: Saying) -> str:
    policies = saying.policies
    if not policies.jitters:
        return ""
    leaves = jittered(
        asked.at,
        saying.effective.after(asked.at),
        asked.job.job_id,
        longest=policies.jitter,
        percent=policies.jitter_percent,
    )
    return f"With its jitter its run leaves at {instant(leaves)}."
