"""Pages of workflows: the list, and one occurrence with its graph drawn.

The same graph has the same picture. An edge over several layers has a bend in each of them, so it crosses no node.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from itertools import pairwise
from typing import ClassVar, cast
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.audit import ACCEPTED
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, list_view, page_now, read_filters
from tidewheel.control.console.words import agreed, counted, state, when
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.doors.address import after_of, next_cursor, query_of
from tidewheel.nouns.audit_log.operations import AuditEntry, list_audit_log
from tidewheel.nouns.operation import Page, operations
from tidewheel.nouns.workflows.operations import Parent, Workflow, WorkflowNode, Workflows, WorkflowSummary
from tidewheel.postgres.session import Conn
from tidewheel.runs import DEAD_LETTERED, RunState

WIDTH, HEIGHT = 200, 44
_GAP_X, _GAP_Y, _MARGIN = 48, 16, 8
_BEND = 8  # the height that an edge takes in a layer that it crosses
_PASSES = 4
_SEEN = 540  # the height that is seen at once

FOLDED = 12
"""The number of children of one state beyond which they are one node."""

_LARGEST = 1_000  # nodes: of more the list alone is shown
_BENDS = 3_000  # bends of edges that cross layers: likewise
_ENDED = {str(each) for each in (*DEAD_LETTERED, RunState.SUCCEEDED, RunState.CANCELLED, RunState.SKIPPED)}

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


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as a path of SVG."""

    parent: int
    child: int
    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph with its places."""

    node_width: ClassVar[int] = WIDTH

    width: int
    height: int
    places: Sequence[tuple[int, int]]  # the left upper corner of each node
    edges: Sequence[Edge]  # by child and parent


@dataclass(slots=True)
class _Item:
    """A node, or the bend of an edge."""

    layer: int
    height: int
    before: list[int] = field(default_factory=list[int])
    after: list[int] = field(default_factory=list[int])
    order: float = 0.0
    y: int = 0


def layers_of(parents: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each node, the longest path to it; parents come before their children."""
    layers: list[int] = []
    for each in parents:
        layers.append(max((layers[parent] + 1 for parent in each), default=0))
    return layers


