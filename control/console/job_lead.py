"""The first line about a job: runs well, failing since, waits or skips because, and the next instant.

It is a plain sentence, or a card with the reason and the one thing to do. Facts are joined only where the rows prove
that they belong together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.sentences import cut, is_cancelled, waiting
from tidewheel.control.console.spec_check import changed_fields
from tidewheel.control.console.view import in_snapshot, of_all_tenants, or_else, part, part_of
from tidewheel.control.console.words import (
    agreed,
    between,
    counted,
    number,
    reason_words,
    schedule_of,
    state,
    target,
    when,
)
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.text import paused_by
from tidewheel.control.explain.upcoming import Upcoming
from tidewheel.control.reads.fleet import AbleExecutors, able_executors
from tidewheel.control.reads.outcomes import Streak, read_streak
from tidewheel.control.reads.resuming import Resumption
from tidewheel.control.reads.waits import Wait, WaitCode
from tidewheel.control.words import duration
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.model import Change, JobDetail
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.nouns.runs.model import CountedRuns, RunSummary
from tidewheel.runs import DEAD_LETTERED, RunState, SkipReason

LATEST = 20
"""The latest runs that the first line is about."""

_LATE = timedelta(seconds=10)  # an occurrence without a run, beyond the polls of schedulers
_LONG = timedelta(minutes=1)  # a wait for what other runs hold
_PATHS = 3  # changed fields that a card names
_LACKS = {WaitCode.NO_EXECUTOR, WaitCode.NO_HANDLER, WaitCode.NO_TARGET, WaitCode.EXECUTOR_SILENT}
_IN_TURN = {WaitCode.TURN, WaitCode.KEY, WaitCode.PARENTS}  # by settings of the job, so nothing is wrong
_HELD_BACK = {WaitCode.SLOT, WaitCode.ORDER, WaitCode.TENANT, WaitCode.TENANT_RATE}


class Action(NamedTuple):
    """A thing to do: the label of its button, the page of the job that it opens, the scope that it needs."""

    label: str
    page: str
    scope: Scope
    query: Mapping[str, object] = MappingProxyType({})


class Lead(NamedTuple):
    """The first line about a job.

    Args:
        family: The colour family of a card; empty for a plain sentence.
        message: The text of the newest error, which is that of `run_id`.
        compared: Two versions whose comparison is the reason.
    """

    answer: str
    family: str = ""
    message: str = ""
    run_id: UUID | None = None
    why: str = ""
    compared: tuple[int, int] | None = None
    wait: Wait | None = None
    actions: Sequence[Action] = ()
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A job's latest runs, the last one first; what comes, did not fire, waits, and what a resume does."""

    now: datetime
    latest: Sequence[RunSummary] = ()
    coming: Upcoming | None = None
    unfired: Sequence[Unfired] = ()
    more_unfired: bool = False
    resumption: Resumption | None = None
    waiting: CountedRuns | None = None
    succeeded: int = 0  # runs that a page shows, if all of these succeeded
    shown: str = "the time shown"


def read_lead(connection: Connection, caller: Caller, job: JobDetail, seen: Seen) -> Lead:
    """Return the first line about a job; a part that cannot be read is left out."""
    streak = None
    if (done := ended(seen.latest)) and done[0].status in DEAD_LETTERED:
        streak = or_else(part_of(connection, read_streak, job.summary.job_id), None)
    found, waits = quarantine(job) or _paused(job, seen, streak), _waiting(seen)
    if found is None and waits is not None and waits.wait is not None and waits.wait.code is WaitCode.SLOT:
        waits = _with_slots(connection, caller, job, waits)
    if found is None and waits is not None and waits.family:
        found = _handler_before(connection, caller, job, seen, waits)
    if found is None and (found := _overdue(seen)) is None and streak is not None:
        found = _failing(job, streak, _changes(connection, caller.tenant, job, streak))
    found = found or _skipping(job, seen) or waits or _cancelling(seen) or Lead(_plain(seen))
    coming, next_at = _coming(job, seen)
    return found._replace(answer=f"{found.answer} {coming}".rstrip(), next_at=next_at)


