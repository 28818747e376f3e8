"""Sentences of an explanation: the outcome, the reason, and the remedy if there is one."""

from datetime import UTC, datetime, timedelta

from tidewheel.control.explain.explanation import RunFacts, SkipSpan
from tidewheel.control.explain.facts import InstantFacts, OverrideFacts
from tidewheel.control.explain.version_timeline import VersionSpan
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
    """Return an instant in the form of the sentences.

    >>> instant(datetime(2026, 3, 29, 1, tzinfo=UTC))
    '2026-03-29T01:00:00Z'
    """
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def length(span: timedelta) -> str:
    """Return a duration in the form of the sentences: to the millisecond below a minute, else the second."""
    step = timedelta(seconds=1) if span >= timedelta(minutes=1) else _MILLISECOND
    return format_duration(span // step * step)


def fired(facts: InstantFacts, run: RunFacts) -> str:
    """Return the outcome of a fired occurrence."""
    late = ""
    if run.late is not None and run.late > timedelta(seconds=1):
        late = f", {length(run.late)} late"
    words = f"It did not fire in time {_WHY_LATE} and was caught up{late}" if run.caught_up else f"It fired{late}"
    return f"{words}. {_state_text(facts, run)}"


def _state_text(facts: InstantFacts, run: RunFacts) -> str:
    state = RunState(run.state)
    if state is RunState.QUEUED:
        return _queued(facts, run)
    if state is RunState.BUFFERED:
        holder = facts.active_run()
        return f"Its run waits for the job's active run{f', {holder}' if holder else ''}."
    attempt, error = f"attempt {run.attempt}", f" ({run.error_type})" if run.error_type else ""
    ended = f" at {instant(run.finished_at)}" if run.finished_at else ""
    why = f" ({run.reason})" if run.reason else ""
    mend = "Its dead letter holds every attempt. Correct the cause, then redrive it or trigger the job."
    return {
        RunState.RUNNING: f"Its run is in progress: {attempt}{_since(run)}.",
        RunState.RETRYING: f"Its run is in progress: {attempt} failed, and the next may begin at {_publish(run)}.",
        RunState.WAITING: f"Its run is in progress: {attempt} waits for an outcome from outside.",
        RunState.CANCELLING: f"Its run is being cancelled: {attempt} has a stop request.",
        RunState.BLOCKED: "Its run waits for those of other jobs.",
        RunState.SUCCEEDED: f"Its run succeeded in {attempt}{ended}.",
        RunState.FAILED: f"Its run failed in {attempt}{ended}{error}. {mend}",
        RunState.TIMED_OUT: f"Its run timed out in {attempt}{ended}{why}. {mend}",
        RunState.CANCELLED: f"Its run was cancelled{ended}{why}.",
        RunState.SKIPPED: f"Its run ended skipped{ended}{why}.",
    }[state]


def _queued(facts: InstantFacts, run: RunFacts) -> str:
    if run.publish_at is not None and run.publish_at > facts.job.now:
        return f"Its run is written and may begin at {_publish(run)}."
    knows = _REQUIREMENTS.get(run.handler or "", f" and has the handler {run.handler!r}" if run.handler else "")
    waited = f" for {length(facts.job.now - run.publish_at)}" if run.publish_at else ""
    return f"Its run has waited{waited} for an executor: check that one serves queue {run.queue!r}{knows}."


def _since(run: RunFacts) -> str:
    return f" since {instant(run.started_at)}" if run.started_at else ""


def _publish(run: RunFacts) -> str:
    return instant(run.publish_at) if run.publish_at else "any time"


def skipped_by_overlap(facts: InstantFacts, run: RunFacts, version_span: VersionSpan | None) -> str:
    """Return the reason of a run that ended as skipped."""
    then = run.finished_at or run.created_at
    holder = facts.holder(then, run.run_id)
    other = f"run {holder} of the job" if holder else "another run of the job"
    policy = f" The job's overlap is {version_span.row.overlap}:" if version_span else ""
    return (
        f"It did not run: when it was about to start, at {instant(then)}, {other} was active.{policy} "
        "buffer_all lets every run wait, allow_all lets runs overlap."
    )


def skipped(facts: InstantFacts, span: SkipSpan, version_span: VersionSpan | None) -> str:
    """Return the reason of a skip in the ledger."""
    many = span.occurrences > 1
    among = f" with {_number(span)} from {instant(span.first_at)} to {instant(span.last_at)}" if many else ""
    match SkipReason(span.reason):
        case SkipReason.MISFIRE:
            words = (
                f"It was missed{among}: nothing had fired it {length(facts.misfire_after)} after its time, and at "
                f"{instant(span.created_at)} {_caught_up(span, version_span)} A backfill runs what was missed."
            )
        case SkipReason.CATCH_UP_LIMIT:
            words = (
                f"It was missed{among}. catch_up fire_all catches up the newest {MAX_CAUGHT_UP:,}, and it was older. "
                "A backfill runs the others."
            )
        case SkipReason.PAUSED:
            words = _skipped_in_pause(facts, span, version_span)
        case SkipReason.EXCLUDED:
            words = excluded(version_span, facts)
        case SkipReason.MANUAL:
            words = skipped_manually(facts)
        case SkipReason.BOUND:
            words = f"It lies outside the job's bounds{among}."
        case SkipReason.OVERLAP:
            words = f"Another run of the job was active{among}."
    return words


def _skipped_in_pause(facts: InstantFacts, span: SkipSpan, version_span: VersionSpan | None) -> str:
    fell, override = "It fell into a pause", facts.own_override
    if override is not None and override.moved_to is not None:
        fell = f"It was moved to {instant(override.moved_to)}, {override_source(override)}, and that fell into a pause"
    elif span.occurrences > 1:
        least = "" if span.exact else "At least "
        fell = (
            f"{least}{span.occurrences} occurrences from {instant(span.first_at)} to {instant(span.last_at)} "
            "fell into a pause, this one among them"
        )
    policy = f" (on_resume is {version_span.policies.on_resume})" if version_span else ""
    # A backfill cannot create runs of the future.
    undo = "A backfill runs what a pause has skipped." if facts.at <= facts.job.now else "Trigger the job to run it."
    return (
        f"{fell}. It was skipped when the pause ended{policy}, or the job was changed in it, at "
        f"{instant(span.created_at)}. {undo}"
    )


def _number(span: SkipSpan) -> str:
    return f"{'' if span.exact else 'at least '}{span.occurrences} in all"


def _caught_up(span: SkipSpan, version_span: VersionSpan | None) -> str:
    if version_span is None:
        return "catch_up skipped it."
    match version_span.policies.catch_up:
        case CatchUp.SKIP:
            return "catch_up skip skipped it."
        case CatchUp.FIRE_ONCE:
            made = version_span.effective.after(span.last_at)
            which = f", {instant(made)}" if made is not None and made <= span.created_at else ""
            return f"catch_up fire_once made one run for the latest of those missed{which}, and skipped this one."
        case CatchUp.FIRE_ALL:
            return (
                f"catch_up fire_all reaches back {length(version_span.policies.window)} (window), not as far as this."
            )


def excluded(version_span: VersionSpan | None, facts: InstantFacts) -> str:
    """Return the calendars that exclude an instant, in a sentence."""
    closing = version_span.closed_by(to_zone(facts.at, version_span.zone).date()) if version_span else []
    why = "; ".join(closing) or "a calendar did so then, and has been changed since"
    shifted = ""
    if version_span is not None and version_span.policies.shift:
        shifted = " on_excluded is next_business_day: it fires at the same local time on the next open day."
    return f"It is excluded: {why}.{shifted}"


def skipped_manually(facts: InstantFacts) -> str:
    """Return why an occurrence was skipped manually."""
    override = facts.own_override
    if override is not None and override.moved_to is not None:
        to = instant(override.moved_to)
        return f"It was moved to {to}, and the job was changed before that: nothing fires it there."
    who = f", {override_source(override)}" if override else ""
    undo = " unskip undoes that." if facts.at > facts.job.now else " Trigger the job to run it all the same."
    return f"It was skipped{who}.{undo}"


def override_source(override: OverrideFacts) -> str:
    """Return the author, time and reason of a skip or a move."""
    reason = f": {override.reason}" if override.reason else ""
    return f"by {override.created_by or 'a client'} at {instant(override.created_at)}{reason}"


def paused_by(who: str) -> str:
    """Return the author of a pause; an automatic pause by the name of its field."""
    return "pause_on_failure" if who == "failures" else who


def waiting_for(policy: CatchUp, window: timedelta) -> str:
    """Return the effect of a catch-up policy on missed occurrences."""
    match policy:
        case CatchUp.SKIP:
            return "It is skip: what was not fired is skipped."
        case CatchUp.FIRE_ONCE:
            return "It is fire_once: one run is made, for the latest."
        case CatchUp.FIRE_ALL:
            return f"It is fire_all: a run is made for each of the last {length(window)}, the newest {MAX_CAUGHT_UP:,}."
