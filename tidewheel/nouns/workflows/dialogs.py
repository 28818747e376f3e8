"""Actions on one occurrence of a workflow: pause it, go on or run its failed part again, cancel it."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import SAMPLE, Dialog, Done, request_id_of, sample_of, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.run_actions import REASON
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.words import agreed, counted, ordinal, state
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import refuse
from tidewheel.nouns.runs.detail import count_open_retries, read_retry_facts
from tidewheel.nouns.workflows.operations import Workflow, Workflows
from tidewheel.nouns.workflows.pages import root_of
from tidewheel.runs import OPEN


@dataclass(frozen=True, slots=True)
class PauseWorkflow:
    """Release no further run of an occurrence."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what waits, and what goes on."""
        del caller
        found, question = _open_workflow(connection, request), "Pause this workflow of {}?"
        if found.summary.state == "cancelling":
            return _cancelling(question, found, urls, request)
        waiting = [node.key for node in found.nodes if node.run_id is None]
        return Dialog(
            question.format(found.summary.key), "Pause 1 workflow", _page(urls, request),
            will=_count(len(waiting), "job", "without a run waits until a resume", "without a run wait until a resume"),
            stays=_count(len(_going_on(connection, found)), "open run", "goes on", "go on"), fields=(REASON,),
            sample=waiting[:SAMPLE], keep="Let it go on", place="runs",
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause it."""
        del caller
        _change(connection, "workflow.pause", form, request)
        undo = ("Resume", urls("workflow_resume", root_run_id=root_of(request)))
        return Done(_page(urls, request), "The workflow is paused.", undo)


@dataclass(frozen=True, slots=True)
class ResumeWorkflow:
    """Go on with a paused occurrence, or run the failed part of an ended one again."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the jobs that run again, and those that stay."""
        found = Workflows(connection).get(root_of(request))
        summary, again = found.summary, found.again
        if summary.finished_at is None:
            if summary.state != "paused":
                refuse("", f"the workflow is {state(summary.state)}", "resume one that is paused or has failed")
            return Dialog(
                f"Go on with this workflow of {summary.key}?", "Resume 1 workflow", _page(urls, request),
                will=("The jobs whose conditions are met get their runs.",), keep="Keep it paused", place="runs",
            )  # fmt: skip
        if not again:
            refuse("", "no part of this workflow failed", _NEW)
        done = sum(node.key not in set(again) for node in found.nodes)
        beside = _beside(connection, found)
        resumes = summary.generation + 1
        return Dialog(
            f"Resume {counted(len(again), 'job')} of {summary.key}?", f"Resume {counted(len(again), 'job')}",
            _page(urls, request),
            will=(
                f"This is the {ordinal(resumes)} resume. Its runs are shown as generation {resumes}.",
                f"{agreed(len(again), 'This job', 'Each of these jobs')} {_RUNS_AGAIN}:",
            ),
            stays=(*_count(done, "job", "stays as it is", "stay as they are"), *beside),
            sample=sample_of(again, len(again)), keep="Leave it", place="runs",
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume it."""
        del caller
        again = len(Workflows(connection).get(root_of(request)).again)
        unchanged = _change(connection, "workflow.resume", form, request)
        resumed = "It is resumed."
        if again:
            resumed = f"{counted(again, 'job')} {agreed(again, 'is', 'are')} resumed."
            resumed += f" {agreed(again, 'It', 'Each of them')} {_RUNS_AGAIN}."
        return Done(_page(urls, request), "The workflow is open already." if unchanged else resumed)


@dataclass(frozen=True, slots=True)
class CancelWorkflow:
    """Cancel the runs of an occurrence, and release no further one."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the runs that are cancelled, and the jobs that get none."""
        del caller
        found = _open_workflow(connection, request)
        if found.summary.state == "cancelling":
            return _cancelling("Cancel this workflow of {}?", found, urls, request)
        going_on, waiting = _going_on(connection, found), [node.key for node in found.nodes if node.run_id is None]
        jobs = ", ".join(sample_of(waiting, len(waiting)))
        runs, of = len(going_on), f"this workflow of {found.summary.key}"
        cancelled = sum(node.state in OPEN for node in found.nodes) - runs
        return Dialog(
            f"Cancel {counted(runs, 'open run')} of {of}?" if runs else f"Cancel {of}?",
            f"Cancel {counted(runs, 'run')}" if runs else "Cancel 1 workflow", _page(urls, request),
            will=(
                *_count(len(waiting), "job", f"gets no run until a resume: {jobs}", f"get none until a resume: {jobs}"),
                *(("Its open runs end as cancelled; attempts under way get a signal:",) if runs else ()),
            ),
            stays=(
                *_count(cancelled, "run", "is being cancelled already", "are being cancelled already"),
                *_count(
                    len(found.nodes) - runs - cancelled - len(waiting), "job", "has ended and stays as it is",
                    "have ended and stay as they are",
                ),
            ),
            sample=sample_of(going_on, runs), fields=(REASON,),
            keep="Let it go on", danger=True, place="runs",
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Cancel it."""
        del caller
        runs = len(_going_on(connection, Workflows(connection).get(root_of(request))))
        unchanged = _change(connection, "workflow.cancel", form, request)
        who = f"{counted(runs, 'run')} {agreed(runs, 'is', 'are')}" if runs else "It is"
        return Done(_page(urls, request), "The workflow had ended already." if unchanged else f"{who} being cancelled.")


def _change(connection: Connection, kind: str, form: Form, request: Request) -> bool:
    document = {"type": kind, "run_id": str(root_of(request)), "reason": text_of(form, "reason")}
    return connection.request(document, request_id_of(form)).unchanged


def _open_workflow(connection: Connection, request: Request) -> Workflow:
    found = Workflows(connection).get(root_of(request))
    if found.summary.finished_at is not None:
        words = f"this workflow has already ended as {state(found.summary.state)}"
        refuse("", words, "resume its failed part to continue it" if found.again else _NEW)
    return found


def _cancelling(question: str, found: Workflow, urls: Urls, request: Request) -> Dialog:
    """Return that the occurrence is being cancelled, and offer nothing."""
    words = "Nothing would change. The workflow is being cancelled already."
    return Dialog(
        question.format(found.summary.key), "", _page(urls, request), will=(words,), keep="Back", place="runs"
    )


def _going_on(connection: Connection, found: Workflow) -> Sequence[str]:
    """Return the keys of the jobs whose runs are open, without those whose cancel is accepted."""
    runs = {node.run_id: node.key for node in found.nodes if node.state in OPEN and node.run_id is not None}
    with connection.snapshot() as reading:
        waits = read_waits(reading, list(runs)[:_COUNTED])
    return [key for run_id, key in runs.items() if run_id not in waits or not waits[run_id].cancel_requested]


_NEW = "trigger its root for a new occurrence"
_RUNS_AGAIN = "runs again if its parents end in the states that its conditions require"
_COUNTED = 200  # runs at most whose facts a dialog reads


def _beside(connection: Connection, found: Workflow) -> Sequence[str]:
    """Return the counts of dead letters and open retries beside a resume."""
    wanted = set(found.again)
    again = {node.key: node for node in found.nodes if node.key in wanted}
    runs = {node.run_id: node for node in again.values() if node.run_id is not None}
    if len(runs) > _COUNTED:
        return ("Open retries of these jobs go on beside the new runs.",)
    with connection.snapshot() as reading:
        facts = read_retry_facts(reading, list(runs))
    letters = {each.dead_letter: runs[each.run_id] for each in facts if each.dead_letter is not None}
    later = sum(any(parent.key in again for parent in node.parents) for node in letters.values())
    still_open = count_open_retries(facts)
    return (
        *_count(len(letters) - later, "dead letter", "counts as redriven", "count as redriven"),
        *_count(
            later, "dead letter", "stays open until its job's parents end", "stay open until their jobs' parents end"
        ),
        *_count(still_open, "open retry run", "goes on beside the new runs", "go on beside the new runs"),
    )


def _count(value: int, noun: str, one: str, more: str) -> tuple[str, ...]:
    """Return the sentence that counts something; none of nothing."""
    return (f"{counted(value, noun)} {agreed(value, one, more)}.",) if value else ()


def _page(urls: Urls, request: Request) -> str:
    return urls("workflow", root_run_id=root_of(request))
