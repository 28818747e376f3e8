"""Actions on one run: cancel it, run an ended run again, start its next attempt."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    Dialog,
    Done,
    Field,
    cannot,
    no_change,
    reason_field,
    request_id_of,
    text_of,
    whole_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.run_log import run_id_of
from tidewheel.control.console.sentences import is_cancelled
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import in_snapshot, page_now
from tidewheel.control.console.words import agreed, counted, number, state, when
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.errors import refuse
from tidewheel.nouns.freezes.reads import freezes_of
from tidewheel.nouns.runs.detail import RetryFacts, count_open_retries, read_retry_facts, show_run
from tidewheel.nouns.runs.model import RunDetail
from tidewheel.nouns.runs.operations import Runs
from tidewheel.runs import FINAL, OWNED, RunState

_ALONE = "The jobs after it do not run: for these, retry the failed part of the workflow."
_COUNTS = "Its dead letter is then marked retried."


class CancelRun:
    """Cancel an open run."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a cancel ends, and what it leaves."""
        run = in_snapshot(connection, show_run, caller.tenant, run_id_of(request))
        summary = run.summary
        if summary.status in FINAL:
            refuse("", f"the run has already ended as {state(summary.status)}", "retry it for a new run")
        question, back = f"Cancel this run of {summary.key}?", urls("run", run_id=summary.run_id)
        if is_cancelled(summary):
            return no_change(question, back, "This run is being cancelled already.")
        will = f"The run is {state(summary.status)} and ends as cancelled. No further attempt starts."
        if summary.status in OWNED:
            where = f" on {run.executor}" if run.executor else ""
            signal = "The attempt gets a signal, and the run ends as cancelled unless the attempt finishes first."
            will = f"Attempt {summary.attempt} is under way{where}. {signal}"
        return Dialog(
            question, "Cancel run", back,
            will=(will, "A cancel cannot be undone. A retry creates a new run."),
            stays=("The job and its other runs continue.",), fields=(reason_field("on the run"),), danger=True,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Cancel it."""
        run_id = run_id_of(request)
        document = {"type": "run.cancel", "run_id": str(run_id), "reason": text_of(form, "reason")}
        was = connection.request(document, request_id_of(form)).run_status or ""
        of_key = f"run of {in_snapshot(connection, show_run, caller.tenant, run_id).summary.key}"
        words = f"The {of_key} is cancelled."
        if was in FINAL:
            words = f"The {of_key} had ended already: {state(was)}."
        elif was in OWNED:
            words = f"The cancel of the {of_key} is requested: its attempt gets a signal."
        return Done(urls("run", run_id=run_id), words)


class RetryRun:
    """Run an ended run again, or start the next attempt of a retrying run now.

    The form of the latter has the number of that attempt: a run that has gone on meanwhile does not change.
    """

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what the new run has, or which attempt starts."""
        run_id = run_id_of(request)
        run = Runs(connection).detail(run_id)
        summary = run.summary
        if summary.status == RunState.RETRYING:
            return _next_attempt(run, page_now(connection), urls)
        if summary.status not in FINAL:
            refuse("", f"the run is {state(summary.status)}", "wait for its end, or cancel it")
        is_well, back = summary.status == RunState.SUCCEEDED, urls("run", run_id=run_id)
        question = f"Run {summary.key} again?" if is_well else f"Retry this run of {summary.key}?"
        with connection.snapshot() as reading:
            facts = read_retry_facts(reading, [run_id])
            version = read_job_position(reading, caller.tenant, summary.key).version if facts else 0
            is_frozen = bool(freezes_of(reading, caller.tenant, summary.job_id))
        if all(each.is_deleted for each in facts):
            why = "its job is deleted" if facts else "it is no longer stored in the database"
            return cannot(question, back, f"It cannot be retried: {why}.")
        done = len(run.retry_chain.next)
        begins = "after the thaw: a freeze covers the job" if is_frozen else "now"
        had = "unchanged" if summary.job_version == version else f"this run had {summary.job_version}"
        return Dialog(
            question, "Run again" if is_well else "Retry run", back,
            will=(
                f"Creates a run with this payload and the current version, {version} ({had}).",
                *((_COUNTS,) if any(each.dead_letter is not None for each in facts) else ()),
                *((f"This run was retried already: {counted(done, 'new run')} followed.",) if done else ()),
                *((_ALONE,) if run.workflow_run_id else ()),
            ),
            fields=(
                Field("delay", "Delay (optional)", help=f"Such as 30s; without a delay it starts {begins}."),
                reason_field(),
            ),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Make the new run, or make the attempt due."""
        if text_of(form, "attempt") is not None:
            return _start(connection, form, run_id_of(request), urls)
        given = {name: text_of(form, name) for name in ("delay", "reason")}
        document = {"type": "run.retry", "run_id": str(run_id_of(request)), **given}
        made = connection.request(document, request_id_of(form)).run_id
        undo = ("Cancel the run", urls("run_cancel", run_id=made))
        return Done(urls("run", run_id=made), f"Run {made} is created.", undo)


def _next_attempt(run: RunDetail, now: datetime, urls: Urls) -> Dialog:
    """Return what becomes of the next attempt of a retrying run."""
    summary, attempt = run.summary, run.summary.attempt + 1
    # An attempt that was lost does not count against the limit.
    of = f" of {run.max_attempts}" if run.failed_attempts == summary.attempt else ""
    why = summary.why
    back, question = urls("run", run_id=summary.run_id), f"Retry this run of {summary.key} now?"
    is_due = summary.publish_at is None or summary.publish_at <= now
    if is_due or is_cancelled(summary):
        words = f": {why.words}" if why else ""
        return cannot(question, back, f"Nothing would change{words}.")
    frozen = ("A freeze covers the run: the attempt starts after the thaw.",) if why and why.freezes else ()
    return Dialog(
        question, f"Start attempt {attempt} now", back,
        will=(f"Attempt {attempt}{of} is due now rather than {when(summary.publish_at, now)}.", *frozen),
        stays=("The run keeps its payload, its version and its retry policy.",),
        fields=(Field("attempt", "", "hidden", str(attempt)), reason_field()),
    )  # fmt: skip


def _start(connection: Connection, form: Form, run_id: UUID, urls: Urls) -> Done:
    """Make the attempt due that the dialog has shown."""
    attempt = whole_of(form, "attempt")
    document = {"type": "run.retry", "run_id": str(run_id), "attempt": attempt, "reason": text_of(form, "reason")}
    reply = connection.request(document, request_id_of(form))
    words = f"Attempt {attempt} is due now."
    if reply.unchanged:
        words = f"Nothing was changed: attempt {attempt} was due, has started, or the run has ended."
        words += f" Its state: {state(reply.run_status or '')}."
    return Done(urls("run", run_id=run_id), words)


def retried_lines(facts: Sequence[RetryFacts], noun: str) -> Sequence[str]:
    """Return a sentence about each fact that some of these runs have; a run is called `noun`."""
    parts, retried = sum(each.is_part for each in facts), sum(each.retries > 0 for each in facts)
    still_open = count_open_retries(facts)
    part = agreed(parts, "is a part of a workflow", "are parts of workflows")
    before = agreed(retried, "was retried before and gets", "were retried before and get")
    go_on = agreed(still_open, "retry is open and continues", "retries are open and continue")
    found = (
        (parts, f"{share(parts, len(facts), noun)} {part}. {_ALONE}"),
        (retried, f"{share(retried, len(facts), noun)} {before} one more run."),
        (still_open, f"{number(still_open)} earlier {go_on}."),
    )
    return [words for count, words in found if count]


def share(count: int, matched: int, noun: str) -> str:
    """Return how many of the things of a dialog a sentence is about, as its first words.

    >>> share(1, 1, "run"), share(3, 3, "run"), share(2, 24, "run")
    ('This run', 'All of these runs', '2 of these 24 runs')
    """
    if count >= matched:
        return f"This {noun}" if matched == 1 else f"All of these {noun}s"
    return f"{number(count)} of these {number(matched)} {noun}s"
