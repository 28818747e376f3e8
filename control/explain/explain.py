"""`explain`: what became of any instant of a job, or is to become of it, and why.

What is recorded is told from the records: a run, else a span of the ledger. What is not recorded yet, from where the
timer stands on, is decided by the scheduler's own code, for now, and nothing of it is written. A handful of indexed
reads, whatever the job's past.
"""

from datetime import UTC, datetime, timedelta

from tidewheel.control.explain.dst_notes import no_occurrence_notes, occurrence_notes
from tidewheel.control.explain.explanation import MISFIRE_AFTER, MOVED, Answer, Explanation, Outcome, RunFacts, SkipSpan
from tidewheel.control.explain.facts import Asked, read_asked
from tidewheel.control.explain.predict import chained, moved_ahead, not_recorded
from tidewheel.control.explain.text import fired, instant, overlapped, passed_over, said_by
from tidewheel.control.explain.version_timeline import Saying
from tidewheel.errors import ScheduleRefused
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState
from tidewheel.schedules.decision import HoldReason, SkipReason
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.simple import FixedDelay, Manual
from tidewheel.schedules.zones import LAST_YEAR

_FIRST_YEAR = 1970


def explain(
    connection: Conn, tenant: str, key: str, at: datetime, *, misfire_after: timedelta = MISFIRE_AFTER
) -> Explanation:
    """What became of an instant of a job, or is to become of it, and why.

    Args:
        connection: To read by; REPEATABLE READ, so that all of it is of one moment.
        tenant: Whose job.
        key: The job.
        at: Any instant, aware.
        misfire_after: How late an occurrence may be before it is missed, as the scheduler has it.

    Raises:
        UnknownJob: There is no such job and never was one.
        ScheduleRefused: `at` has no offset or lies beyond 1970 to 2199, or a stored schedule cannot be read.
    """
    asked = read_asked(connection, tenant, key, _in_utc(at), misfire_after)
    saying = asked.saying
    answer = _answer(asked, saying)
    zone = saying.zone if saying else "UTC"
    before, after = _neighbours(asked, saying)
    return Explanation(
        key=key,
        at=asked.at,
        local=to_zone(asked.at, zone),
        zone=zone,
        outcome=answer.outcome,
        words=answer.words,
        reason=answer.reason,
        run=asked.run,
        others=tuple(run for run in asked.runs if run is not asked.run),
        version=saying.force if saying else None,
        span=answer.span,
        moved_to=answer.moved_to,
        before=before,
        after=after,
        notes=(*answer.notes, *_notes(asked, saying)),
    )


def _in_utc(at: datetime) -> datetime:
    if at.tzinfo is None:
        problem = f"{at.isoformat()} has no offset, so it is many instants"
        raise ScheduleRefused(problem, "give an aware datetime", "at")
    if not _FIRST_YEAR < at.year < LAST_YEAR:
        problem = f"the year {at.year} is outside {_FIRST_YEAR + 1} to {LAST_YEAR - 1}"
        raise ScheduleRefused(problem, "ask about an instant within them", "at")
    return at.astimezone(UTC)


def _answer(asked: Asked, saying: Saying | None) -> Answer:
    if asked.run is not None:
        return _of_run(asked, asked.run, saying)
    deleted_at = asked.job.deleted_at
    if saying is None or (deleted_at is not None and asked.at > deleted_at):
        return _no_job(asked)
    span = _span(asked, saying)
    if span is None:
        return _without_record(asked, saying)
    early = {SkipReason.MANUAL: Outcome.COMING_SKIPPED, SkipReason.EXCLUDED: Outcome.COMING_EXCLUDED}
    ahead = early.get(SkipReason(span.reason)) if asked.at > asked.job.now else None
    return Answer(ahead or Outcome.SKIPPED, passed_over(asked, span, saying), span.reason, span)


def _without_record(asked: Asked, saying: Saying) -> Answer:
    if isinstance(saying.schedule, FixedDelay):
        return chained(asked, saying.schedule)
    if not saying.says(asked.at):
        return _no_occurrence(asked, saying)
    said = asked.about_it
    if said is not None and said.moved_to is not None and said.done_at is None:
        # Whatever version there is when that comes: its own instant has passed under this one.
        return moved_ahead(asked, said, saying)
    current = saying.until is None
    cursor, finished = asked.job.cursor_at, asked.job.finished_at is not None
    if current and (asked.at >= cursor if cursor else not (finished and saying.fires(asked.at))):
        return not_recorded(asked, saying)
    return _nothing_recorded(asked)