def draw(parents: Sequence[Sequence[int]]) -> Drawing:
    """Return the drawing of a graph; parents come before their children."""
    items = [_Item(layer, HEIGHT) for layer in layers_of(parents)]
    chains = {(parent, child): _chain(items, parent, child) for child, each in enumerate(parents) for parent in each}
    layers: list[list[int]] = [[] for _ in range(max((each.layer for each in items), default=-1) + 1)]
    for number, item in enumerate(items):
        layers[item.layer].append(number)
    _order(items, layers)
    height = _stack(items, layers)
    places = [(_x(items[at].layer), items[at].y) for at in range(len(parents))]
    edges = [Edge(parent, child, _path(items, chain)) for (parent, child), chain in chains.items()]
    width = max(len(layers), 1) * (WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    return Drawing(width, height, places, edges)


def _chain(items: list[_Item], parent: int, child: int) -> list[int]:
    """Add the bends of an edge; return the items that it connects."""
    chain = [parent]
    for layer in range(items[parent].layer + 1, items[child].layer):
        items.append(_Item(layer, _BEND))
        chain.append(len(items) - 1)
    chain.append(child)
    for left, right in pairwise(chain):
        items[left].after.append(right)
        items[right].before.append(left)
    return chain


def _order(items: Sequence[_Item], layers: Sequence[list[int]]) -> None:
    """Order each layer by the middle of its neighbours, four times: along the edges, and back."""
    for layer in layers:
        for place, each in enumerate(layer):
            items[each].order = place
    for number in range(_PASSES):
        forward = number % 2 == 0
        for layer in layers[1:] if forward else reversed(layers[:-1]):
            middles: Mapping[int, float] = {
                each: _middle(items, items[each].before if forward else items[each].after, items[each].order)
                for each in layer
            }
            layer.sort(key=lambda each: (middles[each], items[each].order, each))
            for place, each in enumerate(layer):
                items[each].order = place


def _middle(items: Sequence[_Item], neighbours: Sequence[int], own: float) -> float:
    return sum(items[each].order for each in neighbours) / len(neighbours) if neighbours else own


def _stack(items: Sequence[_Item], layers: Sequence[Sequence[int]]) -> int:
    """Put the items of each layer below each other; return the height of all.

    The layers of a low graph are around one line. Those of a high one begin at the top, where a reader begins.
    """
    heights = [sum(items[each].height for each in layer) + _GAP_Y * (len(layer) - 1) for layer in layers]
    most = max(heights, default=0)
    for layer, height in zip(layers, heights, strict=True):
        y = _MARGIN + ((most - height) // 2 if most <= _SEEN else 0)
        for each in layer:
            items[each].y = y
            y += items[each].height + _GAP_Y
    return most + 2 * _MARGIN


def _path(items: Sequence[_Item], chain: Sequence[int]) -> str:
    """Return the curves from the right edge of a node, over the bends, to the left edge of another one."""
    parts: list[str] = []
    for left, right in pairwise(chain):
        x, y = _x(items[left].layer) + WIDTH, items[left].y + items[left].height // 2
        to_x, to_y = _x(items[right].layer), items[right].y + items[right].height // 2
        if parts:  # along the bend
            parts.append(f"L{x} {y}")
        else:
            parts.append(f"M{x} {y}")
        half = (x + to_x) // 2
        parts.append(f"C{half} {y} {half} {to_y} {to_x} {to_y}")
    return " ".join(parts)


def _x(layer: int) -> int:
    return _MARGIN + layer * (WIDTH + _GAP_X)


@dataclass(frozen=True, slots=True)
class Part:
    """A node of the picture: a job, or several of one state below the same parents."""

    nodes: Sequence[WorkflowNode]
    state: str
    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """An edge of the picture."""

    when: str  # the condition on the parent's end
    is_met: bool  # False if the parent has ended, and not so
    path: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph that can be drawn."""

    drawing: Drawing
    parts: Sequence[Part]  # in the order of the places
    links: Sequence[Link]
    is_folded: bool  # a node has several jobs

    @property
    def is_retried(self) -> bool:
        """True if a node's attempts are written in it."""
        return any(len(part.nodes) == 1 and part.nodes[0].attempt > 1 for part in self.parts)


def depths(nodes: Sequence[WorkflowNode]) -> list[int]:
    """Return the layer of each job, which comes after its parents."""
    places = {node.key: at for at, node in enumerate(nodes)}
    return layers_of([[places[parent.key] for parent in node.parents] for node in nodes])


def picture_of(nodes: Sequence[WorkflowNode]) -> Picture | None:
    """Return the picture of a graph; None if it has too many nodes or edges to be read."""
    group = _groups(nodes)
    members: dict[int, list[WorkflowNode]] = {}
    for at, node in enumerate(nodes):
        members.setdefault(group[at], []).append(node)
    order = sorted(members, key=lambda each: (_layer(nodes, group)[each], each))
    number = {each: at for at, each in enumerate(order)}
    places = {node.key: number[group[at]] for at, node in enumerate(nodes)}
    links = _links(nodes, places)
    parents: list[list[int]] = [[] for _ in order]
    for parent, child in links:
        parents[child].append(parent)
    layers = layers_of(parents)
    bends = sum(layers[child] - layers[parent] - 1 for parent, child in links)
    if len(order) > _LARGEST or bends > _BENDS:
        return None
    drawing = draw(parents)
    drawn = [Link(*links[each.parent, each.child], each.path) for each in drawing.edges]
    parts = [_part(members[each]) for each in order]
    return Picture(drawing, parts, drawn, len(parts) < len(nodes))


def is_met(when: str, state: str) -> bool:
    """Return True if a parent's end meets the condition of an edge."""
    if when == "always":
        return state in _ENDED
    return state in DEAD_LETTERED if when == "failure" else state == RunState.SUCCEEDED


def _layer(nodes: Sequence[WorkflowNode], group: Sequence[int]) -> Mapping[int, int]:
    return dict(zip(group, depths(nodes), strict=True))


def _groups(nodes: Sequence[WorkflowNode]) -> list[int]:
    """Return the group of each job, by the place of its first member.

    Jobs of one layer, of the same parents and state are a group where they are many. Their parents are in earlier
    layers, so that groups have no circle either.
    """
    places, layers = {node.key: at for at, node in enumerate(nodes)}, depths(nodes)
    group = list(range(len(nodes)))
    for layer in range(max(layers, default=-1) + 1):
        alike: dict[object, list[int]] = {}
        for at, node in enumerate(nodes):
            if layers[at] == layer:
                above = frozenset((group[places[parent.key]], parent.when) for parent in node.parents)
                alike.setdefault((above, node.state), []).append(at)
        for found in alike.values():
            if len(found) > FOLDED:
                for at in found:
                    group[at] = found[0]
    return group


def _links(nodes: Sequence[WorkflowNode], places: Mapping[str, int]) -> dict[tuple[int, int], tuple[str, bool]]:
    states = {node.key: node.state for node in nodes}

    def link(parent: Parent) -> tuple[str, bool]:
        ended = states[parent.key] in _ENDED or states[parent.key] == "not_reached"
        return parent.when, not ended or is_met(parent.when, states[parent.key])

    return {(places[parent.key], places[node.key]): link(parent) for node in nodes for parent in node.parents}


def _part(nodes: Sequence[WorkflowNode]) -> Part:
    [(state, _)] = Counter(node.state for node in nodes).most_common(1)
    if len(nodes) == 1:
        return Part(nodes, state, _short(nodes[0].key))
    return Part(nodes, state, f"\u00d7 {len(nodes)} {_short(_begin_of([node.key for node in nodes]))}")


def _short(key: str) -> str:
    return key if len(key) <= 20 else f"{key[:11]}\u2026{key[-8:]}"


def _begin_of(keys: Sequence[str]) -> str:
    """Return what all keys begin with, and a star."""
    first, last = min(keys), max(keys)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return f"{first[:same]}*"


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
