"""Workflows on the web: list and page of occurrences, and dialogs to pause, resume and cancel one."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import ClassVar
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.audit import ACCEPTED
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import (
    SAMPLE,
    Dialog,
    Done,
    no_change,
    reason_field,
    request_id_of,
    sample_of,
    text_of,
)
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, list_view, or_else, page_now, part_of, read_filters
from tidewheel.control.console.words import agreed, counted, state, when
from tidewheel.control.reads.outcomes import ErrorLine, read_error_lines
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.doors.address import after_of, form_of, next_cursor, query_with
from tidewheel.errors import refuse
from tidewheel.ids import read_uuid
from tidewheel.nouns.audit_log.operations import AuditEntry, list_audit_log
from tidewheel.nouns.batches.web import STATES, Share, shares
from tidewheel.nouns.operation import Page, operations
from tidewheel.nouns.runs.detail import count_open_retries, read_retry_facts
from tidewheel.nouns.runs.reads import read_runs
from tidewheel.nouns.workflows.operations import (
    Parent,
    Workflow,
    WorkflowNode,
    Workflows,
    WorkflowSummary,
    read_first_runs,
)
from tidewheel.nouns.workflows.picture import Picture, depths, is_met, picture_of
from tidewheel.postgres.session import Conn
from tidewheel.runs import DEAD_LETTERED, OPEN, RunState
from tidewheel.transitions.occurrences import NodeRun

ROWS = 200
"""Jobs in one page of the list."""
_LIST = operations(Workflows)["list"]
_QUERY, _NAMES = query_with(PageQuery, _LIST, _LIST.parameters)
_FORM = form_of(_LIST.parameters, without=("key",))
_NAMED = 3  # jobs that a sentence names
_FITS = 980  # pixels of a graph that are seen at once
_GENERATIONS = 20  # that the page links to
_WAITING = {RunState.QUEUED, RunState.BUFFERED, RunState.RETRYING, RunState.WAITING}  # not those that wait for parents
_CHANGES = 20  # entries about one occurrence, among which refused ones are passed over
_DEEPEST = 5  # layers that the list shows by an indent
_COUNTED = 200  # runs at most whose facts a dialog reads
_NOT_RUN = {RunState.SKIPPED, "not_reached"}
_NEVER = datetime.max.replace(tzinfo=UTC)
_NEW = "trigger its root for a new occurrence"
_RUNS_AGAIN = "runs again if its parents end in the states that its conditions require"


class WorkflowQuery(TenantQuery):
    """Query of the page of an occurrence."""

    after: Whole = 0  # the number of jobs before the page of the list
    generation: Whole | None = None  # as this one has left it; by default as it is
    zoom: Whole | None = None  # the size of the graph in percent; by default it fits, down to half


def _root_of(request: Request) -> UUID:
    """Return the root's run that an address names, or answer 404."""
    try:
        return read_uuid(str(request.path_params["root_run_id"]))
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such workflow: its id is a UUID") from None


def about_workflow(found: Workflow, pause: AuditEntry | None, now: datetime) -> str:
    """Return who paused an occurrence, how many parts it has, and how they are."""
    paused = ""
    if found.summary.state == "paused":
        by = f" by {pause.named or pause.actor} {when(pause.at, now)}" if pause else ""
        paused = f"Paused{by}{f': {found.summary.reason}' if found.summary.reason else ''}. "
    again = _again(found)
    if found.summary.failed:
        return f"{paused}{again}"
    states = Counter(node.state for node in found.nodes)
    parts = ", ".join(f"{number:,} {state(each)}" for each, number in states.most_common())
    return " ".join(filter(None, (f"{paused}{counted(len(found.nodes), 'job')}: {parts}.", again)))


@dataclass(frozen=True, slots=True)
class RootError:
    """The failure of an occurrence that came first, with the error of each failed run.

    Args:
        not_run: The jobs that it and later failures kept from running, named if they are few.
    """

    node: WorkflowNode
    not_run: str
    errors: Mapping[UUID, ErrorLine]


