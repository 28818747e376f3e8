"""`explain`: the past or future outcome of any instant of a job, and its reason.

Without an instant, it is that of the last and of the next occurrence, or of all that did not fire. A recorded outcome
comes from the records: a run, else a span of the ledger. From the timer's position on the scheduler's own code computes
it for now. Nothing is written. An explanation takes a handful of indexed reads, whatever the job's past.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from psycopg.rows import class_row

from tidewheel.control.explain.explanation import (
    MISFIRE_AFTER,
    MOVED,
    Explanation,
    OccurrenceOutcome,
    RunFacts,
    SkipSpan,
    Verdict,
    WorkflowFacts,
)
from tidewheel.control.explain.facts import InstantFacts, VersionSpan, read_instant_facts
from tidewheel.control.explain.predict import chained, explain_child, moved_to_future, not_recorded
from tidewheel.control.explain.text import (
    MANUAL,
    NOT_RECORDED,
    fired,
    instant,
    moved,
    outside_bounds,
    skipped,
    skipped_by_overlap,
    state_text_of,
)
from tidewheel.control.explain.upcoming import no_occurrence_notes, occurrence_notes
from tidewheel.control.reads.job_position import JobPosition, read_job_position
from tidewheel.errors import ScheduleRefused
from tidewheel.postgres.session import Conn, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState, SkipReason
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.schedule import FixedDelay, Manual
from tidewheel.schedules.zones import LAST_YEAR

_FIND_UNFIRED = Statements("tidewheel.control")["find_unfired"]
MAX_UNFIRED = 1_000
_FIRST_YEAR = 1970
_WITHOUT = {OccurrenceOutcome.NO_OCCURRENCE, OccurrenceOutcome.NOT_YET}
_HELD = (OccurrenceOutcome.PAUSED, OccurrenceOutcome.WAITING)


@dataclass(frozen=True, slots=True)
class Around:
    """The occurrences around the present; the words of `present` say why there is none."""

    key: str
    now: datetime
    last: Explanation | None
    next: Explanation | None
    present: Explanation


@dataclass(frozen=True, slots=True)
class Unfired:
    """An occurrence that did not fire, or a span of them.

    Args:
        at: Its nominal instant; of a span the first.
        last_at: The last instant of a span; the same as `at` for one occurrence.
        exact: False if there are more occurrences than that.
        reason: The ledger's word for the reason; `paused` or `waiting` if nothing is recorded yet.
        words: The reason in sentences, of the first.
    """

    at: datetime
    last_at: datetime
    occurrences: int
    exact: bool
    reason: str
    words: str


@dataclass(frozen=True, slots=True)
class UnfiredOccurrences:
    """The occurrences of a time that did not fire.

    Args:
        now: Its end: the database's clock.
        unfired: The newest first.
        any_due: True if an occurrence was due in that time; False if there was none to fire.
        words: Of the present instant: the reason why there is no occurrence.
    """

    key: str
    zone: str
    since: datetime
    now: datetime
    unfired: tuple[Unfired, ...]
    has_more: bool
    any_due: bool
    next_at: datetime | None
    words: str


def explain(
    connection: Conn,
    tenant: str,
    key: str,
    at: datetime,
    *,
    misfire_after: timedelta = MISFIRE_AFTER,
    unit: timedelta = timedelta(seconds=1),
) -> Explanation:
    """Explain the past or future outcome of an instant of a job.

    The occurrences of an interval have parts of a second. An instant in whole seconds without an occurrence of its own
    names the only one that follows within its unit.

    Args:
        misfire_after: How late an occurrence may be before it is missed: the scheduler's setting.
        unit: The unit to which `at` is given; zero for one that is exact.

    Raises:
        ScheduleRefused: `at` has no offset or lies beyond 1970 to 2199, or a stored schedule cannot be read.
    """
    at = _in_utc(at)
    found = _explain(connection, tenant, key, at, misfire_after)
    if found.outcome not in _WITHOUT or at.microsecond or found.after is None:
        return found
    if found.after >= at + unit:
        return found
    only = _explain(connection, tenant, key, found.after, misfire_after)
    return found if only.after is not None and only.after < at + unit else only


def around(connection: Conn, tenant: str, key: str, *, misfire_after: timedelta = MISFIRE_AFTER) -> Around:
    """Explain the last due occurrence of a job and the next one."""
    now = read_job_position(connection, tenant, key).now

    def explained(at: datetime | None) -> Explanation | None:
        return None if at is None else explain(connection, tenant, key, at, misfire_after=misfire_after)

    present = explain(connection, tenant, key, now, misfire_after=misfire_after, unit=timedelta(0))
    last_due, following = _occurrences(present)
    last = present if last_due == now else explained(last_due)
    return Around(key, now, last, explained(following), present)


def unfired(
    connection: Conn,
    tenant: str,
    key: str,
    span: timedelta,
    *,
    limit: int = 50,
    misfire_after: timedelta = MISFIRE_AFTER,
) -> UnfiredOccurrences:
    """Return what did not fire in the last `span`, the newest first; a row may be many occurrences."""
    job = read_job_position(connection, tenant, key)
    since = job.now - span

    def words(at: datetime) -> Explanation:
        return explain(connection, tenant, key, at, misfire_after=misfire_after, unit=timedelta(0))

    found, has_more = unfired_between(connection, job, since, job.now, limit=limit, misfire_after=misfire_after)
    present = words(job.now)
    if job.cursor_at is not None and job.cursor_at <= job.now:
        held = words(job.cursor_at)
        if held.outcome in _HELD:
            last = present.before if present.before and present.before > held.at else held.at
            found.insert(0, Unfired(held.at, last, 1, last == held.at, held.outcome, held.words))
    last_due, following = _occurrences(present)
    any_due = bool(found) or (last_due is not None and last_due >= since)
    return UnfiredOccurrences(
        key, present.zone, since, job.now, tuple(found), has_more, any_due, next_at=following, words=present.words
    )


def unfired_between(
    connection: Conn,
    job: JobPosition,
    since: datetime,
    until: datetime,
    *,
    limit: int,
    misfire_after: timedelta,
    explained: bool = True,
) -> tuple[list[Unfired], bool]:
    """Return the recorded occurrences that did not fire, the newest first; True if there are more.

    Args:
        explained: False to leave out the sentences, each of which takes some statements.
    """
    columns: dict[str, object] = {
        "job_id": job.job_id, "since": since, "now": until, "skipped": RunState.SKIPPED, "limit": limit + 1
    }  # fmt: skip
    recorded = read_rows(connection, class_row(Unfired), _FIND_UNFIRED, columns)
    found, more = recorded[:limit], len(recorded) > limit
    if not explained:
        return found, more

    def words(at: datetime) -> str:
        return explain(connection, job.tenant, job.key, at, misfire_after=misfire_after).words

    return [replace(each, words=words(each.at)) for each in found], more


def _explain(connection: Conn, tenant: str, key: str, at: datetime, misfire_after: timedelta) -> Explanation:
    facts = read_instant_facts(connection, tenant, key, at, misfire_after)
    version_span = facts.version_span
    zone = version_span.zone if version_span else "UTC"
    if version_span is not None and isinstance(version_span.schedule, Manual) and version_span.schedule.follows:
        child = explain_child(facts, lambda root: _explain(connection, tenant, root, facts.at, misfire_after))
        verdict, before, after = child.verdict, child.before, child.after
    else:
        child, verdict = None, _verdict(facts, version_span)
        before, after = _neighbours(facts, version_span)
    is_manual = child is None and version_span is not None and isinstance(version_span.schedule, Manual)
    between_runs = is_manual and before is None and after is None
    if between_runs:
        before, after = facts.chain(*Cause)
    workflow = child.workflow if child else None
    run = _run_of(facts, workflow)
    return Explanation(
        key=key,
        at=facts.at,
        local=to_zone(facts.at, zone),
        zone=zone,
        outcome=verdict.outcome,
        words=verdict.words,
        reason=verdict.reason,
        run=run,
        others=tuple(each for each in facts.runs if each is not run),
        version=version_span.force if version_span else None,
        span=verdict.span,
        moved_to=verdict.moved_to,
        before=before,
        after=after,
        notes=(*verdict.notes, *_notes(facts, version_span)),
        workflow=workflow,
        between_runs=between_runs,
    )


def _run_of(facts: InstantFacts, workflow: WorkflowFacts | None) -> RunFacts | None:
    """Return the occurrence's run: of a child its latest one in the occurrence."""
    if workflow is None or not workflow.runs:
        return facts.run
    return next((each for each in facts.runs if each.run_id == workflow.runs[0].run_id), None)


