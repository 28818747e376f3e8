"""The sentences of an explanation. Each says what is so, why, and what there is to do where there is something."""

from datetime import UTC, datetime, timedelta

from tidewheel.control.explain.explanation import RunFacts, SkipSpan
from tidewheel.control.explain.facts import Asked, Said
from tidewheel.control.explain.version_timeline import Saying
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.values import format_duration
from tidewheel.runs import RunState
from tidewheel.schedules.decide import MAX_CAUGHT_UP
from tidewheel.schedules.decision import SkipReason
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.policies import CatchUp

_MILLISECOND = timedelta(milliseconds=1)
_WHY_LATE = "(downtime, a pause, or a time that had passed when it was submitted)"
_REQUIREMENTS = {target.requires: f" and {target.requires_text}" for target in TARGETS.values() if target.requires}


def instant(at: datetime) -> str:
    """An instant as sentences write it.

    >>> instant(datetime(2026, 3, 29, 1, tzinfo=UTC))
    '2026-03-29T01:00:00Z'
    """
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def length(span: timedelta) -> str:
    """A span of time as sentences write it: to the millisecond, from a minute on to the second."""
    step = timedelta(seconds=1) if span >= timedelta(minutes=1) else _MILLISECOND
    return format_duration(span // step * step)


def fired(asked: Asked, run: RunFacts) -> str:
    """What became of an occurrence that was fired."""
    late = ""
    if run.late is not None and run.late > timedelta(seconds=1):
        late = f", {length(run.late)} late"
    words = f"It did not fire in time {_WHY_LATE} and was made up for{late}" if run.made_up else f"It fired{late}"
    return f"{words}. {_stands(asked, run)}"


def _stands(asked: Asked, run: RunFacts) -> str:
    state = RunState(run.state)
    if state is RunState.QUEUED:
        return _queued(asked, run)
    if state is RunState.BUFFERED:
        holder = asked.turn()
        return f"Its run waits for the job's turn{f', which run {holder} has' if holder else ''}."
    attempt, error = f"attempt {run.attempt}", f" ({run.error_type})" if run.error_type else ""
    ended = f" at {instant(run.finished_at)}" if run.finished_at else ""
    why = f" ({run.reason})" if run.reason else ""
    mend = "Its dead letter holds every attempt. Mend the cause, then trigger the job."
    return {
        RunState.RUNNING: f"Its run is under way: {attempt}{_since(run)}.",
        RunState.RETRYING: f"Its run is under way: {attempt} failed, and the next may begin at {_publish(run)}.",
        RunState.WAITING: f"Its run is under way: {attempt} waits for an outcome from outside.",
        RunState.CANCELLING: f"Its run is being cancelled: {attempt} has been asked to stop.",
        RunState.BLOCKED: "Its run waits for those of other jobs.",
        RunState.SUCCEEDED: f"Its run succeeded in {attempt}{ended}.",
        RunState.FAILED: f"Its run failed in {attempt}{ended}{error}. {mend}",
        RunState.TIMED_OUT: f"Its run timed out in {attempt}{ended}{why}. {mend}",
        RunState.CANCELLED: f"Its run was cancelled{ended}{why}.",
        RunState.SKIPPED: f"Its run ended skipped{ended}{why}.",
    }[state]


def _queued(asked: Asked, run: RunFacts) -> str:
    if run.publish_at is not None and run.publish_at > asked.job.now:
        return f"Its run is written and may begin at {_publish(run)}."
    knows = _REQUIREMENTS.get(run.handler or "", f" and knows the handler {run.handler!r}" if run.handler else "")
    waited = f" for {length(asked.job.now - run.publish_at)}" if run.publish_at else ""
    return f"Its run has waited{waited} for an executor: see that one runs which serves queue {run.queue!r}{knows}."


def _since(run: RunFacts) -> str:
    return f" since {instant(run.started_at)}" if run.started_at else ""


def _publish(run: RunFacts) -> str:
    return instant(run.publish_at) if run.publish_at else "any time"


def overlapped(asked: Asked, run: RunFacts, saying: Saying | None) -> str:
    """Why a run ended skipped instead of starting."""
    then = run.finished_at or run.created_at
    holder = asked.holder(then, run.run_id)
    other = f"run {holder} of the job" if holder else "another run of the job"
    policy = f" The job's overlap is {saying.row.overlap}:" if saying else ""
    return (
        f"It did not run: when it was about to start, at {instant(then)}, {other} had the turn.{policy} "
        "buffer_all lets every run wait for its turn, allow_all lets them run side by side."
    )


def passed_over(asked: Asked, span: SkipSpan, saying: Saying | None) -> str:
    """Why the ledger has an occurrence as skipped."""
    many = span.occurrences > 1
    among = f" with {_number(span)} from {instant(span.first_at)} to {instant(span.last_at)}" if many else ""
    match SkipReason(span.reason):
        case SkipReason.MISFIRE:
            words = (
                f"It was missed{among}: nothing had fired it {length(asked.misfire_after)} after its time, and at "
                f"{instant(span.created_at)} {_caught_up(span, saying)} A backfill runs what was missed."
            )
        case SkipReason.CATCH_UP_LIMIT:
            words = (
                f"It was missed{among}. catch_up fire_all makes up for the newest {MAX_CAUGHT_UP:,}, and it was older. "
                "A backfill runs the others."
            )
        case SkipReason.PAUSED:
            words = _passed_over_in_pause(asked, span, saying)
        case SkipReason.EXCLUDED:
            words = excluded(saying, asked)
        case SkipReason.MANUAL:
            words = by_hand(asked)
        case SkipReason.BOUND:
            words = f"It lies outside the job's bounds{among}."
        case SkipReason.OVERLAP:
            words = f"Another run of the job had the turn{among}."
    return words


def _passed_over_in_pause(asked: Asked, span: SkipSpan, saying: Saying | None) -> str:
    fell, said = "It fell into a pause", asked.about_it
    if said is not None and said.moved_to is not None:
        fell = f"It was moved to {instant(said.moved_to)}, {said_by(said)}, and that fell into a pause"
    elif span.occurrences > 1:
        least = "" if span.exact else "At least "
        fell = (
            f"{least}{span.occurrences} occurrences from {instant(span.first_at)} to {instant(span.last_at)} "
            "fell into a pause, this one among them"
        )
    policy = f" (on_resume is {saying.policies.on_resume})" if saying else ""
    # No backfill reaches what is still ahead.
    undo = "A backfill runs what a pause has left out." if asked.at <= asked.job.now else "Trigger the job to run it."
    return (
        f"{fell}. It was passed over when the pause ended{policy}, or the job was changed in it, at "
        f"{instant(span.created_at)}. {undo}"
    )


def _number(span: SkipSpan) -> str:
    return f"{'' if span.exact else 'at least '}{span.occurrences} in all"


def _caught_up(span: SkipSpan, saying: Saying | None) -> str:
    if saying is None:
        return "catch_up passed it over."
    match saying.policies.catch_up:
        case CatchUp.SKIP:
            return "catch_up skip passed it over."
        case CatchUp.FIRE_ONCE:
            made = saying.effective.after(span.last_at)
            which = f", {instant(made)}" if made is not None and made <= span.created_at else ""
            return f"catch_up fire_once made one run for the latest of those missed{which}, and passed this one over."
        case CatchUp.FIRE_ALL:
            return f"catch_up fire_all reaches back {length(saying.policies.window)} (window), not as far as this."


def excluded(saying: Saying | None, asked: Asked) -> str:
    """Which calendar leaves an instant out."""
    closing = saying.closed_by(to_zone(asked.at, saying.zone).date()) if saying else []
    why = "; ".join(closing) or "a calendar did so then, and has been changed since"
    shifted = ""
    if saying is not None and saying.policies.shift:
        shifted = " on_excluded is next_business_day: it is made up for at the same local time on the next open day."
    return f"It is left out: {why}.{shifted}"


def by_hand(asked: Asked) -> str:
    """Who has left an occurrence out."""
    said = asked.about_it
    if said is not None and said.moved_to is not None:
        return f"It was moved to {instant(said.moved_to)}, and the job was changed before that: nothing fires it there."
    who = f", {said_by(said)}" if said else ""
    undo = " unskip takes that back." if asked.at > asked.job.now else " Trigger the job to run it all the same."
    return f"It was skipped{who}.{undo}"


def said_by(said: Said) -> str:
    """Who has left an occurrence out or moved it, when, and why where he has said so."""
    return (
        f"by {said.created_by or 'somebody'} at {instant(said.created_at)}{f': {said.reason}' if said.reason else ''}"
    )


def paused_by(who: str) -> str:
    """What paused a job, by the name that people set it by."""
    return "pause_on_failure" if who == "failures" else who


def waiting_for(policy: CatchUp, window: timedelta) -> str:
    """What a policy will do with what was not fired."""
    match policy:
        case CatchUp.SKIP:
            return "It is skip: what was not fired is passed over."
        case CatchUp.FIRE_ONCE:
            return "It is fire_once: one run is made, for the latest."
        case CatchUp.FIRE_ALL:
            return f"It is fire_all: a run is made for each of the last {length(window)}, the newest {MAX_CAUGHT_UP:,}."