def root_error(connection: Conn, nodes: Sequence[WorkflowNode]) -> RootError | None:
    """Return the first failure of an occurrence; None without one."""
    failed = [node for node in nodes if node.state in DEAD_LETTERED and node.run_id is not None]
    if not failed:
        return None
    first = min(failed, key=lambda node: node.finished_at or _NEVER)
    states, hurt = {node.key: node.state for node in nodes}, {node.key for node in failed}
    for node in nodes:  # parents first
        unmet = (each.key in hurt and not is_met(each.when, states[each.key]) for each in node.parents)
        if node.state in _NOT_RUN and any(unmet):
            hurt.add(node.key)
    listed = [first, *failed][:_COUNTED]
    errors = read_error_lines(connection, [node.run_id for node in listed if node.run_id is not None])
    skipped = [node.key for node in nodes if node.key in hurt and node not in failed]
    return RootError(first, _few(skipped), errors)


def _again(found: Workflow) -> str:
    """Return which jobs a resume runs for certain, and which ones if their parents then end as required."""
    again = set(found.again)
    if not again:
        return ""
    later = [node.key for node in found.nodes if node.key in again and any(each.key in again for each in node.parents)]
    certain = _few([key for key in found.again if key not in set(later)])
    if not later:
        return f"A retry runs {certain} again."
    met = f"if {agreed(len(later), 'its', 'their')} conditions are met"
    return f"A retry runs {certain} again, then {_few(later)} {met}."


def _few(keys: Sequence[str]) -> str:
    """Return the names of a few jobs, else their number."""
    return ", ".join(keys) if len(keys) <= _NAMED else counted(len(keys), "job")


@dataclass(frozen=True, slots=True)
class WorkflowsPage:
    """The list of workflows."""

    template: ClassVar[str] = "workflows.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page by the filters of the address."""
        query, errors = read_filters(request, _QUERY)
        filters = {name: getattr(query, spoken) for name, spoken in _NAMES.items()}

        def listed() -> tuple[Page[WorkflowSummary], str | None]:
            cursors = Cursors.of_list("workflows", query, caller.tenant)
            found: Page[WorkflowSummary] = Workflows(connection).list(after=after_of(cursors, _LIST), **filters)
            return found, next_cursor(cursors, found.next_cursor)

        def jobs(page: Page[WorkflowSummary]) -> Mapping[str, object]:
            return or_else(part_of(connection, _read_jobs, page), _NO_JOBS)

        return list_view(
            "workflows", query, listed, errors=errors, now=page_now(connection), urls=urls, of_page=jobs, fields=_FORM
        )


_NO_JOBS: Mapping[str, object] = {"runs": {}, "first": {}, "lines": {}, "shares": {}}


def _read_jobs(reading: Conn, page: Sequence[WorkflowSummary]) -> Mapping[str, object]:
    """Return the states of the jobs, the run of the root and the first failure of each occurrence."""
    by_root = read_first_runs(reading, page)
    first = {root: run.run_id for root, runs in by_root.items() if (run := _first_failed(runs)) is not None}
    runs = read_runs(reading, [*first.values(), *(each.root_run_id for each in page)])
    return {
        "runs": {run.run_id: run for run in runs}, "first": first,
        "lines": read_error_lines(reading, [*first.values()]) if first else {},
        "shares": {each.root_run_id: _shares(each, by_root.get(each.root_run_id, ())) for each in page},
    }  # fmt: skip


def _first_failed(runs: Iterable[NodeRun | None]) -> NodeRun | None:
    failed = [run for run in runs if run is not None and run.state in DEAD_LETTERED]
    return min(failed, key=lambda run: run.finished_at or _NEVER, default=None)


def _shares(of: WorkflowSummary, runs: Iterable[NodeRun | None]) -> Sequence[Share]:
    """Return the parts of the bar of an occurrence."""
    unreached = "pending" if of.finished_at is None else "skipped"
    states = (unreached if run is None else "failed" if run.state in DEAD_LETTERED else run.state for run in runs)
    return shares(Counter(each if each in STATES else "pending" for each in states))


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """The page of an occurrence."""

    template: ClassVar[str] = "workflow.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the graph with the state of each job."""
        query = read_query(request, WorkflowQuery)
        now, root = page_now(connection), _root_of(request)
        found = Workflows(connection).get(root, generation=query.generation)
        shown = found.summary.generation if query.generation is None else query.generation
        rows = sorted(
            zip(found.nodes, depths(found.nodes), strict=True),
            key=lambda row: (row[1], row[0].state not in DEAD_LETTERED),
        )
        page = [(node, min(depth, _DEEPEST)) for node, depth in rows[query.after : query.after + ROWS]]
        older = None if shown == found.summary.generation else shown
        waiting = [node.run_id for node, _ in page if node.run_id is not None and node.state in _WAITING]
        waits: Mapping[UUID, Wait] = {}
        pause = None
        with connection.snapshot() as reading:
            root_failure = root_error(reading, found.nodes)
            if older is None:
                waits = read_waits(reading, waiting)
            if older is None and found.summary.state == "paused":
                pause = _pause(reading, caller.tenant, root)
        following, picture = query.after + ROWS, picture_of(found.nodes)
        return View(
            {
                "now": now, "summary": found.summary, "again": found.again, "waits": waits,
                "sentence": about_workflow(found, pause, now),
                "root": root_failure,
                "failed": [node for node in found.nodes if node.state in DEAD_LETTERED],
                "parents": _named_parents(found.nodes), "picture": picture, "rows": page, "total": len(found.nodes),
                "zoom": _zoom(query.zoom, picture), "first": query.after + 1,
                "more": (
                    urls("workflow", root_run_id=root, after=following, generation=older)
                    if following < len(found.nodes)
                    else None
                ),
                "shown": shown, "older": older, "generations": range(found.summary.generation, -1, -1)[:_GENERATIONS],
            }
        )  # fmt: skip


