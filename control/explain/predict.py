"""Predict the outcome of an instant without a record, from the timer's position on.

The scheduler's own code decides for the current time. Nothing is written.
"""

from datetime import datetime, timedelta

from tidewheel.control.explain.explanation import MOVED, OccurrenceOutcome, Verdict
from tidewheel.control.explain.facts import InstantFacts, OverrideFacts
from tidewheel.control.explain.text import (
    excluded,
    instant,
    length,
    override_source,
    paused_by,
    policy_effect,
    skipped_manually,
)
from tidewheel.control.explain.version_timeline import VersionSpan
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import HoldReason, SkipReason
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.policies import CatchUp, jittered
from tidewheel.schedules.simple import FixedDelay, Once

_CHECK_SCHEDULER = "Check that a `tidewheel scheduler` process runs."


def not_recorded(facts: InstantFacts, version_span: VersionSpan) -> Verdict:
    """Predict an occurrence of the current version without a record; not a moved one."""
    past = facts.at <= facts.job.now
    if not version_span.fires(facts.at):
        outcome = OccurrenceOutcome.SKIPPED if past else OccurrenceOutcome.WILL_BE_EXCLUDED
        return Verdict(outcome, excluded(version_span, facts), SkipReason.EXCLUDED)
    if facts.own_override is not None:
        return Verdict(
            OccurrenceOutcome.SKIPPED if past else OccurrenceOutcome.WILL_BE_SKIPPED,
            skipped_manually(facts),
            SkipReason.MANUAL,
        )
    if facts.job.cursor_at is None:
        words = f"The job's timer row is missing. A scheduler repairs it within minutes. {_CHECK_SCHEDULER}"
        return Verdict(OccurrenceOutcome.WAITING, words)
    return _held(facts, facts.at) or _ahead_or_late(facts, _leaves(facts, version_span))


def moved_to_future(facts: InstantFacts, override: OverrideFacts, version_span: VersionSpan) -> Verdict:
    """Predict a moved occurrence that has not fired yet."""
    to, now = override.moved_to or facts.at, facts.job.now
    local = f" ({to_zone(to, version_span.zone).isoformat()})" if version_span.zone != "UTC" else ""
    held = _held(facts, to)
    if held is not None:
        into = ", into a pause" if held.outcome is OccurrenceOutcome.PAUSED else ""
        words = f"It was moved to {instant(to)}{local}{into}, {override_source(override)}. {held.words}"
        return Verdict(held.outcome, words, MOVED, moved_to=to)
    words = f"Will fire at {instant(to)}{local}: it was moved {override_source(override)}."
    if to > now:
        return Verdict(OccurrenceOutcome.WILL_BE_MOVED, f"{words} Use unskip to undo the move.", MOVED, moved_to=to)
    words = f"{words} That was {length(now - to)} ago, and it has not fired yet. {_CHECK_SCHEDULER}"
    return Verdict(OccurrenceOutcome.WAITING, words, MOVED, moved_to=to)


def chained(facts: InstantFacts, schedule: FixedDelay) -> Verdict:
    """Predict an instant of a fixed_delay without a run."""
    job, every = facts.job, length(timedelta(microseconds=schedule.interval_us))
    if (
        facts.at == job.cursor_at
        and job.hold_reason != HoldReason.RUN
        and facts.timeline.version_spans[-1] is facts.version_span
    ):
        return _held(facts, facts.at) or _ahead_or_late(facts, f"It is {every} after the end of the last run.")
    following = ""
    if job.hold_reason == HoldReason.RUN:
        following = f" The next is due {every} after the open run ends."
    elif job.cursor_at is not None:
        following = f" The next is {instant(job.cursor_at)}."
    words = f"The schedule is a fixed_delay of {every}. No occurrence is recorded at this instant."
    return Verdict(OccurrenceOutcome.NO_OCCURRENCE, f"{words}{following}")


def _held(facts: InstantFacts, due: datetime) -> Verdict | None:
    """Return the verdict of a held timer, else None; `due` is the firing time, after a move."""
    job = facts.job
    if job.hold_reason == HoldReason.QUARANTINED:
        error = facts.error()
        why = f": {error[0]} (at {instant(error[1])})" if error else ""
        words = f"The job could not be fired and is quarantined{why}. Correct it and submit it again."
        return Verdict(OccurrenceOutcome.WAITING, words)
    if job.hold_reason == HoldReason.PAUSE and (job.paused_until is None or due <= job.paused_until):
        return Verdict(OccurrenceOutcome.PAUSED, _paused(facts, due), SkipReason.PAUSED)
    return None


def _paused(facts: InstantFacts, due: datetime) -> str:
    job, version_span = facts.job, facts.version_span
    who = f" by {paused_by(job.paused_by)}" if job.paused_by else ""
    why = f" ({job.pause_reason})" if job.pause_reason else ""
    since = f" since {instant(job.paused_at)}" if job.paused_at else ""
    until = f"until {instant(job.paused_until)}" if job.paused_until else "until it is resumed"
    return f"The job is paused{since}{who}{why}, {until}.{_on_resume(facts, version_span, due) if version_span else ''}"


def _on_resume(facts: InstantFacts, version_span: VersionSpan, due: datetime) -> str:
    if isinstance(version_span.schedule, Once | FixedDelay):
        return " It fires when the pause ends."
    on_resume = version_span.policies.on_resume
    effect = policy_effect("on_resume", on_resume, version_span.policies.window)
    if due != facts.at:
        effect = (
            f"on_resume is {on_resume}: moved occurrences {'are skipped' if on_resume is CatchUp.SKIP else 'fire'}."
        )
    if due > facts.job.now:
        return f" If it is still paused then, on_resume applies when the pause ends. {effect}"
    return f" on_resume applies when the pause ends. {effect}"


def _ahead_or_late(facts: InstantFacts, leaves: str) -> Verdict:
    job = facts.job
    if facts.at > job.now:
        return Verdict(OccurrenceOutcome.SCHEDULED, f"Will fire. {leaves}".strip())
    words = [f"It is {length(job.now - facts.at)} late and has not fired yet.", _to_be(facts)]
    if job.cursor_at is not None and job.cursor_at != facts.at:
        words.append(f"The timer is at {instant(job.cursor_at)}.")
    return Verdict(OccurrenceOutcome.WAITING, " ".join([*words, _CHECK_SCHEDULER]))


def _to_be(facts: InstantFacts) -> str:
    """Return the result of the next poll for a late occurrence, by the scheduler's own code."""
    version_span = facts.version_span
    assert version_span is not None  # noqa: S101 - every caller has checked it
    now, state = facts.job.now, version_span.timer_state(facts.overrides)
    decision = decide(state, now=now, horizon=now, misfire_after=facts.misfire_after)
    if any(fire.at == facts.at for fire in decision.fires):
        return "The next poll creates its run."
    if any(skip.first_at <= facts.at <= skip.last_at for skip in decision.skips):
        effect = policy_effect("catch_up", version_span.policies.catch_up, version_span.policies.window)
        return f"It is missed, and the next poll skips it. {effect}"
    return "The backlog takes several polls."


def _leaves(facts: InstantFacts, version_span: VersionSpan) -> str:
    policies = version_span.policies
    if not policies.jitters:
        return ""
    leaves = jittered(
        facts.at,
        version_span.effective.after(facts.at),
        facts.job.job_id,
        longest=policies.jitter,
        percent=policies.jitter_percent,
    )
    return f"With jitter its run may start at {instant(leaves)}."