def _in_utc(at: datetime) -> datetime:
    if at.tzinfo is None:
        problem = f"{at.isoformat()} has no UTC offset"
        raise ScheduleRefused(problem, "give an aware datetime", "at")
    if not _FIRST_YEAR < at.year < LAST_YEAR:
        problem = f"the year {at.year} is outside {_FIRST_YEAR + 1} to {LAST_YEAR - 1}"
        raise ScheduleRefused(problem, "give an instant within these years", "at")
    return at.astimezone(UTC)


def _verdict(facts: InstantFacts, version_span: VersionSpan | None) -> Verdict:
    if facts.run is not None:
        return _of_run(facts, facts.run, version_span)
    deleted_at = facts.job.deleted_at
    if version_span is None or (deleted_at is not None and facts.at > deleted_at):
        return _no_job(facts)
    span = _span(facts, version_span)
    if span is None:
        return _without_record(facts, version_span)
    early = {
        SkipReason.MANUAL: OccurrenceOutcome.WILL_BE_SKIPPED,
        SkipReason.EXCLUDED: OccurrenceOutcome.WILL_BE_EXCLUDED,
    }
    ahead = early.get(SkipReason(span.reason)) if facts.at > facts.job.now else None
    return Verdict(ahead or OccurrenceOutcome.SKIPPED, skipped(facts, span, version_span), span.reason, span)


