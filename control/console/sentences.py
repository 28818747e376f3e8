"""The first sentence of a page about a run, under its title."""

from dataclasses import replace
from datetime import datetime, timedelta

from tidewheel.control.console.words import between, counted, reason_words, state, when
from tidewheel.control.reads.waits import Wait, WaitCode
from tidewheel.control.words import duration
from tidewheel.nouns.runs.model import RunDetail, RunSummary
from tidewheel.nouns.workflows.picture import is_met
from tidewheel.runs import RunState, SkipReason
from tidewheel.transitions.parents import Neighbours

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_LONGEST = 300  # characters of an error in a sentence
_LABELS = {
    WaitCode.CANCEL: "being cancelled", WaitCode.FROZEN: "frozen", WaitCode.NO_EXECUTOR: "without an executor",
    WaitCode.NO_HANDLER: "without a handler", WaitCode.NO_TARGET: "without an executor of the target",
    WaitCode.SLOT: "for an executor", WaitCode.TURN: "behind an active run", WaitCode.KEY: "behind a concurrency key",
    WaitCode.ORDER: "behind an ordering key", WaitCode.TENANT: "at the tenant's limit",
    WaitCode.TENANT_RATE: "at the tenant's rate",
}  # fmt: skip


def about_run(run: RunDetail, now: datetime, neighbours: Neighbours | None = None) -> tuple[str, str]:
    """Return how a run ended, or for what it waits, and its error or what else is known about the wait.

    Its neighbours show which parent skipped it.
    """
    summary = run.summary
    took = duration(between(summary.started_at, summary.finished_at))
    error = cut(": ".join(part for part in (summary.error_type, run.error_message) if part))
    match summary.status:
        case RunState.SUCCEEDED:
            return f"Attempt {summary.attempt} succeeded in {took}.", ""
        case RunState.FAILED | RunState.TIMED_OUT:
            reason = error or state(summary.reason or "") or "no error is recorded"
            return f"{state(summary.status).capitalize()} after {counted(summary.attempt, 'attempt')}.", reason
        case RunState.CANCELLED | RunState.SKIPPED:
            unmet = _unmet(neighbours) if summary.reason == SkipReason.PARENTS and neighbours is not None else ""
            reason = f": {unmet or reason_words(summary.reason)}" if summary.reason else ""
            return f"{state(summary.status).capitalize()} {when(summary.finished_at, now)}{reason}.", ""
        case _ if (why := summary.why) is not None:
            words = _of_all(run, why.reason) if why.code is WaitCode.RETRY else why.reason
            return waiting(replace(why, words=words), now), why.detail or ""
        case status:
            return f"{state(status).capitalize()}.", ""


def is_cancelled(run: RunSummary) -> bool:
    """Return True if a cancel of an open run was accepted."""
    return run.status == RunState.CANCELLING or (run.why is not None and run.why.cancel_requested)


def wait_label(why: Wait) -> str:
    """Return for what runs wait, in a few words behind their number."""
    return _LABELS.get(why.code) or why.reason


def waiting(why: Wait, now: datetime) -> str:
    """Return for what a run waits, as a sentence."""
    is_near = why.until is not None and _SECOND <= why.until - now < _DAY
    return f"{why.words[:1].upper()}{why.words[1:]}{f', {when(why.until, now)}' if is_near else ''}."


def _of_all(run: RunDetail, words: str) -> str:
    """Return words about the last attempt with the number of attempts that the run has."""
    attempt = f"attempt {run.summary.attempt}"
    of = f" of {run.max_attempts}" if run.failed_attempts == run.summary.attempt else ""  # a lost one does not count
    return words.replace(attempt, f"{attempt}{of}", 1)


def cut(text: str) -> str:
    """Return the first line of an error, shortened."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"


def _unmet(neighbours: Neighbours) -> str:
    """Return the first parent that did not end as its condition requires; empty if no run shows it."""
    for key, when_, parent in neighbours.parents:
        if parent is not None and not is_met(when_, parent.state):
            return f"the parent {key} ended as {state(parent.state)}, but the condition is {when_}"
    return ""
