"""Pictures of workflows, as pure functions: a graph in layers, with its edges as paths of SVG.

The same graph has the same picture. An edge over several layers has a bend in each of them, so it crosses no node.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from tidewheel.nouns.workflows.operations import Parent, WorkflowNode
from tidewheel.runs import FINAL
from tidewheel.transitions.occurrences import MEETS

WIDTH, HEIGHT = 200, 44
_GAP_X, _GAP_Y, _MARGIN = 48, 16, 8
_BEND = 8  # the height that an edge takes in a layer that it crosses
_PASSES = 4
_SEEN = 540  # the height that is seen at once
FOLDED = 12
"""The number of children of one state beyond which they are one node."""
_LARGEST = 1_000  # nodes: of more the list alone is shown
_BENDS = 3_000  # bends of edges that cross layers: likewise


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
    parts: list[str] = []
    for left, right in pairwise(chain):
        x, y = _x(items[left].layer) + WIDTH, items[left].y + items[left].height // 2
        to_x, to_y = _x(items[right].layer), items[right].y + items[right].height // 2
        parts.append(f"{'L' if parts else 'M'}{x} {y}")  # a line is along the bend
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
    layer = dict(zip(group, depths(nodes), strict=True))
    order = sorted(members, key=lambda each: (layer[each], each))
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
    return state in FINAL & MEETS[when]


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
        ended = states[parent.key] in FINAL or states[parent.key] == "not_reached"
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
    first, last = min(keys), max(keys)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return f"{first[:same]}*"
