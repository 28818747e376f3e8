"""What is to become of an instant that nothing is recorded of yet: from where the timer stands on.

Decided by the scheduler's own code for the moment of the question; nothing of it is written.
"""

from datetime import datetime, timedelta

from tidewheel.control.asked import Asked
from tidewheel.control.clock_notes import on_clock
from tidewheel.control.explain_words import by_hand, excluded, instant, length, waiting_for
from tidewheel.control.explanation import MOVED, Answer, Outcome
from tidewheel.control.versions_near import Saying
from tidewheel.occurrences import Held, SkipReason
from tidewheel.scheduler.recurrence.due import decide
from tidewheel.scheduler.recurrence.fixed_delay import FixedDelay
from tidewheel.scheduler.recurrence.jitter import jittered
from tidewheel.scheduler.recurrence.once import Once

_LOOK = "See that a scheduler runs (`tidewheel status`)."


def not_recorded(asked: Asked, saying: Saying) -> Answer:
    """An occurrence of the current version that nothing is written of yet."""
    said = asked.about_it
    past = asked.at <= asked.job.now
    if said is not None and said.moved_to is not None and saying.fires(asked.at) and said.done_at is None:
        return moved(asked, saying, said.moved_to)
    if said is not None and said.moved_to is None and saying.fires(asked.at):
        return Answer(Outcome.SKIPPED if past else Outcome.COMING_SKIPPED, by_hand(asked), SkipReason.BY_HAND)
    if not saying.fires(asked.at):
        words = excluded(saying, asked)
        return Answer(Outcome.SKIPPED if past else Outcome.COMING_EXCLUDED, words, SkipReason.EXCLUDED)
    if asked.job.cursor_at is None:
        return _no_timer(asked)
    return _held(asked) or _ahead_or_late(asked, _leaves(asked, saying))


def _held(asked: Asked) -> Answer | None:
    """Of a timer that does not go on by itself."""
    job = asked.job
    if job.held == Held.SET_ASIDE:
        error = asked.error()
        why = f": {error[0]} (at {instant(error[1])})" if error else ""
        words = f"The job could not be fired and is set aside{why}. Mend it and submit it again."
        return Answer(Outcome.WAITING, words)
    if job.held == Held.PAUSE and (job.paused_until is None or asked.at <= job.paused_until):
        return Answer(Outcome.PAUSED, _paused(asked), SkipReason.PAUSED)
    return None


def _paused(asked: Asked) -> str:
    job, saying = asked.job, asked.saying
    who = f" by {job.paused_by}" if job.paused_by else ""
    why = f" ({job.pause_reason})" if job.pause_reason else ""
    since = f" since {instant(job.paused_at)}" if job.paused_at else ""
    until = f"until {instant(job.paused_until)}" if job.paused_until else "until somebody resumes it"
    policy = ""
    if saying is not None and isinstance(saying.schedule, Once | FixedDelay):
        policy = " It fires when the pause ends."
    elif saying is not None and asked.at <= job.now:
        policy = f" When the pause ends, on_resume is {waiting_for(saying.policies.on_resume, saying.policies.window)}."
    elif saying is not None:
        policy = f" If it still is then, on_resume decides: {waiting_for(saying.policies.on_resume, saying.policies.window)}."
    return f"The job is paused{since}{who}{why}, {until}.{policy}"


def _ahead_or_late(asked: Asked, leaves: str) -> Answer:
    job = asked.job
    if asked.at > job.now:
        return Answer(Outcome.COMING, f"It is to fire. {leaves}".strip())
    late = length(job.now - asked.at)
    stands = f"The timer stands at {instant(job.cursor_at)}." if job.cursor_at and job.cursor_at != asked.at else ""
    return Answer(Outcome.WAITING, f"It is {late} late and has not been fired yet. {_to_be(asked)} {stands} {_LOOK}")


def _to_be(asked: Asked) -> str:
    """What the next look at the timer makes of what is late, by the scheduler's own code."""
    saying = asked.saying
    assert saying is not None  # noqa: S101 - who calls has looked
    policies, now = saying.policies, asked.job.now
    decision = decide(_standing(asked, saying), now=now, horizon=now, misfire_after=asked.misfire_after)
    if any(fire.at == asked.at for fire in decision.fires):
        return "The next look at it makes its run."
    skip = next((skip for skip in decision.skips if skip.first_at <= asked.at <= skip.last_at), None)
    if skip is not None:
        return f"It is missed, and catch_up is {waiting_for(policies.catch_up, policies.window)}; it is among those passed over."
    return "There are so many that it takes several looks."


def moved(asked: Asked, saying: Saying, to: datetime) -> Answer:
    said, now = asked.about_it, asked.job.now
    who = said.made_by if said and said.made_by else "Somebody"
    when = f" at {instant(said.made_at)}" if said else ""
    words = f"{who} moved it{when}: it is to fire at {instant(to)} ({on_clock(to, saying.zone).isoformat()})."
    held = _held(asked)
    if held is not None:
        return Answer(held.outcome, f"{words} {held.words}", MOVED, moved_to=to)
    if to > now:
        return Answer(Outcome.COMING_MOVED, f"{words} unskip takes that back.", MOVED, moved_to=to)
    words = f"{words} That is {length(now - to)} ago, and it has not been fired yet. {_LOOK}"
    return Answer(Outcome.WAITING, words, MOVED, moved_to=to)


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


def _standing(asked: Asked, saying: Saying) -> Standing:
    return saying.standing(asked.overrides)


def chained(asked: Asked, schedule: FixedDelay) -> Answer:
    job, every = asked.job, length(timedelta(microseconds=schedule.every_us))
    if asked.at == job.cursor_at and job.held != Held.RUN and asked.near.sayings[-1] is asked.saying:
        return _held(asked) or _ahead_or_late(asked, f"It comes {every} after the end of the last run.")
    following = ""
    if job.held == Held.RUN:
        following = f" The next comes {every} after the end of the run that is open now."
    elif job.cursor_at is not None:
        following = f" The next is {instant(job.cursor_at)}."
    words = (
        f"The schedule is a fixed_delay of {every}: its occurrences are those recorded, and this is none.{following}"
    )
    return Answer(Outcome.NO_OCCURRENCE, words)


def _no_timer(asked: Asked) -> Answer:
    if asked.job.finished_at is not None:
        words = f"At {instant(asked.job.finished_at)} nothing was left for the job to fire. Submit it again to go on."
        return Answer(Outcome.UNKNOWN, words)
    return Answer(Outcome.WAITING, f"The job has lost its timer; a scheduler gives it back within minutes. {_LOOK}")
