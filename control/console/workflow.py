"""One occurrence of a workflow: which part failed, and what hangs on it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.workflows import Workflows
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now
from tidewheel.control.console.words import counted, state
from tidewheel.control.console.workflow_graph import Picture, depths, is_met, picture_of
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.control.reads.workflows import Parent, Workflow, WorkflowNode
from tidewheel.runs import DEAD_LETTERED, RunState

ROWS = 200
"""Jobs in one page of the list."""

_FITS = 980  # pixels of a graph that are seen at once
_GENERATIONS = 20  # that the page links to
_WAITING = {RunState.QUEUED, RunState.BUFFERED, RunState.RETRYING, RunState.WAITING}  # not those that wait for parents
_DEEPEST = 5  # layers that the list shows by an indent


class WorkflowQuery(TenantQuery):
    """Query of the page of an occurrence.

    Attributes:
        after: The number of jobs before the page of the list.
        generation: As this generation has left it; by default as it is.
        zoom: The size of the graph in percent; by default it fits, down to half.
    """

    after: Whole = 0
    generation: Whole | None = None
    zoom: Whole | None = None


def root_of(request: Request) -> UUID:
    """Return the root's run that an address names.

    Raises:
        HTTPException: It names none.
    """
    try:
        return UUID(str(request.path_params["root_run_id"]))
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such workflow: its root's run is a UUID") from None


def about_workflow(found: Workflow) -> str:
    """Return how many parts an occurrence has, and how they are."""
    states = Counter(node.state for node in found.nodes)
    parts = ", ".join(f"{number:,} {state(each)}" for each, number in states.most_common())
    again = f" A resume runs {counted(len(found.again), 'job')} again." if found.again else ""
    return f"{counted(len(found.nodes), 'job')}: {parts}.{again}"


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """The page of an occurrence."""

    template: ClassVar[str] = "workflow.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the graph with the state of each job."""
        del caller
        query = read_query(request, WorkflowQuery)
        now, root = page_now(connection), root_of(request)
        found = Workflows(connection).get(root, generation=query.generation)
        shown = found.summary.generation if query.generation is None else query.generation
        rows = sorted(
            zip(found.nodes, depths(found.nodes), strict=True), key=lambda row: row[0].state not in DEAD_LETTERED
        )
        # Failed parts stand first, out of the tree, and without its indent.
        page = [
            (node, 0 if node.state in DEAD_LETTERED else min(depth, _DEEPEST))
            for node, depth in rows[query.after : query.after + ROWS]
        ]
        older = None if shown == found.summary.generation else shown
        waiting = [node.run_id for node, _ in page if node.run_id is not None and node.state in _WAITING]
        waits: Mapping[UUID, Wait] = {}
        if waiting and older is None:
            with connection.snapshot() as reading:
                waits = read_waits(reading, waiting)
        following, picture = query.after + ROWS, picture_of(found.nodes)
        return View(
            {
                "now": now, "summary": found.summary, "again": found.again, "sentence": about_workflow(found),
                "waits": waits,
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
