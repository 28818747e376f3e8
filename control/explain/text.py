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
_WHY_LATE = ", caught up after downtime, a pause or a late submit"
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
        late = f" {length(run.late)} late"
    return f"It fired{late}{_WHY_LATE if run.caught_up else ''}. {_state_text(facts, run)}"


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
    remedy = "Its dead letter lists every attempt. Correct the cause, then redrive it or trigger the job."
    return {
        RunState.RUNNING: f"Its run is in progress: {attempt}{_since(run)}.",
        RunState.RETRYING: f"Its run is in progress: {attempt} failed, and the next may start at {_publish(run)}.",
        RunState.WAITING: f"Its run is in progress: {attempt} waits for its external completion.",
        RunState.CANCELLING: f"Its run is being cancelled: {attempt} was requested to stop.",
        RunState.BLOCKED: "Its run waits for runs of other jobs.",
        RunState.SUCCEEDED: f"Its run succeeded in {attempt}{ended}.",
        RunState.FAILED: f"Its run failed in {attempt}{ended}{error}. {remedy}",
        RunState.TIMED_OUT: f"Its run timed out in {attempt}{ended}{why}. {remedy}",
        RunState.CANCELLED: f"Its run was cancelled{ended}{why}.",
        RunState.SKIPPED: f"Its run was skipped{ended}{why}.",
    }[state]


def _queued(facts: InstantFacts, run: RunFacts) -> str:
    if run.publish_at is not None and run.publish_at > facts.job.now:
        return f"Its run exists and may start at {_publish(run)}."
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
    policy = f" The job's overlap is {version_span.row.overlap}." if version_span else ""
    return (
        f"Its run was skipped: at {instant(then)}, when it was about to start, {other} was active.{policy} "
        "With buffer_all every run waits its turn, with allow_all runs overlap."
    )


def skipped(facts: InstantFacts, span: SkipSpan, version_span: VersionSpan | None) -> str:
    """Return the reason of a skip in the ledger."""
    among = _among(span)
    match SkipReason(span.reason):
        case SkipReason.MISFIRE:
            words = (
                f"It was missed{among}: it had not fired {length(facts.misfire_after)} after its time. At "
                f"{instant(span.created_at)}, {_caught_up(span, version_span)} Backfill the range to run it."
            )
        case SkipReason.CATCH_UP_LIMIT:
            words = (
                f"It was missed{among}. catch_up fire_all fires the newest {MAX_CAUGHT_UP:,}, and it was older. "
                "Backfill the range to run the others."
            )
        case SkipReason.PAUSED:
            words = _skipped_in_pause(facts, span, version_span)
        case SkipReason.EXCLUDED:
            words = excluded(version_span, facts)
        case SkipReason.MANUAL:
            words = skipped_manually(facts)
        case SkipReason.BOUND:
            words = f"It is outside the job's bounds{among}."
        case SkipReason.OVERLAP:
            words = f"Another run of the job was active{among}."
    return words


def _skipped_in_pause(facts: InstantFacts, span: SkipSpan, version_span: VersionSpan | None) -> str:
    override, within = facts.own_override, f"It was in a pause{_among(span)}"
    if override is not None and override.moved_to is not None:
        within = f"It was moved to {instant(override.moved_to)}, {override_source(override)}, which was in a pause"
    policy = f" (on_resume is {version_span.policies.on_resume})" if version_span else ""
    # A backfill cannot create runs of the future.
    remedy = "Backfill the range to run it." if facts.at <= facts.job.now else "Trigger the job to run it."
    return (
        f"{within}. It was skipped at {instant(span.created_at)}, when the pause ended or the job changed{policy}. "
        f"{remedy}"
    )


def _among(span: SkipSpan) -> str:
    """Return the span's occurrences as a part of a sentence; empty for a single one."""
    if span.occurrences == 1:
        return ""
    least = "" if span.exact else "at least "
    return f", one of {least}{span.occurrences} occurrences from {instant(span.first_at)} to {instant(span.last_at)}"


def _caught_up(span: SkipSpan, version_span: VersionSpan | None) -> str:
    if version_span is None:
        return "catch_up skipped it."
    match version_span.policies.catch_up:
        case CatchUp.SKIP:
            return "catch_up skip skipped it."
        case CatchUp.FIRE_ONCE:
            latest = version_span.effective.after(span.last_at)
            which = f", {instant(latest)}," if latest is not None and latest <= span.created_at else ""
            return f"catch_up fire_once fired only the latest missed occurrence{which} and skipped this one."
        case CatchUp.FIRE_ALL:
            window = length(version_span.policies.window)
            return f"catch_up fire_all skipped it: it was older than the window, {window}."


def excluded(version_span: VersionSpan | None, facts: InstantFacts) -> str:
    """Return the calendars that exclude an instant, in a sentence."""
    closing = version_span.closed_by(to_zone(facts.at, version_span.zone).date()) if version_span else []
    why = "; ".join(closing) or "a calendar excluded it then and has changed since"
    shifted = ""
    if version_span is not None and version_span.policies.shift:
        shifted = " on_excluded is next_business_day: it fires at the same local time on the next open day."
    return f"It is excluded: {why}.{shifted}"


def skipped_manually(facts: InstantFacts) -> str:
    """Return why an occurrence was skipped manually."""
    override = facts.own_override
    if override is not None and override.moved_to is not None:
        to = instant(override.moved_to)
        return f"It was moved to {to}, and the job changed before then, so it does not fire."
    source = f" {override_source(override)}" if override else ""
    remedy = "Use unskip to restore it." if facts.at > facts.job.now else "Trigger the job to run it."
    return f"It was skipped{source}. {remedy}"


def override_source(override: OverrideFacts) -> str:
    """Return the author, time and reason of a skip or a move."""
    reason = f": {override.reason}" if override.reason else ""
    return f"by {override.created_by or 'a client'} at {instant(override.created_at)}{reason}"


def paused_by(who: str) -> str:
    """Return the author of a pause; an automatic pause by the name of its field."""
    return "pause_on_failure" if who == "failures" else who


def policy_effect(field: str, policy: CatchUp, window: timedelta) -> str:
    """Return the effect of `catch_up` or `on_resume` on occurrences that did not fire.

    >>> policy_effect("catch_up", CatchUp.FIRE_ALL, timedelta(hours=6))
    'catch_up is fire_all: the occurrences of the last 6h fire, at most the newest 1,000.'
    """
    effect = {
        CatchUp.SKIP: "occurrences that did not fire are skipped",
        CatchUp.FIRE_ONCE: "only the latest occurrence fires",
        CatchUp.FIRE_ALL: f"the occurrences of the last {length(window)} fire, at most the newest {MAX_CAUGHT_UP:,}",
    }[policy]
    return f"{field} is {policy}: {effect}."
