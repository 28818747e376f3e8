"""The parts of a workflow's graph as nodes and edges to draw; many children of one state are one node."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidewheel.control.console.graph import Drawing, draw, layers_of
from tidewheel.nouns.workflows.model import Parent, WorkflowNode
from tidewheel.runs import DEAD_LETTERED, RunState

FOLDED = 12
"""The number of children of one state beyond which they are one node."""

_LARGEST = 1_000  # nodes: of more the list alone is shown
_BENDS = 3_000  # bends of edges that cross layers: likewise
_ENDED = {str(each) for each in (*DEAD_LETTERED, RunState.SUCCEEDED, RunState.CANCELLED, RunState.SKIPPED)}


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