def _of_run(asked: Asked, run: RunFacts, saying: Saying | None) -> Answer:
    said = asked.about_it
    moved_to = said.moved_to if said else None
    if run.state == RunState.SKIPPED:
        return Answer(Outcome.SKIPPED, overlapped(asked, run, saying), run.reason, moved_to=moved_to)
    due, reason, moved = asked.at, None, ""
    if said is not None and moved_to is not None:
        due, reason = moved_to, MOVED
        moved = f" It was moved to {instant(moved_to)}, {said_by(said)}."
    if due > asked.job.now and run.attempt == 0 and run.state == RunState.QUEUED:
        outcome = Outcome.COMING_MOVED if moved_to else Outcome.COMING
        words = f"It is to fire at {instant(due)}; its run is written already, ahead of its time.{moved}"
        return Answer(outcome, words, reason, moved_to=moved_to)
    return Answer(Outcome.FIRED, f"{fired(asked, run)}{moved}", reason, moved_to=moved_to)


def _no_job(asked: Asked) -> Answer:
    earlier = [each for each in asked.near.sayings if each.row.effective_at < asked.at]
    later = [each for each in asked.near.sayings if each.row.effective_at >= asked.at]
    again = f" It was submitted again at {instant(later[0].row.effective_at)}." if later else ""
    if earlier:
        deleted = earlier[-1].row.retired_at or asked.job.deleted_at
        when = f" at {instant(deleted)}" if deleted else ""
        return Answer(Outcome.DELETED, f"The job had been deleted{when}.{again}")
    since = f": it was first submitted at {instant(later[0].row.effective_at)}" if later else ""
    return Answer(Outcome.NOT_YET, f"There was no such job yet{since}.")


def _span(asked: Asked, saying: Saying) -> SkipSpan | None:
    """The row that accounts for the instant: of several, the one that is told to mean it."""
    spans = [each for each in asked.spans if asked.at in (each.first_at, each.last_at) or saying.says(asked.at)]
    for span in spans:
        if span.reason == SkipReason.MANUAL:
            return span
        # There is no occurrence in the span of a calendar but for those that it leaves out.
        if span.reason == SkipReason.EXCLUDED and (span.exact or not saying.fires(asked.at)):
            return span
    return next((span for span in spans if span.reason != SkipReason.EXCLUDED), None)


def _no_occurrence(asked: Asked, saying: Saying) -> Answer:
    moved = asked.moved_here
    if moved is not None:
        words = f"No occurrence of its own: the one of {instant(moved.scheduled_at)} was moved here; ask about that."
        return Answer(Outcome.NO_OCCURRENCE, words)
    if isinstance(saying.schedule, Manual):
        return Answer(Outcome.NO_OCCURRENCE, "The job's schedule is manual: its runs come from triggers alone.")
    if saying.outside_bounds(asked.at):
        return Answer(Outcome.NO_OCCURRENCE, _bound(asked, saying), SkipReason.BOUND)
    notes = no_occurrence_notes(saying.schedule, asked.at)
    return Answer(
        Outcome.NO_OCCURRENCE,
        f"The schedule of version {saying.row.version} has no occurrence at this instant.",
        notes=notes,
    )


def _bound(asked: Asked, saying: Saying) -> str:
    bounds = getattr(saying.schedule, "bounds")  # noqa: B009 - of a cron or an interval, which have some
    if bounds.start_at is not None and asked.at < bounds.start_at:
        return f"It lies before start_at, {instant(bounds.start_at)}."
    if saying.row.max_runs is not None:
        return f"max_runs is {saying.row.max_runs}, and the last of those occurrences was {instant(bounds.end_at)}."
    return f"It lies after end_at, {instant(bounds.end_at)}."


def _nothing_recorded(asked: Asked) -> Answer:
    oldest = asked.oldest_day()
    if oldest is not None and asked.at < oldest:
        return Answer(
            Outcome.UNKNOWN, f"It was an occurrence. Runs are kept from {oldest:%Y-%m-%d} on, and it is older."
        )
    return Answer(
        Outcome.UNKNOWN,
        "It was an occurrence, and neither a run nor a skip of it is recorded. Where nobody has removed rows by hand, "
        "that is a fault of Tidewheel: please report it with this explanation.",
    )


def _neighbours(asked: Asked, saying: Saying | None) -> tuple[datetime | None, datetime | None]:
    before, after = asked.near.before(asked.at), asked.near.after(asked.at)
    if saying is not None and isinstance(saying.schedule, FixedDelay):
        before, after = asked.chain()
        coming = asked.job.cursor_at if asked.job.hold_reason != HoldReason.RUN else None
        after = after or (coming if coming is not None and coming > asked.at else None)
    return before, after


def _notes(asked: Asked, saying: Saying | None) -> tuple[str, ...]:
    if saying is None:
        return ()
    notes = list(occurrence_notes(saying.schedule, asked.at)) if saying.says(asked.at) else []
    gone = [name for name in saying.policies.calendars if name in asked.near.gone]
    notes += [f"calendar {name!r} is no more; which days it had is not known" for name in gone]
    return tuple(notes)