def _pause(connection: Conn, tenant: str, root: UUID) -> AuditEntry | None:
    """Return the last pause of an occurrence; None if the audit log no longer has it."""
    name, action = f"workflow/{root}", "workflow.pause"
    entries = list_audit_log(connection, tenant, object=name, action=action, limit=_CHANGES).entries
    return next((each for each in entries if each.result == ACCEPTED), None)


def _named_parents(nodes: Sequence[WorkflowNode]) -> Mapping[str, Sequence[Parent]]:
    """Return the parents that the row of each job names.

    Of a job that its parents' ends have skipped these are the ones that are not met.
    """
    states = {node.key: node.state for node in nodes}

    def unmet(node: WorkflowNode) -> Sequence[Parent]:
        return [each for each in node.parents if not is_met(each.when, states[each.key])]

    return {node.key: (unmet(node) if node.reason == "parents" else ()) or node.parents for node in nodes}


def _zoom(percent: int | None, picture: Picture | None) -> float:
    if percent is not None or picture is None:
        return min(max(percent or 100, 25), 200) / 100
    return min(max(_FITS / picture.drawing.width, 0.5), 1.0)


@dataclass(frozen=True, slots=True)
class PauseWorkflow:
    """Release no further run of an occurrence."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what waits, and what goes on."""
        found, question = _open_workflow(connection, request), "Pause this workflow of {}?"
        if found.summary.state == "cancelling":
            return _cancelling(question, found, urls, request)
        waiting = [node.key for node in found.nodes if node.run_id is None]
        return Dialog(
            question.format(found.summary.key), "Pause workflow", _page(urls, request),
            will=_count(len(waiting), "job", "without a run waits until a resume", "without a run wait until a resume"),
            stays=_count(len(_going_on(connection, found)), "open run", "continues", "continue"),
            sample=waiting[:SAMPLE], fields=(reason_field("on the workflow"),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Pause it."""
        _change(connection, "workflow.pause", form, request)
        undo = ("Resume", urls("workflow_resume", root_run_id=_root_of(request)))
        return Done(_page(urls, request), "The workflow is paused.", undo)


@dataclass(frozen=True, slots=True)
class ResumeWorkflow:
    """Continue a paused occurrence, or rerun the failed part of an ended one."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the jobs that run again, and those that stay."""
        found = Workflows(connection).get(_root_of(request))
        summary, again = found.summary, found.again
        if summary.finished_at is None:
            if summary.state != "paused":
                refuse("", f"the workflow is {state(summary.state)}", "resume one that is paused or has failed")
            return Dialog(
                f"Resume this workflow of {summary.key}?", "Resume workflow", _page(urls, request),
                will=("The jobs whose conditions are met get their runs.",),
            )  # fmt: skip
        if not again:
            refuse("", "no part of this workflow failed", _NEW)
        done = sum(node.key not in set(again) for node in found.nodes)
        beside = _beside(connection, found)
        return Dialog(
            f"Retry {counted(len(again), 'job')} of {summary.key}?", f"Retry {counted(len(again), 'job')}",
            _page(urls, request),
            will=(f"{agreed(len(again), 'This job', 'Each of these jobs')} {_RUNS_AGAIN}:",),
            stays=(*_count(done, "job", "stays as it is", "stay as they are"), *beside),
            sample=sample_of(again, len(again)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Resume it."""
        again = len(Workflows(connection).get(_root_of(request)).again)
        unchanged = _change(connection, "workflow.resume", form, request)
        resumed = "It is resumed."
        if again:
            resumed = f"{counted(again, 'job')} {agreed(again, 'is', 'are')} resumed."
            resumed += f" {agreed(again, 'It', 'Each of them')} {_RUNS_AGAIN}."
        return Done(_page(urls, request), "The workflow is open already." if unchanged else resumed)


@dataclass(frozen=True, slots=True)
class CancelWorkflow:
    """Cancel an occurrence: end its open runs, and start no further jobs."""

    scope = Scope.OPERATE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the runs that are cancelled, and the jobs that get none."""
        found = _open_workflow(connection, request)
        if found.summary.state == "cancelling":
            return _cancelling("Cancel this workflow of {}?", found, urls, request)
        going_on, waiting = _going_on(connection, found), [node.key for node in found.nodes if node.run_id is None]
        jobs = ", ".join(sample_of(waiting, len(waiting)))
        runs, of = len(going_on), f"this workflow of {found.summary.key}"
        cancelled = sum(node.state in OPEN for node in found.nodes) - runs
        return Dialog(
            f"Cancel {counted(runs, 'open run')} of {of}?" if runs else f"Cancel {of}?",
            f"Cancel {counted(runs, 'run')}" if runs else "Cancel workflow", _page(urls, request),
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
            sample=sample_of(going_on, runs), fields=(reason_field("on the workflow"),),
            danger=True,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Cancel it."""
        runs = len(_going_on(connection, Workflows(connection).get(_root_of(request))))
        unchanged = _change(connection, "workflow.cancel", form, request)
        who = f"{counted(runs, 'run')} {agreed(runs, 'is', 'are')}" if runs else "It is"
        return Done(_page(urls, request), "The workflow had ended already." if unchanged else f"{who} being cancelled.")


def _change(connection: Connection, kind: str, form: Form, request: Request) -> bool:
    document = {"type": kind, "run_id": str(_root_of(request)), "reason": text_of(form, "reason")}
    return connection.request(document, request_id_of(form)).unchanged


def _open_workflow(connection: Connection, request: Request) -> Workflow:
    found = Workflows(connection).get(_root_of(request))
    if found.summary.finished_at is not None:
        words = f"this workflow has already ended as {state(found.summary.state)}"
        refuse("", words, "retry its failed part to continue it" if found.again else _NEW)
    return found


def _cancelling(question: str, found: Workflow, urls: Urls, request: Request) -> Dialog:
    """Return that the occurrence is being cancelled, and offer nothing."""
    words = "The workflow is being cancelled already."
    return no_change(question.format(found.summary.key), _page(urls, request), words)


def _going_on(connection: Connection, found: Workflow) -> Sequence[str]:
    """Return the keys of the jobs whose runs are open, without those whose cancel is accepted."""
    runs = {node.run_id: node.key for node in found.nodes if node.state in OPEN and node.run_id is not None}
    with connection.snapshot() as reading:
        waits = read_waits(reading, list(runs)[:_COUNTED])
    return [key for run_id, key in runs.items() if run_id not in waits or not waits[run_id].cancel_requested]


def _beside(connection: Connection, found: Workflow) -> Sequence[str]:
    """Return the counts of dead letters and open retries beside a resume."""
    wanted = set(found.again)
    again = {node.key: node for node in found.nodes if node.key in wanted}
    runs = {node.run_id: node for node in again.values() if node.run_id is not None}
    if len(runs) > _COUNTED:
        return ("Open retries of these jobs continue beside the new runs.",)
    with connection.snapshot() as reading:
        facts = read_retry_facts(reading, list(runs))
    letters = {each.dead_letter: runs[each.run_id] for each in facts if each.dead_letter is not None}
    later = sum(any(parent.key in again for parent in node.parents) for node in letters.values())
    still_open = count_open_retries(facts)
    return (
        *_count(len(letters) - later, "dead letter", "is then marked retried", "are then marked retried"),
        *_count(
            later, "dead letter", "stays open until its job's parents end", "stay open until their jobs' parents end"
        ),
        *_count(still_open, "open retry run", "continues beside the new runs", "continue beside the new runs"),
    )


def _count(value: int, noun: str, one: str, more: str) -> tuple[str, ...]:
    """Return the sentence that counts something; none of nothing."""
    return (f"{counted(value, noun)} {agreed(value, one, more)}.",) if value else ()


def _page(urls: Urls, request: Request) -> str:
    return urls("workflow", root_run_id=_root_of(request))
