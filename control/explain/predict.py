"""Predict the outcome of an instant without a record, and explain that of a job with parents.

The scheduler's own code decides for the current time. Nothing is written. A job with parents is explained by its run in
the occurrence, else by what it waits for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.explain.explanation import (
    MOVED,
    ChildRun,
    Explanation,
    OccurrenceOutcome,
    ParentState,
    Verdict,
    WorkflowFacts,
)
from tidewheel.control.explain.facts import InstantFacts, OverrideFacts, VersionSpan
from tidewheel.control.explain.text import (
    CHECK_SCHEDULER,
    FOLLOWS,
    TIMER_MISSING,
    excluded,
    frozen,
    instant,
    late,
    moved,
    next_delay,
    no_chained_occurrence,
    on_resume,
    paused,
    policy_effect,
    postponed,
    quarantined,
    skipped_manually,
    state_text_of,
)
from tidewheel.postgres.session import read_row, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, SKIP_WORDS, RunState, SkipReason
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.schedule import FixedDelay
from tidewheel.transitions.occurrences import MEETS, Occurrence
from tidewheel.transitions.parents import read_parent_runs

_SQL = Statements("tidewheel.control")
_ENDED = frozenset({"succeeded", "failed", "timed_out", "cancelled", "cancelling", "timing_out"})


def not_recorded(facts: InstantFacts, version_span: VersionSpan) -> Verdict:
    """Predict an occurrence of the current version without a record; not a moved one."""
    past = facts.at <= facts.job.now
    if not version_span.fires(facts.at):
        outcome = OccurrenceOutcome.SKIPPED if past else OccurrenceOutcome.WILL_BE_EXCLUDED
        return Verdict(outcome, excluded(version_span, facts), SkipReason.EXCLUDED)
    if facts.own_override is not None:
        outcome = OccurrenceOutcome.SKIPPED if past else OccurrenceOutcome.WILL_BE_SKIPPED
        return Verdict(outcome, skipped_manually(facts), SkipReason.MANUAL)
    if facts.job.cursor_at is None:
        return Verdict(OccurrenceOutcome.WAITING, TIMER_MISSING)
    return _held(facts, facts.at) or _ahead_or_late(facts, "")


def moved_to_future(facts: InstantFacts, override: OverrideFacts) -> Verdict:
    """Predict a moved occurrence that has not fired yet."""
    to, now = override.moved_to or facts.at, facts.job.now
    held = _held(facts, to)
    if held is not None:
        return Verdict(held.outcome, f"{moved(override)} {held.words}", MOVED, moved_to=to)
    if to > now:
        words = f"{moved(override)} Undo the move to let it fire at its own time."
        return Verdict(OccurrenceOutcome.WILL_BE_MOVED, words, MOVED, moved_to=to)
    again_at = _postponed_until(facts, to)
    words = late(now - to, CHECK_SCHEDULER if again_at is None else postponed(again_at))
    return Verdict(OccurrenceOutcome.WAITING, f"{moved(override)} {words}", MOVED, moved_to=to)


def chained(facts: InstantFacts, schedule: FixedDelay) -> Verdict:
    """Predict an instant of a fixed_delay without a run."""
    cursor, run_open = facts.job.cursor_at, facts.job.hold_reason == HoldReason.RUN
    if facts.at == cursor and not run_open and facts.timeline.version_spans[-1] is facts.version_span:
        return _held(facts, facts.at) or _ahead_or_late(facts, next_delay(schedule))
    return Verdict(OccurrenceOutcome.NO_OCCURRENCE, no_chained_occurrence(schedule, cursor, run_open=run_open))


@dataclass(frozen=True, slots=True)
class Child:
    """The explanation of a child: the verdict, the occurrence, the instants of its root around this one."""

    verdict: Verdict
    workflow: WorkflowFacts | None = None
    before: datetime | None = None
    after: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    root_job_id: UUID
    root_key: str
    root_run_id: UUID | None
    root_state: str | None
    root_attempt: int | None
    state: str | None
    generation: int | None
    graph_at: datetime | None


def explain_child(facts: InstantFacts, explain_root: Callable[[str], Explanation]) -> Child:
    """Explain an instant of a job that has parents in the version in force."""
    columns: dict[str, object] = {"job_id": facts.job.job_id, "at": facts.at}
    found = read_row(facts.connection, class_row(_Found), _SQL["find_occurrence_of_child"], columns)
    if found is None:
        return Child(Verdict(OccurrenceOutcome.NO_OCCURRENCE, FOLLOWS))
    root = explain_root(found.root_key)
    if found.root_run_id is None or found.root_state is None:
        words = f"The job follows its parents in a workflow. For its root {found.root_key!r}: {root.words}"
        return Child(Verdict(root.outcome, words, root.reason), None, root.before, root.after)
    workflow = _facts(facts, found, found.root_run_id, found.root_state)
    return Child(_verdict(facts, workflow, found), workflow, root.before, root.after)


def _held(facts: InstantFacts, due: datetime) -> Verdict | None:
    """Return the verdict of a held timer, else None; `due` is the firing time, after a move."""
    job = facts.job
    if job.hold_reason == HoldReason.QUARANTINED:
        return Verdict(OccurrenceOutcome.WAITING, quarantined(facts.error()))
    if job.hold_reason == HoldReason.PAUSE and (job.paused_until is None or due <= job.paused_until):
        again_at = _postponed_until(facts, job.paused_until) if job.paused_until is not None else None
        pause = paused(job.paused_until, job.paused_at, job.paused_by, job.pause_reason)
        again = "" if again_at is None else postponed(again_at)
        words = " ".join(filter(None, (pause, on_resume(facts, due, "pause"), again)))
        return Verdict(OccurrenceOutcome.PAUSED, words, SkipReason.PAUSED)
    freezes = facts.freezes()
    if freezes and (job.hold_reason == HoldReason.FREEZE or due > job.now):
        words = f"{frozen(freezes)} {on_resume(facts, due, 'freeze')}".rstrip()
        return Verdict(OccurrenceOutcome.PAUSED, words, SkipReason.FROZEN)
    return None


def _ahead_or_late(facts: InstantFacts, why: str) -> Verdict:
    if facts.at > facts.job.now:
        return Verdict(OccurrenceOutcome.SCHEDULED, f"It will fire. {why}".rstrip())
    again_at, cursor = _postponed_until(facts, facts.at), facts.job.cursor_at
    if again_at is not None:
        then = postponed(again_at)
    else:
        timer = f" The timer is at {instant(cursor)}." if cursor is not None and cursor != facts.at else ""
        then = f"{_next_poll(facts)}{timer} {CHECK_SCHEDULER}"
    return Verdict(OccurrenceOutcome.WAITING, late(facts.job.now - facts.at, then))


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
        return "The next poll creates its run."
    if any(skip.first_at <= facts.at <= skip.last_at for skip in decision.skips):
        policies = version_span.policies
        effect = policy_effect("catch_up", policies.catch_up, policies.window)
        return f"It is missed, and the next poll skips it. {effect}."
    return "The backlog takes several polls."


def _facts(facts: InstantFacts, found: _Found, root_run_id: UUID, root_state: str) -> WorkflowFacts:
    columns: dict[str, object] = {"job_id": facts.job.job_id, "at": facts.at, "root_run_id": root_run_id}
    runs = tuple(read_rows(facts.connection, class_row(ChildRun), _SQL["read_child_runs"], columns))
    occurrence = Occurrence(root_run_id, found.root_job_id, facts.at, found.graph_at or facts.at, found.generation or 0)
    parents = read_parent_runs(facts.connection, occurrence, facts.job.job_id)
    states = tuple(ParentState(key, when, run.state if run else None) for key, when, run in parents)
    return WorkflowFacts(found.root_key, root_run_id, root_state, found.state, runs, states)


def _verdict(facts: InstantFacts, workflow: WorkflowFacts, found: _Found) -> Verdict:
    if workflow.runs:
        return _of_run(facts, workflow, workflow.runs[0])
    if workflow.state is None and workflow.root_state in FINAL:
        if workflow.root_state == RunState.SKIPPED or not found.root_attempt:
            words = f"The run of its root {workflow.root_key!r} was {workflow.root_state} before it began."
            return Verdict(OccurrenceOutcome.SKIPPED, f"{words} No job below that root runs.", "root")
        return Verdict(
            OccurrenceOutcome.WAITING, "The root's run has ended, and a scheduler is creating the runs of its children."
        )
    if workflow.state in _ENDED:
        words = f"The occurrence ended as {workflow.state} before reaching the job."
        return Verdict(OccurrenceOutcome.SKIPPED, words, "not_reached")
    return Verdict(OccurrenceOutcome.WAITING, _waiting(workflow))


def _of_run(facts: InstantFacts, workflow: WorkflowFacts, latest: ChildRun) -> Verdict:
    if latest.state == RunState.BLOCKED:
        return Verdict(OccurrenceOutcome.WAITING, _waiting(workflow))
    if latest.state == RunState.SKIPPED:
        why = _unmet(workflow.parents) if latest.reason == SkipReason.PARENTS else ""
        words = f"Its run was skipped: {why or SKIP_WORDS.get(latest.reason or '', latest.reason)}."
        return Verdict(OccurrenceOutcome.SKIPPED, words, latest.reason)
    run = next((each for each in facts.runs if each.run_id == latest.run_id), None)
    words = f"Its run is {latest.state}." if run is None else state_text_of(facts, run)
    return Verdict(OccurrenceOutcome.FIRED, f"It was released by its parents. {words}")


def _waiting(workflow: WorkflowFacts) -> str:
    waiting = [parent for parent in workflow.parents if parent.state not in FINAL]
    words = "Its parents have ended, and a scheduler is creating its run."
    if waiting:
        first, many = waiting[0], len(workflow.parents)
        of_which = "its parent" if many == 1 else f"{len(waiting)} of {many} parents, first for"
        state = f"whose run is {first.state}" if first.state else "which has no run yet"
        words = f"It waits for {of_which} {first.key!r}, {state}."
    return f"{words} The occurrence is paused: resume it to continue." if workflow.state == "paused" else words


def _unmet(parents: Sequence[ParentState]) -> str:
    """Return the first parent that did not end as its condition requires; empty if no run shows it."""
    for each in parents:
        if each.state is not None and RunState(each.state) not in MEETS[each.when]:
            return f"the parent {each.key!r} ended as {each.state}, but the condition is {each.when}"
    return ""
