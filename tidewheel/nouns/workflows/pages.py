"""Pages of workflows: the list, and one occurrence: which part failed, and what hangs on it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import ClassVar, cast
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.audit import ACCEPTED
from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.listing import list_view
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, read_filters
from tidewheel.control.console.words import agreed, counted, state, when
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.doors.address import after_of, next_cursor, query_of
from tidewheel.nouns.audit_log.model import AuditEntry
from tidewheel.nouns.audit_log.reads import list_audit_log
from tidewheel.nouns.operation import Page, operations
from tidewheel.nouns.workflows.graph import Picture, depths, is_met, picture_of
from tidewheel.nouns.workflows.model import Parent, Workflow, WorkflowNode, WorkflowSummary
from tidewheel.nouns.workflows.operations import Workflows
from tidewheel.postgres.session import Conn
from tidewheel.runs import DEAD_LETTERED, RunState

ROWS = 200
"""Jobs in one page of the list."""

_LIST = operations(Workflows)["list"]
_QUERY, _NAMES = query_of(_LIST, _LIST.parameters)
_NAMED = 3  # jobs that a sentence names
_FITS = 980  # pixels of a graph that are seen at once
_GENERATIONS = 20  # that the page links to
_WAITING = {RunState.QUEUED, RunState.BUFFERED, RunState.RETRYING, RunState.WAITING}  # not those that wait for parents
_CHANGES = 20  # entries about one occurrence, among which refused ones are passed over
_DEEPEST = 5  # layers that the list shows by an indent


class WorkflowQuery(TenantQuery):
    """Query of the page of an occurrence."""

    after: Whole = 0  # the number of jobs before the page of the list
    generation: Whole | None = None  # as this one has left it; by default as it is
    zoom: Whole | None = None  # the size of the graph in percent; by default it fits, down to half


def root_of(request: Request) -> UUID:
    """Return the root's run that an address names, or answer 404."""
    try:
        return UUID(str(request.path_params["root_run_id"]))
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such workflow: its id is a UUID") from None


def about_workflow(found: Workflow, pause: AuditEntry | None, now: datetime) -> str:
    """Return who paused an occurrence, how many parts it has, and how they are."""
    paused = ""
    if found.summary.state == "paused":
        by = f" by {pause.named or pause.actor} {when(pause.at, now)}" if pause else ""
        paused = f"Paused{by}{f': {found.summary.reason}' if found.summary.reason else ''}. "
    states = Counter(node.state for node in found.nodes)
    parts = ", ".join(f"{number:,} {state(each)}" for each, number in states.most_common())
    return f"{paused}{counted(len(found.nodes), 'job')}: {parts}.{_again(found)}"


def _again(found: Workflow) -> str:
    """Return which jobs a resume runs for certain, and which ones if their parents then end as required."""
    again = set(found.again)
    if not again:
        return ""
    later = [node.key for node in found.nodes if node.key in again and any(each.key in again for each in node.parents)]
    certain = _few([key for key in found.again if key not in set(later)])
    if not later:
        return f" A resume makes a new run of {certain}."
    their = agreed(len(later), "its", "their")
    met = f"if the conditions on {their} parents are then met"
    return f" A resume makes a new run of {certain}, and of {_few(later)} {met}."


def _few(keys: Sequence[str]) -> str:
    """Return the names of a few jobs, else their number."""
    return ", ".join(keys) if len(keys) <= _NAMED else f"each of {counted(len(keys), 'job')}"


@dataclass(frozen=True, slots=True)
class WorkflowsPage:
    """The list of workflows."""

    template: ClassVar[str] = "workflows.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page by the filters of the address."""
        query, errors = read_filters(request, cast("type[PageQuery]", _QUERY))
        filters = {name: getattr(query, spoken) for name, spoken in _NAMES.items()}

        def listed() -> tuple[Page[WorkflowSummary], str | None]:
            cursors = Cursors.of_list("workflows", query, caller.tenant)
            found: Page[WorkflowSummary] = Workflows(connection).list(after=after_of(cursors, _LIST), **filters)
            return found, next_cursor(cursors, found.next_cursor)

        return list_view("workflows", query, listed, errors=errors, now=page_now(connection), urls=urls)


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """The page of an occurrence."""

    template: ClassVar[str] = "workflow.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the graph with the state of each job."""
        query = read_query(request, WorkflowQuery)
        now, root = page_now(connection), root_of(request)
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
        if older is None:
            with connection.snapshot() as reading:
                waits = read_waits(reading, waiting)
                if found.summary.state == "paused":
                    pause = _pause(reading, caller.tenant, root)
        following, picture = query.after + ROWS, picture_of(found.nodes)
        return View(
            {
                "now": now, "summary": found.summary, "again": found.again, "waits": waits,
                "sentence": about_workflow(found, pause, now),
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