def is_stuck(run: RunSummary, now: datetime) -> bool:
    """Return True for a run that no executor can start, or that others have held back for long."""
    code = None if run.why is None else run.why.code
    return code in _LACKS or (code in _HELD_BACK and now - _since(run) > _LONG)


def quarantine(job: JobDetail) -> Lead | None:
    """Return the first line about a quarantined job; None if it is not quarantined."""
    if job.error is None:
        return None
    since = f" since {format_timestamp(job.quarantined_at)}" if job.quarantined_at else ""
    return Lead(
        f"Quarantined{since}: no scheduler can compute the next time.", "bad", cut(job.error),
        why="Correct the schedule, or release the job.",
        actions=(Action("Edit", "job_edit", Scope.WRITE), Action("Release…", "job_release", Scope.OPERATE)),
    )  # fmt: skip


def ended(latest: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs that succeeded or failed, the one that ended last first."""
    undone = {RunState.SKIPPED, RunState.CANCELLED}
    found = [(run.finished_at, run) for run in latest if run.finished_at is not None and run.status not in undone]
    return [run for _, run in sorted(found, key=lambda each: each[0], reverse=True)]


def _paused(job: JobDetail, seen: Seen, streak: Streak | None) -> Lead | None:
    summary = job.summary
    if not summary.paused:
        return None
    by = f" by {paused_by(job.paused_by)}" if job.paused_by else ""
    since = f" since {format_timestamp(job.paused_at)}" if job.paused_at else ""
    why = f": {job.pause_reason.rstrip('.')}" if job.pause_reason else ""
    until = f" The pause ends at {format_timestamp(summary.paused_until)}." if summary.paused_until else ""
    paused = Lead(f"Paused{since}{by}{why}.{until}")
    if streak is None or job.paused_by != "failures":
        return paused
    resume = Action("Resume…", "job_resume", Scope.OPERATE)
    return paused._replace(family="bad", message=_message(streak), run_id=streak.run_id, actions=(resume,))


def _since(run: RunSummary) -> datetime:
    return max(run.scheduled_at, run.created_at)


def _waiting(seen: Seen) -> Lead | None:
    """Return the first line about runs that are stuck, else about those that wait for their turn."""
    stuck = [run for run in seen.latest if is_stuck(run, seen.now)]
    in_turn = [run for run in seen.latest if run.why is not None and run.why.code in _IN_TURN]
    waits = stuck or [run for run in in_turn if seen.now - _since(run) > _LONG]
    if not waits or (why := waits[-1].why) is None:
        return None
    same = [run for run in waits if run.why is not None and run.why.code is why.code]
    many, words = _many(len(same), seen), why.words.removeprefix("waits ")
    words = "for an executor" if why.code is WaitCode.SLOT else words
    since = f"{'' if len(same) == 1 else ', oldest'} since {format_timestamp(_since(waits[-1]))}"
    answer = f"{many} waiting{since}: {words}." if words == why.words else f"{many} waiting {words}{since}."
    return Lead(answer, "bad" if stuck and why.code in _LACKS else "trouble" if stuck else "", wait=why)


def _with_slots(connection: Connection, caller: Caller, job: JobDetail, waits: Lead) -> Lead:
    """Return the line with the slots that can run the job, for a caller of all tenants."""
    able = _able(connection, caller, job.job)
    return waits._replace(why=f"{able.words}.") if able and able.words else waits


def _able(connection: Connection, caller: Caller, job: Mapping[str, object]) -> AbleExecutors | None:
    """Return the live executors of a job's handler; None without one, or for a caller of one tenant."""
    kind, _, handler = target(job).partition(" ")
    if kind != "handler" or not caller.all_tenants:
        return None
    return or_else(part(lambda: of_all_tenants(connection, able_executors, _queue_of(job), handler)), None)


def _queue_of(job: Mapping[str, object]) -> str:
    return str(job.get("queue") or "default")


def _cancelling(seen: Seen) -> Lead | None:
    """Return the first line about runs that an open cancellation names."""
    named = [run.why for run in seen.latest if run.why is not None and run.why.cancellation_id is not None]
    if not named:
        return None
    return Lead(f"{counted(len(named), 'run', at_least=len(named) == LATEST)} being cancelled.", wait=named[0])


def _handler_before(connection: Connection, caller: Caller, job: JobDetail, seen: Seen, waits: Lead) -> Lead:
    """Return the line with the handler of the version before, if live executors have that one alone."""
    current, key = job.summary.version, job.summary.key
    lacking = {run.job_version for run in seen.latest if run.why is not None and run.why.code is WaitCode.NO_HANDLER}
    if current not in lacking or current == 1 or not caller.all_tenants:
        return waits
    before = or_else(part_of(connection, job_at, caller.tenant, key, current - 1), {})
    able = _able(connection, caller, before) if _queue_of(before) == _queue_of(job.job) else None
    if able is None or not (many := len(able.executors)):
        return waits
    has = f"{counted(many, 'live executor')} of the queue {agreed(many, 'has', 'have')}"
    why = f"Version {current - 1} used `{target(before).removeprefix('handler ')}`, which {has}."
    back = _roll_back(current - 1)
    return waits._replace(why=why, actions=(back,))


def _roll_back(number: int) -> Action:
    return Action(f"Roll back to version {number}…", "job_rollback", Scope.WRITE, {"version": number})


def _overdue(seen: Seen) -> Lead | None:
    first = next(iter(seen.coming.occurrences), None) if seen.coming is not None else None
    if first is None or first.outcome is not OccurrenceOutcome.WAITING or seen.now - first.at <= _LATE:
        return None
    return Lead(f"The occurrence of {format_timestamp(first.at)} has not fired.", "trouble", why=" ".join(first.notes))


def _changes(connection: Connection, tenant: str, job: JobDetail, streak: Streak) -> Sequence[Change]:
    """Return what the version in force has changed, if it fails and the one before succeeded."""
    good, current, key = streak.good_version, job.summary.version, job.summary.key
    if good is None or streak.since_version is None or streak.last_version != current:
        return ()
    return or_else(part(lambda: changed_fields(in_snapshot(connection, job_at, tenant, key, good), job.job)), [])


def _failing(job: JobDetail, streak: Streak, changes: Sequence[Change]) -> Lead:
    current, good = job.summary.version, streak.good_version
    since = f"{format_timestamp(streak.since)}{_since_version(job, streak)}"
    many = f"{number(streak.failures, at_least=streak.at_least)} failures in a row"
    answer = f"{many}." if streak.at_least else f"{many} since {since}."
    if streak.failures == 1:
        answer = f"The last run failed at {since}."
    found = Lead(answer, "bad", _message(streak), streak.run_id)
    if good is not None and changes:
        why = f"Changed since version {good}: {_paths(changes)}."
        return found._replace(why=why, compared=(good, current), actions=(_roll_back(good),))
    if max(streak.last_version, good or 0) < current:
        return found._replace(why=f"No run of version {current}, which is in force now, has succeeded or failed yet.")
    return found


def _since_version(job: JobDetail, streak: Streak) -> str:
    if streak.since_version is None:
        return ""
    if streak.since_version == job.summary.version and streak.since >= job.effective_at:
        return f", {duration(streak.since - job.effective_at)} after version {streak.since_version} was saved"
    return f", from version {streak.since_version} on"


def _message(streak: Streak) -> str:
    return ": ".join(filter(None, (streak.error_type, streak.message))) or "no error is recorded"


def _paths(changes: Sequence[Change]) -> str:
    if len(changes) == 1:
        return f"`{changes[0].path}` from {changes[0].before} to {changes[0].after}"
    more = f" and {len(changes) - _PATHS} more" if len(changes) > _PATHS else ""
    return ", ".join(f"`{each.path}`" for each in changes[:_PATHS]) + more


def _skipping(job: JobDetail, seen: Seen) -> Lead | None:
    """Return the first line about a job of which several latest runs found another one active."""
    skips = [run for run in seen.latest if run.status == RunState.SKIPPED and run.reason == SkipReason.OVERLAP]
    if len(skips) < 2:
        return None
    unfired = [each for each in seen.unfired if each.reason == SkipReason.OVERLAP]
    many = number(sum(each.occurrences for each in unfired) or len(skips), at_least=seen.more_unfired)
    took = max(filter(None, (between(run.started_at, run.finished_at) for run in seen.latest)), default=None)
    every = schedule_of(job.summary.schedule)
    comes = f"The job runs {every}; a" if every.startswith("every ") else "A"
    return Lead(
        f"{many} runs skipped{f' in {seen.shown}' if unfired else ''}: {reason_words(SkipReason.OVERLAP)}.", "trouble",
        why="" if took is None else f"{comes} run takes up to {duration(took)}.",
        actions=(Action("Change schedule or overlap…", "job_edit", Scope.WRITE),),
    )  # fmt: skip


def _plain(seen: Seen) -> str:
    """Return how the latest runs ended, where nothing is to be done."""
    waits = (run.why for run in seen.latest if run.status == RunState.RETRYING and not is_cancelled(run))
    if (why := next((why for why in waits if why is not None), None)) is not None:
        return waiting(why, seen.now)
    due = _due(seen)
    if due and not ended(seen.latest):
        return due
    if not seen.unfired:
        return due + _outcomes(seen)
    occurrences = sum(each.occurrences for each in seen.unfired)
    many = number(occurrences, at_least=seen.more_unfired or not all(each.exact for each in seen.unfired))
    reasons = ", ".join(dict.fromkeys(reason_words(each.reason) for each in seen.unfired))
    return f"{due}{_outcomes(seen)} {many} skipped in {seen.shown}: {reasons}."


def _due(seen: Seen) -> str:
    """Return how many of the latest runs no executor has claimed; empty if none of them is late."""
    unclaimed = [run for run in seen.latest if run.why is not None and run.why.code is WaitCode.SLOT]
    if not any(seen.now - run.scheduled_at > _LATE for run in unclaimed):
        return ""
    return f"{_many(len(unclaimed), seen)} waiting for an executor. "


def _many(runs: int, seen: Seen) -> str:
    """Return the number of waiting runs; of more than the latest, that of all."""
    whole = seen.waiting if runs == LATEST else None
    return (
        counted(whole.runs, "run", at_least=whole.at_least) if whole else counted(runs, "run", at_least=runs == LATEST)
    )


def _outcomes(seen: Seen) -> str:
    latest, done = seen.latest, ended(seen.latest)
    if not latest:
        return "No run yet."
    if not done:
        ends = [state(run.status) for run in latest]
        which = "No run has" if len(latest) < LATEST else f"None of the latest {LATEST} runs has"
        return f"{which} succeeded or failed yet: {', '.join(f'{many} {end}' for end, many in Counter(ends).items())}."
    good = len(list(takewhile(lambda run: run.status == RunState.SUCCEEDED, done)))
    if good < len(done):
        words = "The last run succeeded; a run" if good == 1 else f"The last {good} runs succeeded; a run"
        return f"{words if good else 'The last run'} failed {when(done[good].finished_at, seen.now)}."
    which = f"All {seen.succeeded} runs in {seen.shown}" if seen.succeeded > good else f"The last {good} runs"
    return "The last run succeeded." if good == 1 else f"{which} succeeded."


def _coming(job: JobDetail, seen: Seen) -> tuple[str, datetime | None]:
    """Return what comes in words, or the next instant."""
    next_at = job.summary.next_at
    if job.error is not None:
        return "", None
    if job.summary.paused:
        return "" if seen.resumption is None else " ".join(seen.resumption.words), None
    if next_at is not None and job.freezes:
        return "A freeze holds the job: nothing fires until the thaw.", None
    if next_at is not None:
        return ("", next_at) if next_at > seen.now else ("Due now.", None)
    if job.summary.kind == "manual":
        return "", None
    return "" if seen.coming is None else seen.coming.words, None