def _without_record(facts: InstantFacts, version_span: VersionSpan) -> Verdict:
    if isinstance(version_span.schedule, FixedDelay):
        return chained(facts, version_span.schedule)
    if not version_span.has_occurrence(facts.at):
        return _no_occurrence(facts, version_span)
    override = facts.own_override
    if override is not None and override.moved_to is not None and override.done_at is None:
        # It keeps this version whatever version is current then: its own instant has passed under this one.
        return moved_to_future(facts, override)
    current = version_span.until is None
    cursor, finished = facts.job.cursor_at, facts.job.finished_at is not None
    if current and (facts.at >= cursor if cursor else not (finished and version_span.fires(facts.at))):
        return not_recorded(facts, version_span)
    oldest = facts.oldest_day()
    if oldest is not None and facts.at < oldest:
        words = f"This was an occurrence, but its record is deleted: runs before {oldest:%Y-%m-%d} are no longer kept."
        return Verdict(OccurrenceOutcome.UNKNOWN, words)
    return Verdict(OccurrenceOutcome.UNKNOWN, NOT_RECORDED)


def _of_run(facts: InstantFacts, run: RunFacts, version_span: VersionSpan | None) -> Verdict:
    override = facts.own_override
    moved_to = override.moved_to if override else None
    if run.state == RunState.SKIPPED:
        by_overlap = run.reason == SkipReason.OVERLAP
        words = skipped_by_overlap(run, version_span) if by_overlap else state_text_of(facts, run)
        return Verdict(OccurrenceOutcome.SKIPPED, words, run.reason, moved_to=moved_to)
    due, reason, origin = facts.at, None, ""
    if override is not None and moved_to is not None:
        due, reason, origin = moved_to, MOVED, f" {moved(override)}"
    if due > facts.job.now and run.attempt == 0 and run.state == RunState.QUEUED:
        outcome = OccurrenceOutcome.WILL_BE_MOVED if moved_to else OccurrenceOutcome.SCHEDULED
        words = f"It will fire at {instant(due)}. Its run exists already.{origin}"
        return Verdict(outcome, words, reason, moved_to=moved_to)
    return Verdict(OccurrenceOutcome.FIRED, f"{fired(facts, run)}{origin}", reason, moved_to=moved_to)


