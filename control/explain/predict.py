"""Predict the outcome of an instant without a record, from the timer's position on.

The scheduler's own code decides for the current time. Nothing is written.
"""

from datetime import datetime

from tidewheel.control.explain.explanation import MOVED, OccurrenceOutcome, Verdict
from tidewheel.control.explain.facts import InstantFacts, OverrideFacts
from tidewheel.control.explain.text import (
    NEXT_POLL_FIRES,
    SEVERAL_POLLS,
    TIMER_MISSING,
    UNDO_MOVE,
    after_last_run,
    excluded,
    in_freeze,
    in_pause,
    jitter_until,
    late,
    late_moved,
    late_postponed,
    moved,
    next_poll_skips,
    no_chained_occurrence,
    postponed,
    quarantined,
    skipped_manually,
    undo_skip,
    will_fire,
    will_fire_moved,
)
from tidewheel.control.explain.version_timeline import VersionSpan
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import HoldReason, SkipReason
from tidewheel.schedules.policies import jittered
from tidewheel.schedules.schedule import FixedDelay


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
            undo=undo_skip(facts),
        )
    if facts.job.cursor_at is None:
        return Verdict(OccurrenceOutcome.WAITING, TIMER_MISSING)
    return _held(facts, facts.at) or _ahead_or_late(facts, _jitter(facts, version_span))


def moved_to_future(facts: InstantFacts, override: OverrideFacts, version_span: VersionSpan) -> Verdict:
    """Predict a moved occurrence that has not fired yet."""
    to, now, zone = override.moved_to or facts.at, facts.job.now, version_span.zone
    held = _held(facts, to)
    if held is not None:
        words = moved(override, zone, into_pause=held.outcome is OccurrenceOutcome.PAUSED)
        return Verdict(held.outcome, f"{words} {held.words}", MOVED, moved_to=to)
    if to > now:
        words = will_fire_moved(override, zone)
        return Verdict(OccurrenceOutcome.WILL_BE_MOVED, words, MOVED, moved_to=to, undo=UNDO_MOVE)
    words = late_moved(override, zone, now - to, _postponed_until(facts, to))
    return Verdict(OccurrenceOutcome.WAITING, words, MOVED, moved_to=to)


def chained(facts: InstantFacts, schedule: FixedDelay) -> Verdict:
    """Predict an instant of a fixed_delay without a run."""
    cursor, run_open = facts.job.cursor_at, facts.job.hold_reason == HoldReason.RUN
    if facts.at == cursor and not run_open and facts.timeline.version_spans[-1] is facts.version_span:
        return _held(facts, facts.at) or _ahead_or_late(facts, after_last_run(schedule))
    return Verdict(OccurrenceOutcome.NO_OCCURRENCE, no_chained_occurrence(schedule, cursor, run_open=run_open))


def _held(facts: InstantFacts, due: datetime) -> Verdict | None:
    """Return the verdict of a held timer, else None; `due` is the firing time, after a move."""
    job = facts.job
    if job.hold_reason == HoldReason.QUARANTINED:
        return Verdict(OccurrenceOutcome.WAITING, quarantined(facts.error()))
    if job.hold_reason == HoldReason.PAUSE and (job.paused_until is None or due <= job.paused_until):
        again_at = _postponed_until(facts, job.paused_until) if job.paused_until is not None else None
        words = in_pause(facts, due) if again_at is None else f"{in_pause(facts, due)} {postponed(again_at)}"
        return Verdict(OccurrenceOutcome.PAUSED, words, SkipReason.PAUSED)
    freezes = facts.freezes()
    if freezes and (job.hold_reason == HoldReason.FREEZE or due > job.now):
        return Verdict(OccurrenceOutcome.PAUSED, in_freeze(facts, freezes, due), SkipReason.FROZEN)
    return None


def _ahead_or_late(facts: InstantFacts, why: str) -> Verdict:
    if facts.at > facts.job.now:
        return Verdict(OccurrenceOutcome.SCHEDULED, will_fire(why))
    again_at = _postponed_until(facts, facts.at)
    if again_at is not None:
        return Verdict(OccurrenceOutcome.WAITING, late_postponed(facts, again_at))
    return Verdict(OccurrenceOutcome.WAITING, late(facts, _next_poll(facts)))


def _postponed_until(facts: InstantFacts, due: datetime) -> datetime | None:
    """Return the time of the next try of an occurrence that was due and could not be fired, else None.

    Only firing sets a timer later than an occurrence that it has not recorded, or than the end of a pause.
    """
    job = facts.job
    held = job.hold_reason not in {None, HoldReason.PAUSE}
    return job.due_at if not held and job.due_at is not None and job.due_at > due else None


def _next_poll(facts: InstantFacts) -> str:
    """Return the next poll's effect on a late occurrence, by the scheduler's own code."""
    version_span = facts.version_span
    assert version_span is not None  # noqa: S101 - every caller has checked it
    now, state = facts.job.now, version_span.timer_state(facts.overrides)
    decision = decide(state, now=now, horizon=now, misfire_after=facts.misfire_after)
    if any(fire.at == facts.at for fire in decision.fires):
        return NEXT_POLL_FIRES
    if any(skip.first_at <= facts.at <= skip.last_at for skip in decision.skips):
        return next_poll_skips(version_span)
    return SEVERAL_POLLS


def _jitter(facts: InstantFacts, version_span: VersionSpan) -> str:
    policies = version_span.policies
    if not policies.jitters:
        return ""
    publish_at = jittered(
        facts.at,
        version_span.effective.after(facts.at),
        facts.job.job_id,
        longest=policies.jitter,
        percent=policies.jitter_percent,
    )
    return jitter_until(publish_at)
