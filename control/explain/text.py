"""Sentences about instants of a job: the outcome, the reason, and the remedy if there is one.

`explain`, `predict` and `upcoming` decide which of them hold, and have the short ones that are needed once. `preview`
has those about a job's policies.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from tidewheel.control.explain.explanation import RunFacts, SkipSpan
from tidewheel.control.explain.facts import InstantFacts, OverrideFacts, VersionSpan
from tidewheel.control.reads.waits import read_waits
from tidewheel.control.words import duration
from tidewheel.nouns.freezes.model import Freeze
from tidewheel.runs import DEAD_LETTERED, FINAL, SKIP_WORDS, Overlap, RunState, SkipReason
from tidewheel.schedules.decide import MAX_CAUGHT_UP
from tidewheel.schedules.decision import CatchUp
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.schedule import FixedDelay, Once
from tidewheel.transitions.finished import timeout_of
from tidewheel.transitions.overlap import REPLACING

FOLLOWS = "The job follows its parents in a workflow. The list of workflows shows its occurrences."
MANUAL = "The job's schedule is manual: triggers create its runs. It never fires by itself."
NO_FURTHER_OCCURRENCE = "The schedule has no further occurrence."
NOT_RECORDED = (
    "This was an occurrence, but no run or skip is recorded. Unless rows were deleted manually, this is a bug in "
    "Tidewheel: please report it with this explanation."
)

CHECK_SCHEDULER = "Check that a `tidewheel service scheduler` process runs."
TIMER_MISSING = f"The job's timer row is missing. A scheduler repairs it within minutes. {CHECK_SCHEDULER}"
AWAITS_POLL = f"A scheduler creates its run at its next poll, within a second or two. {CHECK_SCHEDULER}"


def instant(at: datetime) -> str:
    """Return an instant in the form of the sentences.

    >>> instant(datetime(2026, 3, 29, 1, tzinfo=UTC))
    '2026-03-29T01:00:00Z'
    """
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def fired(facts: InstantFacts, run: RunFacts) -> str:
    """Return the outcome of a fired occurrence."""
    late = f" {duration(run.late)} late" if run.late is not None and run.late > timedelta(seconds=1) else ""
    why_late = ", caught up after downtime, a pause or a late submit" if run.caught_up else ""
    return f"It fired{late}{why_late}. {state_text_of(facts, run)}"


def state_text_of(facts: InstantFacts, run: RunFacts) -> str:
    """Return the state of a run in a sentence, of an open one with the reason for which it waits."""
    state = RunState(run.state)
    if state not in FINAL:
        wait = read_waits(facts.connection, [run.run_id]).get(run.run_id)
        words = "" if wait is None else f": {'; '.join(wait.words.splitlines())}"
        return f"Its run is {state}{words}."
    attempt = f"attempt {run.attempt}"
    if run.started_at is not None:
        last = f"in {attempt}"
    else:
        last = f"after {attempt}" if run.attempt else "before its first attempt"
    at = f" at {instant(run.finished_at)}" if run.finished_at else ""
    if state is RunState.SKIPPED:
        return f"Its run was skipped{at}: {SKIP_WORDS.get(run.reason or '', run.reason)}."
    error = timeout_of(run.error_type) if run.error_type and state is RunState.TIMED_OUT else run.error_type
    causes = ", ".join(dict.fromkeys(each for each in (error, run.reason) if each))
    why = f" ({causes})" if causes else ""
    ended = {RunState.TIMED_OUT: "timed out", RunState.CANCELLED: "was cancelled"}.get(state, state)
    words = f"Its run {ended} {last}{at}{why}."
    if state not in DEAD_LETTERED:
        return words
    return f"{words} Its dead letter lists every attempt. Correct the cause, then redrive it or trigger the job."


def skipped_by_overlap(run: RunFacts, version_span: VersionSpan | None) -> str:
    """Return the reason of a run that was skipped.

    Its row is the same whether it was about to start, or waited and a newer run replaced it.
    """
    policy = ""
    if version_span is not None:
        policy = f" The job's overlap is {version_span.row.overlap}."
        if version_span.row.overlap in REPLACING:
            policy += " Only the newest of the runs that would replace the active one is kept."
    then = instant(run.finished_at or run.created_at)
    return (
        f"Its run was skipped at {then}, before it started: another run of the job was active.{policy} "
        f"With {Overlap.BUFFER_ALL} every run waits its turn, with {Overlap.ALLOW_ALL} runs overlap."
    )


def skipped(facts: InstantFacts, span: SkipSpan, version_span: VersionSpan | None) -> str:
    """Return the reason of a skip in the ledger."""
    policy = quarantine = when = ""
    match SkipReason(span.reason):
        case SkipReason.EXCLUDED:
            return excluded(version_span, facts)
        case SkipReason.MANUAL:
            return skipped_manually(facts)
        case SkipReason.MISFIRE | SkipReason.CATCH_UP_LIMIT:
            due = f"It was missed: it had not fired within {duration(facts.misfire_after, exact=True)} of its time"
            policy, quarantine = _policy(version_span, "catch_up"), _in_quarantine(facts, span)
        case SkipReason.PAUSED | SkipReason.FROZEN as reason:
            override, hold = facts.own_override, "pause" if reason is SkipReason.PAUSED else "freeze"
            origin = "" if override is None or override.moved_to is None else f"{moved(override)} "
            edited = version_span is not None and version_span.until == span.created_at
            ended = "the job changed" if edited else f"the {hold} ended"
            due, policy = f"{origin}It came due during a {hold}", _policy(version_span, "on_resume")
            when = f", when {ended}"
        case other:
            due = f"{SKIP_WORDS[other][0].upper()}{SKIP_WORDS[other][1:]}"
    among = "" if span.occurrences == 1 else f", one of {_occurrences(span)}"
    skip = f"It was skipped at {instant(span.created_at)}{when}{among}."
    return f"{due}. {skip}{policy} {_backfill(facts, span)}{quarantine}"


def _in_quarantine(facts: InstantFacts, span: SkipSpan) -> str:
    """Return the error that kept the job from firing, if it was quarantined in that time."""
    error = facts.error()
    if error is None or not span.first_at - facts.misfire_after <= error[1] <= span.created_at:
        return ""
    return f" The job was quarantined at {instant(error[1])}: {error[0]}."


def _policy(version_span: VersionSpan | None, field: Literal["catch_up", "on_resume"]) -> str:
    if version_span is None:
        return ""
    policies = version_span.policies
    policy = policies.catch_up if field == "catch_up" else policies.on_resume
    return f" {policy_effect(field, policy, policies.window)}."


def _backfill(facts: InstantFacts, span: SkipSpan) -> str:
    if facts.at > facts.job.now:
        return "Trigger the job to run it."  # a backfill cannot create runs of the future
    if facts.job.deleted_at is not None:
        return "The job was deleted later: no backfill runs it."
    if span.backfill_id is None:
        return "A backfill of that time runs it."
    return f"Backfill {span.backfill_id} is under way and includes it."


def _occurrences(span: SkipSpan) -> str:
    least = "" if span.exact else "at least "
    return f"{least}{span.occurrences} occurrences from {instant(span.first_at)} to {instant(span.last_at)}"


def excluded(version_span: VersionSpan | None, facts: InstantFacts) -> str:
    """Return the calendars that exclude an instant, in a sentence."""
    closing = version_span.closed_by(to_zone(facts.at, version_span.zone).date()) if version_span else []
    why = "; ".join(closing) or "a calendar that has changed since excluded it"
    shifted = ""
    if version_span is not None and version_span.policies.shift:
        shifted = " on_excluded is next_business_day: the job fires at the same local time on the next open day."
    return f"It is excluded: {why}.{shifted}"


def skipped_manually(facts: InstantFacts) -> str:
    """Return why an occurrence was skipped manually."""
    override = facts.own_override
    if override is not None and override.moved_to is not None:
        to = instant(override.moved_to)
        return f"It was moved to {to}, and the job changed before then, so it does not fire."
    source = f" {override_source(override)}" if override else ""
    if facts.at > facts.job.now:
        return f"It will not fire, because it was skipped{source}. Undo the skip to let it fire."
    return f"It was skipped{source}. Trigger the job to run it."


def override_source(override: OverrideFacts) -> str:
    """Return the author, time and reason of a skip or a move."""
    reason = f": {override.reason}" if override.reason else ""
    return f"by {override.created_by or 'a client'} at {instant(override.created_at)}{reason}"


def moved(override: OverrideFacts) -> str:
    """Return the new time of a moved occurrence, with author, time and reason of the move."""
    return f"It was moved to {instant(override.moved_to or override.scheduled_at)}, {override_source(override)}."


def late(by: timedelta, then: str) -> str:
    """Return the state of an occurrence that is late, with what comes next."""
    return f"It is {duration(by)} late and has not fired yet. {then}"


def postponed(again_at: datetime) -> str:
    """Return when an occurrence is tried again whose firing failed, and the remedy."""
    return (
        f"Firing failed and is postponed: a scheduler tries again at {instant(again_at)}. The error is in the "
        "schedulers' logs, and in `/readyz` of the scheduler that met it. After a correction, the occurrence fires by "
        "itself."
    )


def no_chained_occurrence(schedule: FixedDelay, cursor: datetime | None, *, run_open: bool) -> str:
    """Return why a fixed_delay has no occurrence at an instant, and its next one."""
    delay = delay_of(schedule)
    following = f" The next is {instant(cursor)}." if cursor is not None else ""
    if run_open:
        following = f" The next one is {delay} after the end of the open run."
    return f"The schedule is a fixed_delay of {delay}. No occurrence is recorded at this instant.{following}"


def delay_of(schedule: FixedDelay) -> str:
    """Return the delay of a schedule in words."""
    return duration(timedelta(microseconds=schedule.interval_us), exact=True)


def next_delay(schedule: FixedDelay) -> str:
    """Return how long after the end of its last run a fixed_delay fires."""
    least, most = schedule.delays
    words = f"It is {delay_of(schedule)} after the end of the last run"
    if least == most:
        return f"{words}."
    spans = f"{duration(least, exact=True)} to {duration(most, exact=True)}"
    return f"{words}, or a time from {spans} that the run or a reschedule has set."


def quarantined(error: tuple[str, datetime] | None) -> str:
    """Return why a job is quarantined."""
    why = f": {error[0]} (at {instant(error[1])})" if error else ""
    return f"The job could not be fired and is quarantined{why}. Correct it and submit it again, or release it."


def paused_by(who: str) -> str:
    """Return the author of a pause; an automatic pause by the name of its field."""
    return "pause_on_failure" if who == "failures" else who


def paused(
    until: datetime | None, since: datetime | None = None, by: str | None = None, reason: str | None = None
) -> str:
    """Return the state of a paused job.

    >>> paused(None)
    'The job is paused until it is resumed.'
    >>> paused(datetime(2026, 3, 30, tzinfo=UTC), datetime(2026, 3, 29, tzinfo=UTC), "failures", "3 runs")
    'The job was paused at 2026-03-29T00:00:00Z by pause_on_failure: 3 runs. The pause ends at 2026-03-30T00:00:00Z.'
    """
    if since is None:
        return f"The job is paused until {instant(until) if until else 'it is resumed'}."
    who = f" by {paused_by(by)}" if by else ""
    why = f": {reason.rstrip('.')}" if reason else ""
    end = f"The pause ends at {instant(until)}." if until else "It stays paused until it is resumed."
    return f"The job was paused at {instant(since)}{who}{why}. {end}"


def frozen(freezes: Sequence[Freeze]) -> str:
    """Return the freezes that stop a job."""
    return f"The job has been {'; '.join(freeze.words for freeze in freezes)}."


def on_resume(facts: InstantFacts, due: datetime, hold: str) -> str:
    """Return the effect of the end of a hold on an occurrence, which is due then after a move."""
    version_span = facts.version_span
    if version_span is None:
        return ""
    policies = version_span.policies
    fires = due != facts.at and policies.on_resume is not CatchUp.SKIP  # a moved one, whichever others come due
    if fires or isinstance(version_span.schedule, Once | FixedDelay):
        return f"It fires when the {hold} ends."
    return f"When the {hold} ends, {policy_effect('on_resume', policies.on_resume, policies.window)}."


def outside_bounds(facts: InstantFacts, version_span: VersionSpan) -> str:
    """Return the bound that excludes an instant."""
    bounds = getattr(version_span.schedule, "bounds")  # noqa: B009 - of a cron or an interval, which have some
    if bounds.start_at is not None and facts.at < bounds.start_at:
        return f"It is before start_at, {instant(bounds.start_at)}."
    end, max_runs = instant(bounds.end_at), version_span.row.max_runs
    if max_runs is not None:
        return f"max_runs is {max_runs}, and the last occurrence was {end}."
    return f"It is after end_at, {end}."


def policy_effect(field: str, policy: CatchUp, window: timedelta) -> str:
    """Return the effect of `catch_up` or `on_resume` on occurrences that did not fire, as a clause.

    >>> policy_effect("catch_up", CatchUp.FIRE_ALL, timedelta(hours=6))
    'catch_up is fire_all: the occurrences of the last 6 h fire, at most the newest 1,000'
    """
    longest = duration(window, exact=True)
    effect = {
        CatchUp.SKIP: "occurrences that did not fire are skipped",
        CatchUp.FIRE_ONCE: "only the latest occurrence fires",
        CatchUp.FIRE_ALL: f"the occurrences of the last {longest} fire, at most the newest {MAX_CAUGHT_UP:,}",
    }[policy]
    return f"{field} is {policy}: {effect}"