def _no_job(facts: InstantFacts) -> Verdict:
    earlier = [each for each in facts.timeline.version_spans if each.row.effective_at < facts.at]
    later = [each for each in facts.timeline.version_spans if each.row.effective_at >= facts.at]
    submitted_at = later[0].row.effective_at if later else None
    if earlier:
        deleted_at = earlier[-1].row.retired_at or facts.job.deleted_at
        when = f" at {instant(deleted_at)}" if deleted_at else ""
        again = f" It was submitted again at {instant(submitted_at)}." if submitted_at else ""
        return Verdict(OccurrenceOutcome.DELETED, f"The job had been deleted{when}.{again}")
    if submitted_at is None:
        return Verdict(OccurrenceOutcome.NOT_YET, "Did not fire: the job did not exist yet.")
    if later[0].row.version > 1:
        words = f"The job's versions before {instant(submitted_at)} are no longer kept."
        return Verdict(OccurrenceOutcome.UNKNOWN, words)
    return Verdict(OccurrenceOutcome.NOT_YET, f"Did not fire: the job was first submitted at {instant(submitted_at)}.")


def _span(facts: InstantFacts, version_span: VersionSpan) -> SkipSpan | None:
    """Return the ledger row of the instant; of several, the row whose reason applies to it."""
    spans = [
        each
        for each in facts.spans
        if facts.at in (each.first_at, each.last_at) or version_span.has_occurrence(facts.at)
    ]
    for span in spans:
        if span.reason == SkipReason.MANUAL:
            return span
        # All occurrences in the span of a calendar are excluded ones.
        if span.reason == SkipReason.EXCLUDED and (span.exact or not version_span.fires(facts.at)):
            return span
    return next((span for span in spans if span.reason != SkipReason.EXCLUDED), None)


def _no_occurrence(facts: InstantFacts, version_span: VersionSpan) -> Verdict:
    override = facts.moved_here
    if override is not None:
        words = (
            f"The occurrence of {instant(override.scheduled_at)} was moved to this instant. Explain that one instead."
        )
        return Verdict(OccurrenceOutcome.NO_OCCURRENCE, words)
    if isinstance(version_span.schedule, Manual):
        return Verdict(OccurrenceOutcome.NO_OCCURRENCE, MANUAL)
    if version_span.outside_bounds(facts.at):
        return Verdict(OccurrenceOutcome.NO_OCCURRENCE, outside_bounds(facts, version_span), SkipReason.BOUND)
    notes = no_occurrence_notes(version_span.schedule, facts.at)
    words = f"The schedule of version {version_span.row.version} has no occurrence at this instant."
    return Verdict(OccurrenceOutcome.NO_OCCURRENCE, words, notes=notes)


def _neighbours(facts: InstantFacts, version_span: VersionSpan | None) -> tuple[datetime | None, datetime | None]:
    before, after = facts.timeline.before(facts.at), facts.timeline.after(facts.at)
    if version_span is not None and isinstance(version_span.schedule, FixedDelay):
        before, after = facts.chain(Cause.TIMER)
        occurrences = facts.job.cursor_at if facts.job.hold_reason != HoldReason.RUN else None
        after = after or (occurrences if occurrences is not None and occurrences > facts.at else None)
    return before, after


def _notes(facts: InstantFacts, version_span: VersionSpan | None) -> tuple[str, ...]:
    if version_span is None:
        return ()
    notes = list(occurrence_notes(version_span.schedule, facts.at)) if version_span.has_occurrence(facts.at) else []
    gone = [name for name in version_span.policies.calendars if name in facts.timeline.gone]
    notes += [f"calendar {name!r} is deleted, so its days are unknown" for name in gone]
    return tuple(notes)


def _occurrences(present: Explanation) -> tuple[datetime | None, datetime | None]:
    """Return the last due occurrence and the next one; a job that never had one has runs alone."""
    if present.between_runs:
        return None, None
    is_due = present.outcome is not OccurrenceOutcome.NO_OCCURRENCE and present.version is not None
    return present.at if is_due else present.before, present.after
