"""One sentence about a job and about a run, under the title of its page."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from tidewheel.control.console.words import agreed, between, counted, number, reason_words, state, when
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.text import paused_by
from tidewheel.control.explain.upcoming import Upcoming
from tidewheel.control.reads.resuming import Resumption
from tidewheel.control.reads.waits import Wait
from tidewheel.control.words import duration
from tidewheel.jobs.values import format_timestamp
from tidewheel.nouns.jobs.model import JobDetail
from tidewheel.nouns.runs.model import RunDetail, RunSummary
from tidewheel.nouns.workflows.picture import is_met
from tidewheel.runs import DEAD_LETTERED, RunState, SkipReason
from tidewheel.transitions.parents import Neighbours

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_LONGEST = 300  # characters of an error in a sentence


def about_job(
    job: JobDetail,
    latest: Sequence[RunSummary],
    coming: Upcoming | None,
    now: datetime,
    *,
    unfired: Sequence[Unfired] = (),
    more_unfired: bool = False,
    resumption: Resumption | None = None,
) -> str:
    """Return how a job is, and when it fires next.

    Args:
        latest: Its latest runs, the last one first.
        coming: None if it could not be read.
        unfired: The occurrences of the time shown that did not fire.
        resumption: What a resume of the paused job does; None if it is not paused.
    """
    coming_words = _coming(job, coming, now) if resumption is None else _meanwhile(resumption)
    return f"{_present(job, latest, _skipped(unfired, at_least=more_unfired), now)} {coming_words}".strip()


def about_run(run: RunDetail, now: datetime, neighbours: Neighbours | None = None) -> str:
    """Return how a run ended, or for what it waits; its neighbours show which parent skipped it."""
    summary = run.summary
    took = duration(between(summary.started_at, summary.finished_at))
    error = _cut(": ".join(part for part in (summary.error_type, run.error_message) if part))
    match summary.status:
        case RunState.SUCCEEDED:
            return f"Attempt {summary.attempt} succeeded in {took}."
        case RunState.FAILED | RunState.TIMED_OUT:
            reason = error or state(summary.reason or "") or "no error is recorded"
            how = f"{state(summary.status).capitalize()} after {counted(summary.attempt, 'attempt')}"
            return f"{how}: {reason}".rstrip(".") + "."
        case RunState.CANCELLED | RunState.SKIPPED:
            unmet = _unmet(neighbours) if summary.reason == SkipReason.PARENTS and neighbours is not None else ""
            reason = f": {unmet or reason_words(summary.reason)}" if summary.reason else ""
            return f"{state(summary.status).capitalize()} {when(summary.finished_at, now)}{reason}."
        case _ if summary.why is not None:
            return _waits(summary.why, now)
        case status:
            return f"{state(status).capitalize()}."


def _unmet(neighbours: Neighbours) -> str:
    """Return the first parent that did not end as its condition requires; empty if no run shows it."""
    for key, when_, parent in neighbours.parents:
        if parent is not None and not is_met(when_, parent.state):
            return f"the parent {key} ended as {state(parent.state)}, but the condition is {when_}"
    return ""


def is_cancelled(run: RunSummary) -> bool:
    """Return True if a cancel of an open run was accepted."""
    return run.status == RunState.CANCELLING or (run.why is not None and run.why.cancel_requested)


def _present(job: JobDetail, latest: Sequence[RunSummary], skipped: str, now: datetime) -> str:
    summary = job.summary
    if job.error is not None:
        since = f" {when(job.quarantined_at, now)}" if job.quarantined_at else ""
        return f"Quarantined{since}: {_cut(job.error).rstrip('.')}."
    if summary.paused:
        by = f" by {paused_by(job.paused_by)}" if job.paused_by else ""
        since = f"It was paused {when(job.paused_at, now)}" if job.paused_at else "It is paused"
        why = f": {job.pause_reason.rstrip('.')}" if job.pause_reason else ""
        until = f" The pause ends at {format_timestamp(summary.paused_until)}." if summary.paused_until else ""
        return f"{since}{by}{why}.{until}"
    waits = (run.why for run in latest if run.status == RunState.RETRYING and not is_cancelled(run))
    retrying = next((why for why in waits if why is not None), None)
    return _latest(latest, skipped, now) if retrying is None else _waits(retrying, now)


def _latest(latest: Sequence[RunSummary], skipped: str, now: datetime) -> str:
    """Return how the latest runs ended."""
    ended = [run for run in latest if run.finished_at is not None and run.status != RunState.SKIPPED]
    if not ended:
        return _unended(latest)
    last = ended[0]
    streak = len(list(takewhile(lambda run: run.status == last.status, ended)))
    match last.status:
        case RunState.SUCCEEDED:
            failed = [run for run in ended if run.status in DEAD_LETTERED]
            if failed:
                ends = f"{streak} runs" if streak > 1 else "run"
                return f"{_failed_of(latest, failed, now)}The last {ends} that ended succeeded.{skipped}"
            return _well([run.status for run in latest], skipped)
        case RunState.FAILED | RunState.TIMED_OUT:
            error = f": {last.error_type}" if last.error_type else ""
            ends = f"The last {streak} runs" if streak > 1 else "The last run"
            return f"{ends} {state(last.status)}{error}{_before(ended, streak)}."
        case status:
            return f"The last run was {state(status)} {when(last.finished_at, now)}{_before(ended, 1)}."


def _unended(latest: Sequence[RunSummary]) -> str:
    """Return a sentence about latest runs of which none ended after a start."""
    if not latest:
        return "This job has never run."
    skips = sum(run.status == RunState.SKIPPED for run in latest)
    if not skips:
        return "None of its latest runs has ended."
    if len(latest) == 1:
        return "Its latest run was skipped."
    many = f"All of its latest {skips}" if skips == len(latest) else f"{skips} of its latest {len(latest)}"
    return f"{many} runs {agreed(skips, 'was', 'were')} skipped."


def _before(ended: Sequence[RunSummary], newest: int) -> str:
    """Return how many runs before the newest failed since the last success, as the overview counts."""
    good = max((run.finished_at for run in ended if run.status == RunState.SUCCEEDED and run.finished_at), default=None)
    before = [run for run in ended[newest:] if good is None or (run.finished_at is not None and run.finished_at > good)]
    failed = [run for run in before if run.status in DEAD_LETTERED]
    if not failed:
        return ""
    them = "it" if newest == 1 else "them"
    how = " or ".join(dict.fromkeys(state(run.status) for run in failed))
    if len(failed) == len(before):
        return f"; the {'one' if len(failed) == 1 else len(failed)} before {them} {how}"
    rest = len(before) - len(failed)
    others = f"{rest} {'was' if rest == 1 else 'were'} cancelled"
    return f"; {len(failed)} of the {len(before)} before {them} {how}, and {others}"


def _waits(why: Wait, now: datetime) -> str:
    is_near = why.until is not None and _SECOND <= why.until - now < _DAY
    return f"{why.words[:1].upper()}{why.words[1:]}{f', {when(why.until, now)}' if is_near else ''}."


def _failed_of(latest: Sequence[RunSummary], failed: Sequence[RunSummary], now: datetime) -> str:
    """Return how many of the latest runs failed and when, for the drawing may show another time."""
    last = "" if len(failed) == 1 else "the last one "
    return f"{len(failed)} of its latest {len(latest)} runs failed, {last}{when(failed[0].finished_at, now)}. "


def _well(latest: Sequence[str], skipped: str) -> str:
    """Return how many of the latest runs succeeded where none failed, by their states.

    >>> _well(["succeeded"] * 17, ""), _well(["succeeded"], "")
    ('Runs well: the last 17 runs succeeded.', 'The last run succeeded.')
    >>> _well(["queued"] * 2 + ["succeeded"] * 18, "")
    'Runs well: of its latest 20 runs, 18 succeeded, none failed, and 2 have not ended.'
    >>> _well(["succeeded", "skipped", "cancelled", "skipped", "running"], "")
    'Of its latest 5 runs, 1 succeeded, none failed, 1 was cancelled, 2 were skipped, and 1 has not ended.'
    """
    good, undone, skips = (latest.count(each) for each in (RunState.SUCCEEDED, RunState.CANCELLED, RunState.SKIPPED))
    rest = len(latest) - good - undone - skips
    ends = (undone, "cancelled"), (skips, "skipped")
    others = [f"{count} {agreed(count, 'was', 'were')} {how}" for count, how in ends if count]
    others += [f"{rest} {agreed(rest, 'has', 'have')} not ended"] if rest else []
    words = f"the last {f'{good} runs' if good > 1 else 'run'} succeeded"
    if others:
        parts = [f"{good} succeeded", "none failed", *others[:-1], f"and {others[-1]}"]
        words = f"of its latest {len(latest)} runs, {', '.join(parts)}"
    return f"Runs well: {words}." if good > 1 and not skipped else f"{words[:1].upper()}{words[1:]}.{skipped}"


def _skipped(unfired: Sequence[Unfired], *, at_least: bool) -> str:
    """Return the number of occurrences skipped in the time shown, and the reasons."""
    if not unfired:
        return ""
    occurrences = sum(each.occurrences for each in unfired)
    found = number(occurrences, at_least=at_least or not all(each.exact for each in unfired))
    were = f"occurrence{' in the time shown was' if occurrences == 1 else 's in the time shown were'}"
    reasons = ", ".join(dict.fromkeys(reason_words(each.reason) for each in unfired))
    return f" {found} {were} skipped: {reasons}."


def _coming(job: JobDetail, coming: Upcoming | None, now: datetime) -> str:
    summary = job.summary
    if summary.paused:
        return ""
    if job.freezes and summary.next_at is not None:
        return "A freeze holds it: nothing fires until the thaw."
    if summary.next_at is not None:
        return f"Next {when(summary.next_at, now)}." if summary.next_at > now else "Due now."
    return "" if coming is None else coming.words


def _meanwhile(found: Resumption) -> str:
    """Return how many occurrences came due during a pause, and what a resume does with them."""
    count = found.fires + found.skips
    if not count:
        return ""
    have = "has" if count == 1 and not found.at_least else "have"
    fate = f"fires {found.fires:,} of them and skips {found.skips:,}"
    if not (found.fires and found.skips):
        fate = f"{'fires' if found.fires else 'skips'} {'it' if have == 'has' else 'them'}"
    due = counted(count, "occurrence", at_least=found.at_least)
    return f"{due} {have} come due during the pause. A resume now {fate}."


def _cut(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
